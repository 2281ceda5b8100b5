"""Checks a task's inputs, and compares draws: with an input that never changes, the judge pays nothing above 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from cudal1_worker.oracle.distributions import reals

_PART = 1 << 26
"""Elements that are compared at a time."""
DRAWS = 17
"""Maximum draws to compare: one random bit is the same in all of them once in 65,536 times."""


def nested(values: Sequence[Any]) -> int | None:
    """Return the position of the first value that is no tensor and contains one; None if there is none."""
    for place, value in enumerate(values):
        if not isinstance(value, torch.Tensor) and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            return place
    return None


def constant(values: Sequence[Any], others: Iterable[Sequence[Any]]) -> list[int]:
    """Return the positions of the tensors that are the same in all draws.

    A program could keep what depends on them alone: outputs, or a part of the work. Empty tensors do not count.
    """
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor) and value.numel()]
    for other in others:
        places = [place for place in places if _same(values[place], other[place])]
        if not places:
            break
    return places


def all_known(values: Sequence[Any], known: Sequence[int]) -> bool:
    """Return whether all floating-point tensors (without any: all tensors) are at the positions `known`."""
    tensors = [
        (place, value) for place, value in enumerate(values) if isinstance(value, torch.Tensor) and value.numel()
    ]
    floating = [place for place, value in tensors if value.is_floating_point()]
    return set(floating or [place for place, _ in tensors]) <= set(known)


def versions(values: Sequence[Any]) -> list[int]:
    """Return how often each tensor was written to; 0 for tensors made in inference mode, and for other values."""
    return [value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0 for value in values]


def _same(one: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and one.shape == other.shape and torch.equal(one, other)


def alike(first: torch.Tensor, second: Any, within: float = 1e-3) -> bool:
    """Return whether two tensors are the same up to rounding, except for a few elements.

    Args:
        first: One tensor.
        second: The other.
        within: Maximum difference over the largest magnitude; also the share of elements that may exceed it.
    """
    if not isinstance(second, torch.Tensor) or first.shape != second.shape:
        return False
    if not first.numel():
        return True
    parts = list(zip(*(reals(one).reshape(-1).split(_PART) for one in (first, second)), strict=True))
    max_difference = within * torch.stack([_wide(one).abs_().amax() for one, _ in parts]).amax()
    differing = [((_wide(one) - _wide(other)).abs_() > max_difference).sum() for one, other in parts]
    return bool(torch.stack(differing).sum() <= within * first.numel())


def _wide(part: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64 without infinities and NaN."""
    return part.to(torch.float64, copy=True).nan_to_num_()


def all_alike(first: Sequence[Any], second: Sequence[Any], within: float = 1e-3) -> bool:
    """Return whether all tensors of two sequences are `alike`."""
    pairs = zip(first, second, strict=True)
    return all(alike(one, other, within) for one, other in pairs if isinstance(one, torch.Tensor))
