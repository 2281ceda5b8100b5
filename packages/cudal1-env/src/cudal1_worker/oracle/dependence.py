"""On which parts of a reference's inputs, results and factors do its outputs depend least, for the inputs at hand?

Which rows, keys, taps or experts matter depends on the data, so that no fixed part of a dimension holds what a program
could leave out. Dependence is the gradient of a random sum of the outputs, over their tolerances, times the value, in
the float64 twin, where it does not fade to zero. Elements without one are no part of the least: either nothing is
computed from them (a slice, a mask), or a comparison decides about them. Nor are single elements with a large gradient,
which are small only in this draw: outputs show it if they are large.

Where no element of a tensor has a gradient, because a rounding or a comparison hides it, a second run takes it from
what enters these: from all values that only operators without a derivative read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import enable_reentrant_dispatch
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from cudal1_worker.oracle.calls import Calls, results, tensors
from cudal1_worker.oracle.models import Mode, as_dtype, copied
from cudal1_worker.oracle.omitted import TILE, operands, scores_of
from cudal1_worker.oracle.steps import Call, Place, is_view, name_of
from cudal1_worker.program.module import Attempt, lacks_memory

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_DISTANCES = (2, 8)
"""Distances of indices of a tensor without a gradient that are left out together."""
PARTS = 4
"""One of so many parts is what matters least."""
HALVES = 2
"""Of single elements less than half are little to leave out."""
_MANY = 8
"""Indices without an effect count if they are at least one in so many: the first query of causal attention has none."""
_ROUNDINGS = ("round", "floor", "ceil", "trunc", "sign", "sgn")
"""Functions whose derivative is zero, although they depend on their operand."""
_FINER = {"eighth": 8, "sixteenth": 16}
"""Further shares of a dimension of a product's operand, by name: less than a quarter may be what matters least."""


class Result(NamedTuple):
    """One of the tensors that a call returns."""

    number: int


Target = int | tuple[Place, int | str | Result]
"""The place of an input; or a call, with the position of a factor, the name of a mask, or a result."""


class Part(NamedTuple):
    """A part of a tensor."""

    target: Target
    words: str
    by_gradient: bool
    """Whether outputs depend on it, but least; otherwise it has no gradient."""
    scattered: bool = False
    """Whether it consists of single elements, not of indices or tiles."""
    one_of: int = PARTS
    """It is one of so many parts."""


def negligible_parts(
    oracle: Oracle, given: list[Any], allowed: list[torch.Tensor], shapes: Mapping[Target, tuple[int, ...]]
) -> dict[Part, torch.Tensor]:
    """Return the quarters of some tensors on which outputs depend least: of elements, and of each dimension's indices.

    Quarters of neighbouring indices without a gradient are parts, too, and all such indices of a result or an input,
    because an output may still depend on them: they are integers, or compared with a limit.

    Args:
        oracle: The oracle.
        given: The reference's inputs.
        allowed: Tolerances of each output's elements, flat.
        shapes: The tensors' shapes.

    Returns:
        A mask of each part, which broadcasts to the tensor's shape.
    """
    gradients = _effects(oracle, given, allowed, shapes)
    hidden = {target for target in shapes if target not in gradients or not bool(_effect_of(*gradients[target]).any())}
    behind = _effects(oracle, given, None, hidden) if hidden else {}
    found: dict[Part, torch.Tensor] = {}
    for target, shape in shapes.items():
        none = torch.zeros((), device=oracle.device).expand(shape)
        value, gradient = gradients.get(target, (none, none))
        effect, shown = _effect_of(value, gradient), behind.get(target, (value, gradient))
        found |= dict(_least(target, _effect_of(*shown), shown[1].abs()))
        whole = isinstance(target, int) or isinstance(target[1], Result)
        found |= {
            Part(target, words, False): mask for words, mask in _without_gradient(effect, value if whole else None)
        }
    return found


def _effect_of(value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return (value * gradient).abs().nan_to_num(posinf=0.0)


class Derivative(Mode):
    """Differentiates what operators compute, in place or not, also where the reference stops or replaces gradients.

    Each tensor has a shadow in the same memory, on which autograd sees the same operators, but no `no_grad`, `detach`
    or gradient of the reference's own.

    Args:
        device: Where the reference runs.
        ends: Whether to keep the values that only operators without a derivative read; a rounding has none then.
    """

    def __init__(self, device: torch.device, *, ends: bool = False) -> None:
        super().__init__()
        self._ends: dict[int, torch.Tensor] | None = {} if ends else None
        """Shadows of such values, by their identity."""
        self._is_copying = False
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        """What all watched values depend on."""
        self._shadows = WeakIdKeyDictionary()
        self._shadows[self._zero] = self._zero.detach().requires_grad_()
        self._values = WeakIdKeyDictionary()
        """What was written to a given place: that place may be a view, through which no gradient passes."""

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_copying:
            return func(*args, **kwargs)
        given, made = dict[int, torch.Tensor](), list[torch.Tensor]()

        def shadow(one: torch.Tensor) -> torch.Tensor:
            given[id(own := self._shadow(one))] = one
            return own

        def visible(own: torch.Tensor) -> torch.Tensor:
            if (one := given.get(id(own))) is not None:  # written to
                return one
            if type(own.grad_fn).__name__ == "NotImplemented":
                own = own.detach()
            if own.requires_grad and own.is_floating_point():
                own.register_hook(_finite)
            made.append(own)
            self._shadows[one := own.detach()] = own
            return one

        func = torch.ops.aten.alias.default if func is torch.ops.aten.detach.default else func
        own_args, own_kwargs = tree_map_only(torch.Tensor, shadow, (args, kwargs))
        if not given:
            return func(*own_args, **own_kwargs)
        if torch.Tag.inplace_view in func.tags:  # it writes to no memory, and the shadow is another tensor
            func(*args, **kwargs)
        # In place, a rounding without a gradient of its own leaves that of its operand.
        cut = self._ends is not None and name_of(func) in _ROUNDINGS
        with enable_reentrant_dispatch(), torch.set_grad_enabled(not cut):
            result = self._differentiated(func, own_args, own_kwargs, given)
        found = tree_map_only(torch.Tensor, visible, result)
        if self._ends is not None:
            read = [own for own in map(self._shadow, given.values()) if own.requires_grad]
            written = [own for own in read if func._schema.is_mutable and own is own_args[0]]
            if any(own.requires_grad for own in (*made, *written)):
                for own in read:
                    self._ends.pop(id(own), None)
            else:
                self._ends |= {id(own): own for own in read}
        return found

    def _differentiated(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[int, torch.Tensor]
    ) -> Any:
        """Execute an operator on shadows, in a form that autograd knows.

        It knows no results at a given place (`out=`), and no writing to one of several views that are made at once.
        """
        if places := [kwargs[name] for name in _places(func)]:
            for place, value in zip(places, tensors(_at_no_place(func, args, kwargs)), strict=True):
                if value.is_floating_point() or value.is_complex():
                    self._values[given[id(place)]] = value = value + self._shadow(self._zero)
                place.copy_(value)
            return places[0] if len(places) == 1 else tuple(places)
        result = func(*args, **kwargs)
        if is_view(func) and isinstance(result, list | tuple):
            return [args[0].as_strided(one.shape, one.stride(), one.storage_offset()) for one in result]
        return result

    def _shadow(self, one: torch.Tensor) -> torch.Tensor:
        if (own := self._shadows.get(one)) is None:
            self._shadows[one] = own = one.detach()
        return own

    def watch(self, value: torch.Tensor, note: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        """Pass a tensor's present value and its gradient to `note`, when `backward` knows it; call it in the mode."""
        if not self._shadow(value).requires_grad:
            value.add_(self._zero)
        self._is_copying = True  # a copy is no value that the reference reads
        own: torch.Tensor = self._values[value] if value in self._values else self._shadow(value)
        own.register_hook(partial(note, value.clone()))
        self._is_copying = False

    def backward(self, outputs: Sequence[torch.Tensor], allowed: Sequence[torch.Tensor] | None) -> None:
        """Differentiate a random sum of outputs over their tolerances, or of the ends over their norms."""
        if allowed is None:
            assert self._ends is not None
            returned = {id(own): own for own in map(self._shadow, outputs) if own.requires_grad}
            outputs = [one for one in (self._ends | returned).values() if one.is_floating_point()]
            allowed = [one.detach().norm().expand(one.numel()) for one in outputs]
        else:
            outputs = list(map(self._shadow, outputs))
        total = self._shadow(self._zero) * 0.0
        for output, limit in zip(outputs, allowed, strict=True):
            if output.requires_grad:
                signs = torch.randint_like(limit, 2).mul_(2.0).sub_(1.0)
                total = total + (output.reshape(-1) * (signs / limit)).nan_to_num().sum()
        total.backward()


def _places(func: Any) -> list[str]:
    """Return the names of the arguments at which an operator puts its results (`out=`)."""
    return [one.name for one in func._schema.arguments if one.is_out]


def _at_no_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Execute an operator, with results of their own if it has places for them."""
    if not (places := _places(func)):
        return func(*args, **kwargs)
    return func.overloadpacket(*args, **{name: one for name, one in kwargs.items() if name not in places})


def _finite(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.nan_to_num(0.0, 0.0, 0.0)


def _effects(
    oracle: Oracle, given: list[Any], allowed: list[torch.Tensor] | None, wanted: Container[Target]
) -> dict[Target, tuple[torch.Tensor, torch.Tensor]]:
    """Return `_gradients`, or nothing where a step writes to what a derivative needs, or has none."""
    for keeping in (nullcontext(), saved_tensors_hooks(torch.clone, lambda saved: saved)):  # copies take memory
        with Attempt(), keeping:
            return _gradients(oracle, given, allowed, wanted)
    return {}


def _gradients(
    oracle: Oracle, given: list[Any], allowed: list[torch.Tensor] | None, wanted: Container[Target]
) -> dict[Target, tuple[torch.Tensor, torch.Tensor]]:
    """Return inputs, and calls' results and operands, each with the gradient by it.

    Without `allowed`, it is that of the values that only operators without a derivative read.
    """
    derivative = Derivative(oracle.device, ends=allowed is None)
    found, calls = dict[Target, tuple[torch.Tensor, torch.Tensor]](), dict[Place, tuple[Call, torch.Tensor]]()
    values = [as_dtype(value, torch.float64) for value in copied(given)]

    def note(target: Target, call: Call | None, value: torch.Tensor, gradient: torch.Tensor) -> None:
        found[target] = value, gradient
        if call is not None and target == (call.place, Result(0)) and call.has_operands:
            calls[call.place] = call, gradient

    def watch(target: Target, value: torch.Tensor, call: Call | None = None) -> None:
        if target in wanted and (value.is_floating_point() or value.is_complex()):
            derivative.watch(value, partial(note, target, call))

    def keep(call: Call) -> Any:
        result = call.func(*call.args, **call.kwargs)
        for number, one in enumerate(tensors(result)):
            watch((call.place, Result(number)), one, call)
        return result

    with derivative:
        for place, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                watch(place, value)
        with Calls(keep):
            outputs = oracle.exact(oracle.models.wide, values)
    derivative.backward(outputs, allowed)
    for place, (call, gradient) in calls.items():
        found |= {(place, operand): pair for operand, pair in _of_operands(call, gradient).items()}
    return found


def _of_operands(call: Call, gradient: torch.Tensor) -> dict[int | str, tuple[torch.Tensor, torch.Tensor]]:
    """Return a call's operands and the gradients by them, and weights that stand for the mask of fused attention.

    It returns nothing for a call without a derivative.
    """
    found: dict[int | str, tuple[torch.Tensor, torch.Tensor]] = {}
    args, leaves = list(call.args), dict[int, torch.Tensor]()
    for name, operand in operands(call).items():
        if isinstance(name, int):
            args[name] = leaves[name] = operand.detach().requires_grad_()
            continue
        weights, change = scores_of(call).softmax(-1), gradient @ call.args[2].mT
        found[name] = weights, change - (weights * change).sum(-1, keepdim=True)
    try:
        with torch.enable_grad():
            # A sum, because torch imports sympy for the gradients of tensors: 0.7 s or, without byte code, 2.4 s.
            total = (results(_at_no_place(call.func, tuple(args), call.kwargs))[0] * gradient.conj()).sum().real
        gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    except RuntimeError as error:
        if call.kind == "product" or lacks_memory(error):
            raise
        return found
    return found | {name: (leaf.detach(), own) for (name, leaf), own in zip(leaves.items(), gradients, strict=True)}


def _least(target: Target, effect: torch.Tensor, gradient: torch.Tensor) -> Iterator[tuple[Part, torch.Tensor]]:
    """Yield where a quarter of the effects are least: of elements, each dimension's indices, and a factor's tiles.

    Of the elements it leaves out the quarter with the largest magnitudes of gradients.
    """
    least = _least_of(effect)
    found = [("the least elements", least & ~_least_of(torch.where(least, 1.0 / gradient, 0.0)), PARTS)]
    is_operand = not isinstance(target, int) and not isinstance(target[1], Result)
    if not isinstance(target, int) and target[1] == Result(0):
        found.append(("the least half of the elements", _least_of(effect, HALVES), HALVES))
    for dim in range(effect.ndim):
        sums = effect.sum([k for k in range(effect.ndim) if k != dim], keepdim=True)
        found.append((f"the least of dimension {dim}", _least_of(sums), PARTS))
        for name, parts in _FINER.items() if is_operand and sums.numel() >= max(_FINER.values()) else ():
            found.append((f"the least {name} of dimension {dim}", _least_of(sums, parts), parts))
    if is_operand:
        rows = effect.reshape(-1, *effect.shape[-2:]) if effect.ndim > 1 else effect.reshape(1, 1, -1)
        tile = min(TILE, rows.shape[1]), min(TILE, rows.shape[2])
        least = _least_of(torch.nn.functional.avg_pool2d(rows, tile, ceil_mode=True))
        wide = least.repeat_interleave(tile[0], 1)[:, : rows.shape[1]]
        wide = wide.repeat_interleave(tile[1], 2)[..., : rows.shape[2]]
        found.append(("the least tiles", wide.reshape(effect.shape), PARTS))
    for words, mask, parts in found:
        if bool(mask.any()):
            yield Part(target, words, by_gradient=True, scattered=words.endswith("elements"), one_of=parts), mask


def _least_of(sums: torch.Tensor, parts: int = PARTS) -> torch.Tensor:
    """Return which of some sums are least, one in so many; zeros do not count."""
    none = sums == 0.0
    count = int((~none).sum())
    count = max(1, count // parts) if count > 1 else 0
    least = sums.masked_fill(none, torch.inf).flatten().topk(count, largest=False, sorted=False).indices
    return torch.zeros_like(none).flatten().index_fill(0, least, True).view(none.shape)


def _without_gradient(effect: torch.Tensor, value: torch.Tensor | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the quarters of each dimension, or each index if there are fewer, of which no element has an effect.

    If no element at all has one, yield also indices at equal distances; otherwise, for the `value` of an input or a
    result, all indices of a dimension without an effect, and of these the quarters whose values are lowest and highest:
    where a maximum is taken, some are without an effect only in this draw. Of a factor they would be left out, and
    where a function is flat that shows nothing, although it shows for other inputs.
    """
    alive = effect != 0.0
    distances = () if bool(alive.any()) else _DISTANCES
    for dim, size in enumerate(effect.shape):
        count = min(PARTS, size) if size > 1 else 0
        parts = [slice(size * k // count, size * (k + 1) // count) for k in range(count)]
        parts += [slice(at, None, step) for step in distances for at in (0, step // 2) if size >= 2 * step]
        indices = alive.movedim(dim, 0).flatten(1).any(1) if alive.ndim > 1 else alive
        ones = [1] * (effect.ndim - 1 - dim)
        for part in parts:
            if not bool(indices[part].any()):
                mask = torch.zeros_like(indices)
                mask[part] = True
                words = f"[{part.start}:{part.stop or ''}{f':{part.step}' if part.step else ''}] of dimension {dim}"
                yield words, mask.view(-1, *ones)
        if value is not None and bool(indices.any()) and _MANY * int((~indices).sum()) >= size:
            yield f"what has no gradient of dimension {dim}", (~indices).view(-1, *ones)
            lines = value.abs() if value.is_complex() else value
            lines = lines.movedim(dim, 0).flatten(1) if lines.ndim > 1 else lines[:, None]
            for words, ends in (("lowest", lines.amax(1)), ("highest", -lines.amin(1))):
                count = min(max(1, size // PARTS), int((~indices).sum()))
                some = ends.masked_fill(indices, torch.inf).topk(count, largest=False, sorted=False).indices
                mask = torch.zeros_like(indices).index_fill(0, some, True)
                yield f"the {words} without a gradient of dimension {dim}", mask.view(-1, *ones)
