"""On which parts of a call's result do a reference's outputs depend least, for the inputs at hand?

Which rows, keys or experts matter depends on the data, so that no fixed part of a dimension holds what a program could
leave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker import layout
from cudal1_worker.oracle.calls import Calls, results
from cudal1_worker.oracle.models import as_dtype, copied
from cudal1_worker.oracle.steps import Call

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

Place = tuple[str, int]
"""Name of a call, and its number among the calls of that name."""
_CHUNK = 32
"""Neighbours in a row that count together for where outputs depend least: programs do not leave out less at a time."""
_PARTS = 4
"""One of so many parts is what matters least."""


def negligible_parts(
    oracle: Oracle, given: list[Any], allowed: list[torch.Tensor], steps: Sequence[Place]
) -> dict[Place | None, torch.Tensor]:
    """Return for some steps of the float64 twin the parts of their results on which outputs depend least.

    Dependence is the gradient of a random sum of the outputs, over their tolerances, times the result. Steps
    without a gradient are left out, and so are elements without one: nothing is computed from them.

    Args:
        oracle: The oracle.
        given: The reference's inputs.
        allowed: Tolerances of each output's elements, flat.
        steps: Names of the steps, each with its number among those of that name.

    Returns:
        A mask of the quarter of each result on which outputs depend least.
    """
    values = [as_dtype(value, torch.float64) for value in copied(given)]
    values = [v.requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    kept = _Kept(steps)
    try:
        with torch.enable_grad(), oracle.widened or nullcontext(), Calls(change=kept):
            outputs = layout.flatten(oracle.models.wide(*values))
            total = torch.zeros((), device=oracle.device)
            for output, limit in zip(outputs, allowed, strict=True):
                if output.requires_grad:
                    signs = torch.randint_like(limit, 2).mul_(2.0).sub_(1.0)
                    total = total + (output.reshape(-1) * (signs / limit)).nan_to_num().sum()
        known = {place: result for place, result in kept.found.items() if result.requires_grad}
        gradients = torch.autograd.grad(total, list(known.values()), allow_unused=True)
    except Exception:  # too little memory, or a step without a gradient
        return {}
    finally:
        torch.set_default_dtype(before)
    pairs = zip(known.items(), gradients, strict=True)
    found = {place: _quarter(result.detach() * own) for (place, result), own in pairs if own is not None}
    return {place: mask for place, mask in found.items() if bool(mask.any())}


class _Kept:
    """Executes calls and keeps the (first) results of some.

    Args:
        wanted: The calls' names, each with its number among those of that name.
    """

    def __init__(self, wanted: Container[Place]) -> None:
        self.found: dict[Place, torch.Tensor] = {}
        self._wanted = wanted
        self._of_name = Counter[str]()

    def __call__(self, call: Call) -> Any:
        """Execute one call."""
        result = call.func(*call.args, **call.kwargs)
        place = call.name, self._of_name[call.name]
        self._of_name[call.name] += 1
        if place in self._wanted and (own := results(result)):
            self.found[place] = own[0]
        return result


def _quarter(effect: torch.Tensor) -> torch.Tensor:
    """Return where a quarter of the effects are least, by `_CHUNK` neighbours in a row; zeros do not count."""
    size = effect.abs().nan_to_num(posinf=0.0)
    width = size.shape[-1] if size.ndim else 1
    chunk = min(_CHUNK, width)
    padded = torch.nn.functional.pad(size.reshape(-1, width), (0, -width % chunk))
    sums = padded.view(len(padded), -1, chunk).sum(-1)
    some = sums[sums > 0.0].sort().values
    least = (sums > 0.0) & (sums <= some[len(some) // _PARTS - 1] if len(some) >= _PARTS else sums < 0.0)
    return least.repeat_interleave(chunk, 1)[:, :width].reshape(effect.shape)
