"""The CPU device: inputs in sealed memory, outputs read from the frozen worker, caches emptied by writing."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge.device import memory
from cudal1_env.judge.device.base import ArmMemory, Contract, Device, Output
from cudal1_env.judge.device.memory import SharedBlock
from cudal1_env.judge.device.reading import Plan
from cudal1_env.judge.device.tensors import decode

Bytes = npt.NDArray[np.uint8]
_NOISE_BYTES = 1 << 20

_FILLED_BYTES = 64 << 20
"""Bytes filled to time writing; larger than any cache."""
_FILLS = 3
"""Repetitions of the fill; the median counts."""


class CpuDevice(Device):
    """The CPU: one core for both arms.

    Args:
        core: The arms' core; None if there is no separate core, and then no caches are emptied.
    """

    name: Literal["cpu", "cuda"] = "cpu"
    code = 0
    chained = False
    prepares_ahead = False
    neighbour_allowance = 1.05
    """Arms share the L3 cache, which is not emptied: each arm's data there slows the other by some per cent."""
    at_once_bytes = 16 << 20

    def __init__(self, core: int | None) -> None:
        self._core = core
        self.model = cpu_info().get("model name") or platform.processor() or platform.machine()
        self.environment: dict[str, str] = {}
        self._block = np.zeros(2 * level2_bytes(core or 0), dtype=np.uint8)
        self._noise = np.random.default_rng().integers(0, 256, _NOISE_BYTES, dtype=np.uint8)
        self._bits: Bytes = (self._noise & 1).astype(np.uint8)
        self._fill_ms: list[float] = []

    def noise(self, dtype: str) -> Bytes:
        """Return a block of random bytes that are valid elements of a dtype."""
        return self._bits if dtype == "bool" else self._noise

    def settle(self) -> None:
        """Empty the private caches of the arms' core, so that no arm finds the other's data.

        While both arms are frozen, the judge's thread moves to that core and writes more than its L2 holds.
        """
        if self._core is None:
            return
        home = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._core})
        self._block += 1
        os.sched_setaffinity(0, home)

    def write_ms(self, size_bytes: int) -> float:
        """Return the time at the rate at which this process fills uncached memory, the median of three fills."""
        if not self._fill_ms:
            block = np.zeros(_FILLED_BYTES, dtype=np.uint8)
            for value in range(_FILLS):
                began = time.perf_counter()
                block.fill(value)
                self._fill_ms.append(1e3 * (time.perf_counter() - began))
        return size_bytes / _FILLED_BYTES * statistics.median(self._fill_ms)

    def memory(self, pid: int, input_bytes: int, output_bytes: int, work_bytes: int) -> CpuMemory:
        return CpuMemory(self, pid, input_bytes)

    def block(self, size_bytes: int) -> SharedBlock:
        return SharedBlock(size_bytes, sealed=False)

    def copy(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return array.copy()

    def view(self, raw: Bytes, dtype: Literal["float64", "float32", "int64"]) -> npt.NDArray[np.generic]:
        return raw.view(dtype)

    def take(
        self, wanted: Sequence[tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]]
    ) -> list[npt.NDArray[np.generic]]:
        return [values[positions] for values, positions in wanted]

    def to_host(self, array: Bytes) -> Bytes:
        return array.copy()


class CpuMemory(ArmMemory):
    """Memory of one arm on a CPU."""

    def __init__(self, device: CpuDevice, pid: int, input_bytes: int) -> None:
        self._device = device
        self._pid = pid
        self._input_bytes = input_bytes
        self._slots = [SharedBlock(input_bytes, sealed=True) for _ in range(wire.SLOTS)]
        """Slots for inputs. The worker cannot write to them, only to a private copy."""

    def begin(self) -> tuple[wire.Message, list[int]]:
        return {"bytes": self._input_bytes}, [block.fd for block in self._slots]

    def put(self, slot: int, inputs: Bytes) -> None:
        np.copyto(self._slots[slot].bytes, inputs)

    def intact(self, slot: int, inputs: Bytes, address: int) -> bool:
        try:
            return np.array_equal(memory.read(self._pid, address, self._input_bytes), inputs)
        except Contract:
            return False

    def read(self, plan: Plan, outputs: Sequence[Output]) -> npt.NDArray[np.uint8]:
        addresses = np.array([output.address for output in outputs], dtype=np.uint64)
        return memory.gather(self._pid, plan.sources(addresses), plan.sizes)

    def whole(self, outputs: Sequence[Output]) -> list[npt.NDArray[np.generic]]:
        ranges = memory.private_ranges(self._pid)
        return [self._whole(output, ranges) for output in outputs]

    def _whole(self, output: Output, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.generic]:
        want = output.expected
        if not want.size:
            return decode(np.empty(0, dtype=np.uint8), want.dtype)
        # If the reference returns an input, so may a candidate; inputs are in shared, sealed memory.
        start, end = output.address, output.address + output.span_bytes
        if not want.aliases and not any(low <= start and end <= high for low, high in ranges):
            raise Contract(
                "an output lies in an input, in shared or unmapped memory, or in a file; return a tensor of its own"
            )
        elements = _elements(self._span(output), output)
        return decode(np.ascontiguousarray(elements).reshape(-1).view(np.uint8), want.dtype)

    def overwrite(self, outputs: Sequence[Output]) -> None:
        """Overwrite exactly the elements of outputs, with bytes from the device's noise."""
        for output in outputs:
            if output.expected.aliases or not output.expected.size:
                continue
            want, noise = output.expected, self._device.noise(output.expected.dtype)
            if output.span_bytes == want.size * want.item_bytes:  # no holes
                for done in range(0, output.span_bytes, noise.size):
                    memory.write(self._pid, output.address + done, noise[: output.span_bytes - done])
            else:
                span = self._span(output)
                _elements(span, output)[...] = np.resize(noise.view(f"V{want.item_bytes}"), want.shape)
                memory.write(self._pid, output.address, span)

    def _span(self, output: Output) -> Bytes:
        """Copy the memory from an output's first to its last element."""
        return memory.read(self._pid, output.address, output.span_bytes)

    def close(self) -> None:
        for block in self._slots:
            block.close()
        self._slots = []  # frees their mappings


def _elements(span: Bytes, output: Output) -> npt.NDArray[np.void]:
    """View the elements of an output in its span, in its shape."""
    want = output.expected
    strides = tuple(stride * want.item_bytes for stride in output.strides)
    return np.lib.stride_tricks.as_strided(span.view(f"V{want.item_bytes}"), shape=want.shape, strides=strides)


def level2_bytes(core: int) -> int:
    """Return the size of a core's L2 cache; 2 MiB if the system does not report it."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{core}/cache/index2/size") as file:
            text = file.read().strip()
    except OSError:
        return 2 << 20
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]] if text[-1] in "KMG" else int(text)


def cpu_info() -> dict[str, str]:
    """Return the system's description of a CPU, by name of the field."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
