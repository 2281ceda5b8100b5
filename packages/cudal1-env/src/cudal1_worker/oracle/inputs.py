"""What draws of a task's inputs have in common: with an input that never changes, nothing above 1 is paid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from cudal1_worker.oracle.distributions import reals

DRAWS = 17
"""Draws that are compared, at most: a single coin is the same in all of them once in 65,536 times."""


def constant(values: Sequence[Any], others: Iterable[Sequence[Any]]) -> list[int]:
    """Places of the tensors with elements that are the same in a draw and in all others.

    What follows from them alone could be kept: outputs, or a part of the work.
    """
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor) and value.numel()]
    for other in others:
        places = [place for place in places if _same(values[place], other[place])]
        if not places:
            break
    return places


def all_known(values: Sequence[Any], known: Sequence[int]) -> bool:
    """Whether all tensors, or all floating-point ones of some, are at places of constant ones."""
    tensors = [
        (place, value) for place, value in enumerate(values) if isinstance(value, torch.Tensor) and value.numel()
    ]
    floating = [place for place, value in tensors if value.is_floating_point()]
    return set(floating or [place for place, _ in tensors]) <= set(known)


def repeat(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two draws under one seed are the same up to rounding (sums in threads may differ in order)."""
    pairs = zip(values, others, strict=True)
    return all(alike(one, other) for one, other in pairs if isinstance(one, torch.Tensor))


def _same(one: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and one.shape == other.shape and torch.equal(one, other)


def alike(first: torch.Tensor, second: Any, within: float = 1e-3) -> bool:
    """Whether two answers to the same question are the same up to rounding of all but a few elements.

    Args:
        first: One answer.
        second: The other.
        within: Over its scale; also the share of the elements that may lie further apart.
    """
    if not isinstance(second, torch.Tensor) or first.shape != second.shape:
        return False
    if not first.numel():
        return True
    one, other = (reals(part).double().nan_to_num() for part in (first, second))
    max_difference = within * one.abs().max()
    return bool(((one - other).abs_() > max_difference).sum() <= within * first.numel())
