"""Choices that depend only on a label, not on Python's hash or version, or on earlier draws."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from math import cos, log, pi, sqrt
from typing import TypeVar

_TWO_PI = 2.0 * pi
_Item = TypeVar("_Item")


class Draw:
    """A stream of choices named by labels.

    It uses only `random.Random.random`, the one method whose sequence Python promises to keep.

    Args:
        labels: Names of the stream; other labels give an unrelated stream.
    """

    def __init__(self, *labels: object) -> None:
        self._label = "/".join(str(label) for label in labels)
        digest = hashlib.sha256(self._label.encode()).digest()
        self._next = random.Random(int.from_bytes(digest[:16], "little")).random

    def child(self, *labels: object) -> Draw:
        """Return an independent stream for a part; its draws do not affect this stream."""
        return Draw(self._label, *labels)

    def real(self) -> float:
        """Return a number in [0, 1)."""
        return self._next()

    def normal(self) -> float:
        """Return a number from the standard normal distribution."""
        return sqrt(-2.0 * log(1.0 - self._next())) * cos(_TWO_PI * self._next())

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self._next() < share

    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return low + int(self._next() * (high - low + 1))

    def one(self, items: Sequence[_Item]) -> _Item:
        """Return one of the items."""
        return items[int(self._next() * len(items))]

    def some(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """Return `count` different items, in random order."""
        left = list(items)
        return [left.pop(int(self._next() * len(left))) for _ in range(count)]
