"""Gymnasium spaces for program text, and for observations that contain it.

gymnasium's `Text` accepts only characters of a stored set. Programs may contain any character, and a set of all of
Unicode takes hundreds of megabytes. gymnasium's shared memory for `AsyncVectorEnv` does not support `Sequence`, and
reads text only once, before any is written, so `ObservationSpace` implements its own.
"""

from __future__ import annotations

import multiprocessing
import pickle
import string
from collections.abc import Iterator, Mapping
from ctypes import c_uint8
from types import ModuleType
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Box, Dict, Space, Text
from gymnasium.spaces.utils import (
    flatten,
    flatten_space,  # pyright: ignore[reportUnknownVariableType]  # annotated in part
    unflatten,
)
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.vector.utils.shared_memory import (
    create_shared_memory,  # pyright: ignore[reportUnknownVariableType]  # annotated in part
    read_from_shared_memory,
    write_to_shared_memory,
)
from numpy.typing import NDArray

SAMPLE_CHARS = 64
"""Maximum length of a sample, unless the space requires longer text: samples serve checks, not search."""

END = 0x110000
"""Pads flattened text: one more than the largest code point."""

_SAMPLED = string.ascii_letters + string.digits + string.punctuation + " \n\t"


class SourceText(Text):
    r"""Space of all text that UTF-8 can encode (no lone surrogates), up to a length in characters.

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
        """Return whether `x` is text of an allowed length that UTF-8 can encode."""
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
    """Return whether UTF-8 can encode `text`: it contains no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Text is flattened to code points; the inherited form uses positions in the stored set.


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


class ObservationSpace(Dict):
    """A `Dict` whose observations also work in shared memory, which `make_vec` needs in async mode."""

    def __init__(self, spaces: dict[str, Space[Any]], *, max_bytes: int) -> None:
        """Make the space.

        Args:
            spaces: By key, as for `Dict`.
            max_bytes: Largest pickled observation.
        """
        super().__init__(spaces)  # pyright: ignore[reportUnknownMemberType]  # annotated in part
        self.max_bytes = max_bytes


class SharedObservations(Mapping[str, Any]):
    """The latest observation of each sub-environment, read from shared memory on access.

    `AsyncVectorEnv` reads shared memory once and copies the result in each step: the copy of this mapping is a plain
    batch of that moment. With `copy=False` the agent gets the mapping itself.
    """

    def __init__(self, space: ObservationSpace, memory: NDArray[np.uint8]) -> None:
        """Read `memory`: a row of bytes for each sub-environment."""
        self._space = space
        self._memory = memory

    def batch(self) -> dict[str, Any]:
        """Return the observations, batched as in gymnasium; zeros and empty texts before the first."""
        n = len(self._memory)
        empty = cast("dict[str, Any]", create_empty_array(self._space, n=n))
        lengths = [int(row[:_LENGTH].view(np.int64)[0]) for row in self._memory]
        if not all(lengths):
            return empty
        rows = [
            pickle.loads(row[_LENGTH : _LENGTH + length].tobytes())
            for row, length in zip(self._memory, lengths, strict=True)
        ]
        return cast("dict[str, Any]", concatenate(self._space, rows, cast("Any", empty)))

    def __getitem__(self, key: str) -> Any:
        return self.batch()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._space.spaces)

    def __len__(self) -> int:
        return len(self._space.spaces)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return self.batch()


_LENGTH = 8
"""Bytes before an observation that hold its length."""


@create_shared_memory.register(ObservationSpace)
def _create_shared(space: ObservationSpace, n: int = 1, ctx: ModuleType = multiprocessing) -> Any:
    return ctx.Array(c_uint8, n * (_LENGTH + space.max_bytes))


@read_from_shared_memory.register(ObservationSpace)
def _read_shared(space: ObservationSpace, shared_memory: Any, n: int = 1) -> Any:
    return SharedObservations(space, np.frombuffer(shared_memory.get_obj(), dtype=np.uint8).reshape(n, -1))


@write_to_shared_memory.register(ObservationSpace)
def _write_shared(space: ObservationSpace, index: int, value: Any, shared_memory: Any) -> None:
    data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
    if len(data) > space.max_bytes:
        raise ValueError(f"an observation takes {len(data)} bytes; the space allows {space.max_bytes}")
    size = _LENGTH + space.max_bytes
    row = np.frombuffer(shared_memory.get_obj(), dtype=np.uint8)[index * size : (index + 1) * size]
    row[_LENGTH : _LENGTH + len(data)] = data
    row[:_LENGTH] = np.frombuffer(np.int64(len(data)).tobytes(), dtype=np.uint8)
