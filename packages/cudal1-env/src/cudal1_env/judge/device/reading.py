"""Reading a call's outputs: checked descriptors, and plans of the bytes to read, made before the clock runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge.device.base import Output, parse_outputs
from cudal1_env.judge.device.tensors import Expected, decode

Addresses = npt.NDArray[np.uint64]

_MAX_CHECKED = 256
"""Maximum number of cached descriptors; torch's allocator reuses the same few addresses."""


class Plan:
    """Elements to read from all outputs of one call, at flat positions."""

    def __init__(self, outputs: Sequence[Output], positions: Sequence[npt.NDArray[np.int64]]) -> None:
        self._strides = [one.strides for one in outputs]
        self.counts = [one.size for one in positions]
        self.dtypes = [output.expected.dtype for output in outputs]
        self.item_bytes = [output.expected.item_bytes for output in outputs]
        self.which = np.repeat(np.arange(len(outputs)), self.counts)
        """Output of each element, shape (elements,)."""
        offsets = [one.offsets(where) for one, where in zip(outputs, positions, strict=True)]
        self.offsets: Addresses = np.concatenate(offsets).astype(np.uint64) if offsets else np.empty(0, np.uint64)
        """Offset of each element in its output, in bytes, shape (elements,)."""
        self.sizes = np.array(self.item_bytes, dtype=np.uint64)[self.which]
        """Bytes of each element, shape (elements,)."""
        ends = np.cumsum(self.sizes)
        self.starts = (ends - self.sizes).astype(np.uint64)
        """Offset of each element in the bytes read, shape (elements,)."""
        self.size_bytes = int(ends[-1]) if ends.size else 0
        borders = np.cumsum(np.array(self.counts) * np.array(self.item_bytes))
        self.borders = borders.astype(np.int64)
        """End of each output's elements in the bytes read, shape (outputs,)."""
        self.prepared: object = None
        """Cache of the device's memory class."""

    def fits(self, outputs: Sequence[Output]) -> bool:
        """Return whether outputs have the plan's strides; shapes and dtypes are fixed by the task."""
        return [one.strides for one in outputs] == self._strides

    def sources(self, addresses: Addresses) -> Addresses:
        """Return the addresses of the elements, shape (elements,), if output k begins at `addresses[k]`."""
        return self.offsets + addresses[self.which]

    def split(self, data: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.generic]]:
        """Return each output's elements from the bytes read."""
        parts = np.split(data[: self.size_bytes], self.borders[:-1])
        return [decode(part, dtype) for part, dtype in zip(parts, self.dtypes, strict=True)]


class Reader:
    """Parses one arm's output descriptors; known ones are not checked again."""

    def __init__(self, expected: tuple[Expected, ...], device_code: int) -> None:
        self.expected = expected
        self._code = device_code
        self._checked: dict[bytes, list[Output]] = {}
        self.known: list[Output] = []
        """The latest outputs; empty before the first."""
        self.page_bytes = wire.DESCRIPTOR_OFFSET + len(expected) * wire.DESCRIPTOR.size

    def outputs(self, page: bytes) -> list[Output]:
        """Return the outputs that a copy of the reply page describes.

        Raises:
            Contract: The outputs break the task's contract.
        """
        described = page[8 * wire.OUTPUTS :]
        outputs = self._checked.get(described)
        if outputs is None:
            outputs = parse_outputs(page, self.expected, self._code)
            if len(self._checked) >= _MAX_CHECKED:
                self._checked.clear()
            self._checked[described] = outputs
        self.known = outputs
        return outputs

    def located(self, page: bytes) -> list[Output]:
        """Return outputs of the form last known, at the addresses that a copy of the reply page gives; unchecked."""
        words = np.frombuffer(page, dtype=np.uint64)[wire.ADDRESS :: wire.DESCRIPTOR_WORDS].tolist()
        return [Output(address, one.strides, one.expected) for address, one in zip(words, self.known, strict=False)]
