"""Which bytes of a call's outputs are read: checked descriptors, and plans made before the clock runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge.device.base import Output, parse_outputs
from cudal1_env.judge.device.tensors import Expected, decode

Addresses = npt.NDArray[np.uint64]


class Plan:
    """Elements of all outputs of one call, at flat positions.

    Args:
        outputs: Form of the outputs; their addresses do not matter.
        positions: Flat positions of elements, for each output.
    """

    def __init__(self, outputs: Sequence[Output], positions: Sequence[npt.NDArray[np.int64]]) -> None:
        self._strides = [one.strides for one in outputs]
        self.counts = [one.size for one in positions]
        self.dtypes = [output.expected.dtype for output in outputs]
        self.item_bytes = [output.expected.item_bytes for output in outputs]
        self._which = np.repeat(np.arange(len(outputs)), self.counts)
        offsets = [one.offsets(where) for one, where in zip(outputs, positions, strict=True)]
        self._offsets = np.concatenate(offsets).astype(np.uint64) if offsets else np.empty(0, dtype=np.uint64)
        self.sizes = np.array(self.item_bytes, dtype=np.uint64)[self._which]
        """Bytes of each element, shape (elements,)."""
        ends = np.cumsum(self.sizes)
        self.starts = (ends - self.sizes).astype(np.uint64)
        """Where each element begins in the bytes that are read, shape (elements,)."""
        self.size_bytes = int(ends[-1]) if ends.size else 0
        borders = np.cumsum(np.array(self.counts) * np.array(self.item_bytes))
        self.borders = borders.astype(np.int64)
        """Where the elements of each output end in the bytes that are read, shape (outputs,)."""

    def fits(self, outputs: Sequence[Output]) -> bool:
        """Whether outputs have the form that the plan was made for; shapes and dtypes are the task's in any case."""
        return [one.strides for one in outputs] == self._strides

    def sources(self, addresses: Addresses) -> Addresses:
        """Addresses of the elements, shape (elements,), where output k begins at `addresses[k]`."""
        return self._offsets + addresses[self._which]

    def split(self, data: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.generic]]:
        """Return each output's elements from the bytes that were read."""
        parts = np.split(data[: self.size_bytes], self.borders[:-1])
        return [decode(part, dtype) for part, dtype in zip(parts, self.dtypes, strict=True)]


class Reader:
    """Reads one arm's descriptors. Those that differ from the last checked ones in their addresses only need no check.

    Args:
        expected: What the outputs must look like.
        device_code: On which kind of device they must lie.
    """

    def __init__(self, expected: tuple[Expected, ...], device_code: int) -> None:
        self.expected = expected
        self._code = device_code
        self._words: Addresses | None = None
        self.known: list[Output] = []
        """The outputs that were checked last; empty before any were."""
        self.page_bytes = wire.DESCRIPTOR_OFFSET + len(expected) * wire.DESCRIPTOR.size

    def quickly(self, page: bytes) -> list[Output]:
        """Return the outputs that a copy of the reply page describes: at once if only addresses are new.

        Raises:
            Contract: The outputs are not what the task's outputs are.
        """
        if self._words is None or _count(page) != len(self.expected):
            return self.outputs(page)
        rows = _rows(page, len(self.expected))
        if not np.array_equal(rows[:, 1:], self._words):
            return self.outputs(page)
        return [Output(int(row[0]), known.strides, known.expected) for row, known in zip(rows, self.known, strict=True)]

    def outputs(self, page: bytes) -> list[Output]:
        """Check a copy of the reply page, and remember its form.

        Raises:
            Contract: The outputs are not what the task's outputs are.
        """
        outputs = parse_outputs(page, self.expected, self._code)
        self._words = _rows(page, len(self.expected))[:, 1:].copy()
        self.known = outputs
        return outputs


def _count(page: bytes) -> int:
    return int.from_bytes(page[8 * wire.OUTPUTS : 8 * wire.OUTPUTS + 8], "little")


def _rows(page: bytes, count: int) -> Addresses:
    """The first descriptors of a page, shape (count, words)."""
    words = np.frombuffer(page, dtype=np.uint64, count=count * wire.DESCRIPTOR_WORDS, offset=wire.DESCRIPTOR_OFFSET)
    return words.reshape(count, wire.DESCRIPTOR_WORDS)
