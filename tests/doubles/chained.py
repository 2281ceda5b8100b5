"""A CPU double of a GPU's chains: the judge's own CPU device, on which calls follow each other without a stop.

Real workers, the real protocol, the judge's clock. Between two calls the worker runs on, as a GPU's work would: inputs
come while it may look, outputs are read while it may write. What it does not show: a GPU's speed and its own copies.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.cpu import CpuDevice, CpuMemory
from cudal1_env.judge.device.reading import Plan
from cudal1_env.judge.measure.arm import Arm


class ChainedMemory(CpuMemory):
    """Lays the inputs of a call down when it is released, while the worker runs. Inputs have no masks here."""

    def __init__(self, device: CpuDevice, pid: int, input_bytes: int) -> None:
        super().__init__(device, pid, input_bytes)
        self._inputs: list[Any] = []

    def stage(self, calls: Sequence[tuple[Any, Plan]]) -> Sequence[Sequence[int]]:
        self._inputs = [inputs for inputs, _ in calls]
        return [()] * len(calls)

    def release(self, slot: int) -> None:
        """Lay down the inputs of the next call."""
        self.put(slot, self._inputs.pop(0))


def go(arm: Arm, key: Sequence[int]) -> int:
    """Write the ready word behind the inputs."""
    cast(ChainedMemory, arm.memory).release(arm.next_slot)
    return _go(arm, key)


_go = Arm.go


class ChainedDevice(CpuDevice):
    """A CPU that is timed as a GPU is."""

    chained = True

    def chain_limit(self, input_bytes: int) -> int:
        return 24

    def memory(self, pid: int, input_bytes: int, output_bytes: int, work_bytes: int) -> CpuMemory:
        return ChainedMemory(self, pid, input_bytes)


@contextmanager
def chained_judge(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Generator[Judge]:
    """A judge whose device is the double."""
    monkeypatch.setattr(Arm, "go", go)
    monkeypatch.setattr("cudal1_env.judge.judge.choose_device", lambda settings, core: ChainedDevice(core))
    with Judge(JudgeSettings(device="cpu", **settings)) as judge:
        yield judge
