"""A CPU double of a GPU's chains: the judge's own CPU device, on which calls follow each other without a stop.

Real workers, the real protocol, the judge's clock. Between two calls the worker runs on, as a GPU's work would: inputs
come while it may look, outputs are read while it may write. What it does not show: a GPU's speed and its own copies.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device import memory
from cudal1_env.judge.device.base import Needs, Output, Staging
from cudal1_env.judge.device.cpu import CpuDevice, CpuMemory
from cudal1_worker import protocol as wire


class ChainedMemory(CpuMemory):
    """Brings inputs and overwrites stale elements while the worker runs. Inputs have no masks here."""

    _turn = 0

    def stage(self, calls: Sequence[Staging]) -> Sequence[Staging]:
        return calls

    def release(self, staged: Any, stale: Sequence[Output]) -> tuple[int, ...]:
        self._turn += 1
        slot, call = self._turn % wire.SLOTS, staged
        if stale:
            addresses = call.stale.sources(np.array([one.address for one in stale], dtype=np.uint64))
            for address, size in zip(addresses.tolist(), call.stale.sizes.tolist(), strict=True):
                memory.write(self._pid, address, np.full(size, 0x5B, dtype=np.uint8))
        self.put(slot, call.inputs)
        return ()


class ChainedDevice(CpuDevice):
    """A CPU that is timed as a GPU is."""

    chained = True
    on_clock_elements: int | None = 8

    def chain_limit(self, input_bytes: int) -> int:
        return 24

    def memory(self, pid: int, needs: Needs) -> CpuMemory:
        return ChainedMemory(self, pid, needs.input_bytes)


@contextmanager
def chained_judge(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Generator[Judge]:
    """A judge whose device is the double."""
    monkeypatch.setattr("cudal1_env.judge.judge.choose_device", lambda settings, core: ChainedDevice(core))
    with Judge(JudgeSettings(device="cpu", **settings)) as judge:
        yield judge
