"""The CPU device: how outputs are read, how caches are emptied. The one module that a GPU replaces."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge import memory
from cudal1_env.judge.numerics import Expected, decode
from cudal1_env.judge.workers import Worker

_DEVICE_CODE = 0


class Contract(Exception):
    """Outputs are not what the task's contract says; the text says what was expected and what came."""


@dataclass(frozen=True)
class Output:
    """Where a worker says that one output lies; checked against what the task expects."""

    address: int
    strides: tuple[int, ...]
    """In elements."""
    expected: Expected

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element."""
        reach = sum((n - 1) * s for n, s in zip(self.expected.shape, self.strides, strict=True))
        return (reach + 1) * self.expected.item_bytes if self.expected.size else 0


def parse_outputs(page: bytes, expected: tuple[Expected, ...]) -> list[Output]:
    """Check a copy of the reply page against the contract.

    Args:
        page: The reply page, copied once after the worker was frozen.
        expected: What the task's outputs must look like.

    Raises:
        Contract: Number, device, dtype or shape differ, or strides reach backwards.
    """
    count = int.from_bytes(page[8 * wire.OUTPUTS : 8 * wire.OUTPUTS + 8], "little")
    if count != len(expected):
        raise Contract(f"expected {len(expected)} output tensors, got {count}")
    outputs: list[Output] = []
    for position, want in enumerate(expected):
        offset = wire.DESCRIPTOR_OFFSET + position * wire.DESCRIPTOR.size
        address, code, rank, device, *rest = (int(word) for word in wire.DESCRIPTOR.unpack_from(page, offset))
        shape, strides = tuple(rest[:rank]), tuple(rest[wire.MAX_DIMENSIONS : wire.MAX_DIMENSIONS + rank])
        dtype = wire.DTYPES[code] if code < len(wire.DTYPES) else f"unknown dtype {code}"
        if rank > wire.MAX_DIMENSIONS or shape != want.shape:
            raise Contract(f"expected shape {list(want.shape)} for output {position}, got {list(shape)}")
        if dtype != want.dtype:
            raise Contract(f"expected dtype {want.dtype} for output {position}, got {dtype}")
        if device != _DEVICE_CODE:
            raise Contract(f"expected output {position} on the CPU, got another device")
        if any(stride < 0 for stride in strides):
            raise Contract(f"expected strides of zero or more for output {position}, got {list(strides)}")
        outputs.append(Output(address, strides, want))
    return outputs


def sample(worker: Worker, output: Output, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    """Read output elements at flat positions (in C order of the shape) from a frozen worker.

    Raises:
        Contract: The memory that the worker named is not there.
    """
    shape = output.expected.shape
    indices = np.unravel_index(positions, shape) if shape else ()
    offsets = np.zeros(positions.shape, dtype=np.int64)
    for index, stride in zip(indices, output.strides, strict=True):
        offsets += index.astype(np.int64) * stride
    addresses = (np.uint64(output.address) + (offsets * output.expected.item_bytes).astype(np.uint64)).astype(np.uint64)
    try:
        return decode(memory.gather(worker.pid, addresses, output.expected.item_bytes), output.expected.dtype)
    except memory.Unreadable as error:
        raise Contract(f"expected readable outputs: {error}") from None


def whole(worker: Worker, output: Output) -> npt.NDArray[np.generic]:
    """Read a whole output from a frozen worker, flat, in C order of its shape.

    Raises:
        Contract: The memory that the worker named is not there, or is not the worker's own.
    """
    want = output.expected
    if not want.size:
        return decode(np.empty(0, dtype=np.uint8), want.dtype)
    if output.span_bytes > 16 * want.size * want.item_bytes + 4096:
        raise Contract(f"expected an output without large holes, strides {list(output.strides)} span too much")
    # Where the reference itself returns an input, so may a candidate; inputs lie in shared, sealed memory.
    if not want.aliases and not memory.is_private(memory.private_ranges(worker.pid), output.address, output.span_bytes):
        raise Contract("expected outputs in memory of the process's own, they lie in a shared or unmapped range")
    try:
        data = memory.read(worker.pid, output.address, output.span_bytes)
    except memory.Unreadable as error:
        raise Contract(f"expected readable outputs: {error}") from None
    items = data.view(f"V{want.item_bytes}")
    strides = tuple(stride * want.item_bytes for stride in output.strides)
    laid = np.lib.stride_tricks.as_strided(items, shape=want.shape, strides=strides, writeable=False)
    return decode(np.ascontiguousarray(laid).reshape(-1).view(np.uint8), want.dtype)


class CoreCache:
    """Empties the private caches of the arms' core, so that neither arm finds what the other left.

    The judge's thread moves to that core for a moment, while both arms are frozen, and writes more than its L2.

    Args:
        core: The arms' core; None does nothing (no core could be fixed).
        home: Cores to which the thread returns.
    """

    def __init__(self, core: int | None, home: frozenset[int]) -> None:
        self._core = core
        self._home = home
        self._block = np.zeros(2 * level2_bytes(core or 0), dtype=np.uint8)

    def empty(self) -> None:
        """Write the block on the arms' core."""
        if self._core is None:
            return
        os.sched_setaffinity(0, {self._core})
        self._block += 1
        os.sched_setaffinity(0, self._home)


def level2_bytes(core: int) -> int:
    """Size of a core's L2 cache; 2 MiB where the system does not say."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{core}/cache/index2/size") as file:
            text = file.read().strip()
    except OSError:
        return 2 << 20
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]] if text[-1] in "KMG" else int(text)


def name() -> str:
    """Model of the CPU, as the system tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
