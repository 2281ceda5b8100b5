"""The process that hands the arms' core over awake."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from cudal1_data import load_task
from cudal1_env.doctor import as_candidate
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.cpu import CpuMemory
from cudal1_env.judge.workers.core_keeper import CoreKeeper


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def until(pid: int, wanted: str) -> bool:
    limit = time.monotonic() + 10
    while state(pid) != wanted and time.monotonic() < limit:
        time.sleep(0.001)
    return state(pid) == wanted


def test_it_spins_between_hold_and_release_on_its_core_and_sleeps_otherwise() -> None:
    core = max(os.sched_getaffinity(0))
    keeper = CoreKeeper(core)
    try:
        keeper.hold()
        assert keeper._process is not None
        pid = keeper._process.pid
        for _ in range(3):
            keeper.hold()
            assert until(pid, "R")
            assert os.sched_getaffinity(pid) == {core}
            keeper.release()
            assert until(pid, "S")
    finally:
        keeper.close()
    with pytest.raises(FileNotFoundError):
        state(pid)


def test_without_a_core_it_does_nothing() -> None:
    keeper = CoreKeeper(None)
    keeper.hold()
    keeper.release()
    keeper.close()


def test_the_core_is_let_go_when_an_arm_dies_while_it_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = CpuMemory.settle

    def kill_after(self: CpuMemory) -> None:
        settle(self)
        os.kill(self._pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(CpuMemory, "settle", kill_after)
    task = load_task("starter/diag_matmul")
    with Judge(JudgeSettings(device="cpu")) as judge:
        with pytest.raises(TaskError, match="expected the reference to answer"):
            judge.evaluate(task, as_candidate(task))
        keeper = judge._builder._keeper  # pyright: ignore[reportPrivateUsage]
        if judge.core is not None:
            assert keeper._page is not None  # pyright: ignore[reportPrivateUsage]
            assert keeper._page.words[0] == 0, "it still holds the core"  # pyright: ignore[reportPrivateUsage]
