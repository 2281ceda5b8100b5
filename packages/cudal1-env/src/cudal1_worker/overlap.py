"""Tests whether two tensors share an element, from addresses, shapes and strides alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MAX_WORK = 10_000
"""Maximum steps of numpy's search; pairs that need more count as overlapping."""


@dataclass(frozen=True)
class Place:
    """Memory layout of a tensor's elements."""

    address: int
    shape: Sequence[int]
    strides: Sequence[int]
    """In elements."""
    item_bytes: int

    @property
    def span_bytes(self) -> int:
        """Bytes from the start of the first element to the end of the last; strides must not be negative."""
        if 0 in self.shape:
            return 0
        return (1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))) * self.item_bytes

    @property
    def __array_interface__(self) -> dict[str, object]:
        """Array interface for numpy's overlap search; the memory itself is never read."""
        return {
            "version": 3,
            "shape": tuple(self.shape),
            "strides": tuple(stride * self.item_bytes for stride in self.strides),
            "typestr": f"|V{self.item_bytes}",
            "data": (self.address + 1, False),  # numpy refuses 0, which a worker may report
        }


def shared(one: Place, other: Place) -> bool:
    """Return whether any elements of two tensors overlap.

    >>> whole, columns = Place(4096, (4, 6), (6, 1), 4), Place(4096 + 12, (4, 3), (6, 1), 4)
    >>> shared(whole, columns), shared(columns, Place(4096, (4, 3), (6, 1), 4))
    (True, False)
    """
    if one.address + one.span_bytes <= other.address or other.address + other.span_bytes <= one.address:
        return False
    try:
        return bool(np.shares_memory(np.asarray(one), np.asarray(other), max_work=_MAX_WORK))
    except np.exceptions.TooHardError:
        return True
