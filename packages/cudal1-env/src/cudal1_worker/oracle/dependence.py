"""On which parts of a reference's inputs, results and factors do its outputs depend least, for the inputs at hand?

Which rows, keys, taps or experts matter depends on the data, so that no fixed part of a dimension holds what a program
could leave out. Dependence is the gradient of a random sum of the outputs, over their tolerances, times the value, in
the float64 twin, where it does not fade to zero. Elements without one are no part of the least: either nothing is
computed from them (a slice, a mask), or a comparison decides about them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cudal1_worker import layout
from cudal1_worker.oracle.calls import Calls, results
from cudal1_worker.oracle.models import as_dtype, copied
from cudal1_worker.oracle.omitted import TILE, operands
from cudal1_worker.oracle.steps import Call, Place

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_DISTANCES = (2, 8)
"""Distances of indices of a tensor without a gradient that are left out together."""
_PARTS = 4
"""One of so many parts is what matters least."""
Target = int | tuple[Place, int | str | None]
"""The place of an input; or a call, with the position of a factor, the name of a mask, or None for its result."""


class Part(NamedTuple):
    """A part of a tensor."""

    target: Target
    words: str
    by_gradient: bool
    """Whether outputs depend on it, but least; otherwise it has no gradient."""


def negligible_parts(
    oracle: Oracle, given: list[Any], allowed: list[torch.Tensor], shapes: Mapping[Target, tuple[int, ...]]
) -> dict[Part, torch.Tensor]:
    """Return the quarters of some tensors on which outputs depend least: of the tiles, and of each dimension's indices.

    Quarters of neighbouring indices without a gradient are parts, too, because an output may still depend on them: they
    are integers, or compared with a limit.

    Args:
        oracle: The oracle.
        given: The reference's inputs.
        allowed: Tolerances of each output's elements, flat.
        shapes: The tensors' shapes.

    Returns:
        A mask of each part, which broadcasts to the tensor's shape.
    """
    try:
        effects = _effects(oracle, given, allowed, shapes)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a step without a gradient
        effects = {}
    found: dict[Part, torch.Tensor] = {}
    for target, shape in shapes.items():
        effect = effects[target] if target in effects else torch.zeros((), device=oracle.device).expand(shape)
        is_operand = not isinstance(target, int) and target[1] is not None
        found |= {Part(target, words, True): mask for words, mask in _least(effect, TILE if is_operand else 1)}
        found |= {Part(target, words, False): mask for words, mask in _without_gradient(effect)}
    return found


def _effects(
    oracle: Oracle, given: list[Any], allowed: list[torch.Tensor], wanted: Container[Target]
) -> dict[Target, torch.Tensor]:
    """Return the effect of each element of inputs, and of calls' results and operands."""
    leaves: dict[Target, torch.Tensor] = {
        place: as_dtype(value.detach(), torch.float64).clone().requires_grad_()
        for place, value in enumerate(given)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    values = [leaves[place].clone() if place in leaves else value for place, value in enumerate(copied(given))]
    kept, before = dict[Place, tuple[Call, torch.Tensor, int]](), torch.get_default_dtype()

    def keep(call: Call) -> Any:
        result = call.func(*call.args, **call.kwargs)
        if (call.place, None) in wanted and (own := results(result)):
            kept[call.place] = call, own[0], own[0]._version
            if own[0].is_floating_point():  # also where autograd sees nothing, as behind integers
                own[0].requires_grad_()
        return result

    torch.set_default_dtype(torch.float64)
    try:
        with torch.enable_grad(), oracle.widened or nullcontext(), Calls(change=keep):
            outputs = layout.flatten(oracle.models.wide(*values))
            total = torch.zeros((), device=oracle.device)
            for output, limit in zip(outputs, allowed, strict=True):
                if output.requires_grad:
                    signs = torch.randint_like(limit, 2).mul_(2.0).sub_(1.0)
                    total = total + (output.reshape(-1) * (signs / limit)).nan_to_num().sum()
    finally:
        torch.set_default_dtype(before)
    # The gradient by a tensor that was written to is that by its last value.
    kept = {place: one for place, one in kept.items() if one[1].requires_grad and one[1]._version == one[2]}
    known = leaves | {(place, None): result for place, (_, result, _) in kept.items()}
    gradients = dict(zip(known, torch.autograd.grad(total, list(known.values()), allow_unused=True), strict=True))
    found = {target: known[target].detach() * own for target, own in gradients.items() if own is not None}
    for place, (call, *_) in kept.items():
        gradient = gradients.get((place, None))
        if gradient is not None and call.kind == "product":
            found |= {(place, operand): effect for operand, effect in _of_operands(call, gradient).items()}
    return {target: effect.abs().nan_to_num(posinf=0.0) for target, effect in found.items() if bool(effect.any())}


def _of_operands(call: Call, gradient: torch.Tensor) -> dict[int | str, torch.Tensor]:
    """Return the effects of a product's factors, and of the mask that fused attention adds to its scores."""
    found: dict[int | str, torch.Tensor] = {}
    args, leaves = list(call.args), dict[int, torch.Tensor]()
    for name, operand in operands(call).items():
        if isinstance(name, int):
            args[name] = leaves[name] = operand.detach().requires_grad_()
            continue
        q, k, v = call.args[:3]
        weights = (q @ k.mT * (call.bound["scale"] or q.shape[-1] ** -0.5) + operand).softmax(-1)
        change = gradient @ v.mT
        found[name] = weights * (change - (weights * change).sum(-1, keepdim=True))
    with torch.enable_grad():
        result = results(call.func(*args, **call.kwargs))[0]
    gradients = torch.autograd.grad(result, list(leaves.values()), gradient)
    return found | {name: leaf.detach() * own for (name, leaf), own in zip(leaves.items(), gradients, strict=True)}


def _least(effect: torch.Tensor, height: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield where a quarter of the effects are least.

    Tiles are `TILE` neighbours in a row, in so many rows: programs do not leave out less at a time.
    """
    for dim in range(effect.ndim):
        least = _quarter(effect.sum([k for k in range(effect.ndim) if k != dim], keepdim=True))
        if bool(least.any()):
            yield f"the least of dimension {dim}", least
    rows = effect.reshape(-1, *effect.shape[-2:]) if effect.ndim > 1 else effect.reshape(1, 1, -1)
    tile = min(height, rows.shape[1]), min(TILE, rows.shape[2])
    least = _quarter(torch.nn.functional.avg_pool2d(rows, tile, ceil_mode=True))
    wide = least.repeat_interleave(tile[0], 1)[:, : rows.shape[1]]
    wide = wide.repeat_interleave(tile[1], 2)[..., : rows.shape[2]]
    if bool(wide.any()):
        yield "the least tiles", wide.reshape(effect.shape)


def _quarter(sums: torch.Tensor) -> torch.Tensor:
    """Return which quarter of some sums is least; zeros do not count."""
    none = sums == 0.0
    count = int((~none).sum())
    order = sums.masked_fill(none, torch.inf).flatten().argsort()[: max(1, count // _PARTS) if count > 1 else 0]
    return torch.zeros_like(none).flatten().index_fill(0, order, True).view(none.shape)


def _without_gradient(effect: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the quarters of each dimension, or each index if there are fewer, of which no element has an effect.

    If no element at all has one, yield also indices at equal distances.
    """
    distances = () if bool(effect.any()) else _DISTANCES
    for dim, size in enumerate(effect.shape):
        count = min(_PARTS, size) if size > 1 else 0
        parts = [slice(size * k // count, size * (k + 1) // count) for k in range(count)]
        parts += [slice(at, None, step) for step in distances for at in (0, step // 2) if size >= 2 * step]
        for part in parts:
            mask = torch.zeros(size, dtype=torch.bool, device=effect.device)
            mask[part] = True
            mask = mask.view(-1, *[1] * (effect.ndim - 1 - dim))
            if not bool((effect * mask).any()):
                yield f"[{part.start}:{part.stop or ''}{f':{part.step}' if part.step else ''}] of dimension {dim}", mask
