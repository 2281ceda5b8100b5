"""Choices that depend on a label and on nothing else: not on Python's hash, its version, or what was drawn before."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


class Draw:
    """A stream of choices named by labels.

    Only `random.Random.random` is used, the one method whose sequence Python promises to keep.

    Args:
        labels: What the choices are for; other labels give an unrelated stream.
    """

    def __init__(self, *labels: object) -> None:
        self._label = "/".join(str(label) for label in labels)
        digest = hashlib.sha256(self._label.encode()).digest()
        self._next = random.Random(int.from_bytes(digest[:16], "little")).random

    def child(self, *labels: object) -> Draw:
        """Return the stream of a part: what is drawn there changes nothing here."""
        return Draw(self._label, *labels)

    def real(self) -> float:
        """Return a number in [0, 1)."""
        return self._next()

    def normal(self) -> float:
        """Return a number from the standard normal distribution."""
        return math.sqrt(-2.0 * math.log(1.0 - self._next())) * math.cos(2.0 * math.pi * self._next())

    def chance(self, share: float) -> bool:
        """Return True in this share of cases."""
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
