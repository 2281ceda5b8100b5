"""A gymnasium space for program text.

gymnasium's own `Text` accepts only the characters of a set that is stored whole; real programs hold any
character, and a stored set of all of Unicode takes hundreds of megabytes.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Text
from gymnasium.spaces.utils import (
    flatten,
    flatten_space,  # pyright: ignore[reportUnknownVariableType]  # annotated in part
    unflatten,
)
from numpy.typing import NDArray

SAMPLE_CHARS = 64
"""Samples are at most this long, unless the space demands more: they serve checks, not search."""

END = 0x110000
"""Pads flattened text: one more than the largest code point."""

_SAMPLED = string.ascii_letters + string.digits + string.punctuation + " \n\t"


class SourceText(Text):
    r"""Any text that UTF-8 can hold (no lone surrogates), up to a length in characters.

    Samples are short and printable. Two spaces are equal when their lengths are.

    >>> space = SourceText(1000)
    >>> "class ModelNew: ...  # caf\u00e9, \u03c0" in space
    True
    >>> "x" * 1001 in space, "\ud800" in space, 3 in space
    (False, False, False)
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        """Make the space.

        Args:
            max_length: Longest text, in characters.
            min_length: Shortest text, in characters.
            seed: Seed of `sample`.
        """
        super().__init__(max_length, min_length=min_length, charset=_SAMPLED, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draw a short printable text; `mask` and `probability` are as in gymnasium's `Text`."""
        if mask is None and probability is None:
            longest = min(self.max_length, max(self.min_length, SAMPLE_CHARS))
            mask = (int(self.np_random.integers(self.min_length, longest + 1)), None)
        return super().sample(mask=mask, probability=probability)

    def contains(self, x: Any) -> bool:
        """Tell whether `x` is text of an allowed length that UTF-8 can hold."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length and encodable(x)

    def __repr__(self) -> str:
        """Show the lengths."""
        return f"SourceText({self.min_length}, {self.max_length})"

    def __eq__(self, other: object, /) -> bool:
        """Compare the lengths."""
        return (
            isinstance(other, SourceText)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )


def encodable(text: str) -> bool:
    """Tell whether UTF-8 can hold `text`: whether it is free of lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Flattening goes by code point, because the inherited form goes by place in the stored set.


@flatten.register(SourceText)
def _flatten(space: SourceText, x: str) -> NDArray[np.int32]:
    codes = np.full(space.max_length, END, dtype=np.int32)
    codes[: len(x)] = np.frombuffer(x.encode("utf-32-le"), dtype="<i4")
    return codes


@unflatten.register(SourceText)
def _unflatten(space: SourceText, x: NDArray[np.int32]) -> str:
    return np.asarray(x[x < END], dtype="<i4").tobytes().decode("utf-32-le")


@flatten_space.register(SourceText)
def _flatten_space(space: SourceText) -> Box:
    return Box(low=0, high=END, shape=(space.max_length,), dtype=np.int32)
