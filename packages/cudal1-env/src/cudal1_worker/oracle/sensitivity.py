"""Input sensitivity: does the float64 answer change visibly if one element of an input changes?

Values change only as a task's inputs may differ between sets (`distributions`): zeros stay zero, positive tensors stay
positive, [0, 1] stays [0, 1]. An element of a tensor of few distinct values (labels, masks, indices) gets its value
from another set; a constant mask never changes, so none of its elements counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from cudal1_worker.oracle.distributions import is_movable, is_symmetric, is_unit, rows_sum_to_one
from cudal1_worker.oracle.models import copied

_VISIBLE = 2.0**-23
"""Minimum visible change of the answer, over its largest magnitude: float32's last place."""
_FAR = 40.0
"""A new value is this many standard deviations away, like a needle."""
_NEAR = 1e-3
"""If no value is negative, another new value is this share of the largest."""


class Variation:
    """One set of inputs, in which one element at a time changes."""

    def __init__(
        self, exact: Callable[[list[Any]], list[torch.Tensor]], values: list[Any], others: Iterable[list[Any]]
    ) -> None:
        self._exact = exact
        self._values = copied(values)
        self._places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self._far = {place: _far_values(self._values[place]) for place in self._places}
        self._others: dict[int, list[torch.Tensor]] = {place: [] for place in self._places if self._far[place] is None}
        for other in others if self._others else ():  # one after another: inputs may be large
            for place, kept in self._others.items():
                kept.append(other[place])
        self._answers = exact(self._values)

    def most(self) -> list[float]:
        """Return for each tensor the maximum share of influential elements: 0.5 for symmetric ones."""
        return [_most(self._values[place]) for place in self._places]

    def changes(self, tensor: int | None, position: int) -> bool:
        """Return whether the answer changes visibly for one of several new values of one element.

        Args:
            tensor: Number of the tensor; None changes nothing, and tests whether the answer is a function at all.
            position: Flat position of the element.
        """
        if tensor is None:
            return self._differs()
        place = self._places[tensor]
        value = self._values[place]
        index = tuple(int(place) for place in torch.unravel_index(torch.tensor(position), value.shape))
        before = value[index].clone()
        try:
            for new in self._new_values(place, index, before):
                value[index] = new
                if self._differs():
                    return True
        finally:
            value[index] = before
        return False

    def _new_values(self, place: int, index: tuple[int, ...], now: torch.Tensor) -> list[Any]:
        far = self._far[place]
        if far is not None:
            return [] if now == 0 else list(far)
        found = [other[index] for other in self._others[place]]
        return [new for new in found if not torch.equal(new, now)]

    def _differs(self) -> bool:
        return any(
            differ(before, after) for before, after in zip(self._answers, self._exact(self._values), strict=True)
        )


def differ(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether two answers differ visibly."""
    if not before.is_floating_point():
        return not torch.equal(before, after)
    finite = before.isfinite()
    if not torch.equal(finite, after.isfinite()):
        return True
    kept, now = before[finite], after[finite]
    return bool(kept.numel() and ((now - kept).abs().max() > _VISIBLE * kept.abs().max()))


def _far_values(value: torch.Tensor) -> tuple[float, ...] | None:
    """Return new values for an element, far from the others; None if they come from other sets."""
    if not is_movable(value):
        return None
    x = value.double()
    if is_unit(x):
        return (1.0, _NEAR)
    if float(x.min()) >= 0.0:
        return (float(x.max()) + _FAR * float(x.std()), _NEAR * float(x.max()))
    return (_FAR * float(x.std()), -_FAR * float(x.std()))


def _most(value: torch.Tensor) -> float:
    if not value.numel():
        return 0.0
    x = value.double() if value.is_floating_point() else value
    if x.is_floating_point() and is_unit(x) and rows_sum_to_one(x):
        return (x.shape[-1] - 1) / x.shape[-1]
    return 0.5 if is_symmetric(x) else 1.0
