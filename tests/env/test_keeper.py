"""The process that hands the arms' core over awake."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cudal1_env.judge.keeper import CoreKeeper


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
