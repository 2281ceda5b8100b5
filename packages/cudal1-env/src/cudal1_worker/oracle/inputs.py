"""What two draws of a task's inputs have in common: a task whose inputs never change is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def floating(values: Sequence[Any]) -> list[int]:
    """Places of the floating-point tensors that have elements."""
    return [
        place
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    ]


def agreeing(values: Sequence[Any], others: Sequence[Any]) -> list[int]:
    """Places of the floating-point tensors that are the same in two draws."""
    return [place for place in floating(values) if _same(values[place], others[place])]


def vary(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether a floating-point tensor differs in two draws; where there is none, whether any tensor does."""
    places = floating(values) or [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    return not places or not all(_same(values[place], others[place]) for place in places)


def repeat(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two draws under one seed are the same up to rounding (sums in threads may differ in order)."""
    pairs = zip(values, others, strict=True)
    return all(alike(one, other) for one, other in pairs if isinstance(one, torch.Tensor))


def _same(one: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and one.shape == other.shape and torch.equal(one, other)


def alike(first: torch.Tensor, second: Any) -> bool:
    """Whether two answers to the same question are the same up to rounding of all but a few elements."""
    if not isinstance(second, torch.Tensor) or first.shape != second.shape:
        return False
    if not first.numel():
        return True
    one, other = (part.double().nan_to_num() for part in (first, second))
    max_difference = 1e-3 * one.abs().max()
    return bool(((one - other).abs_() > max_difference).sum() <= 1e-3 * first.numel())
