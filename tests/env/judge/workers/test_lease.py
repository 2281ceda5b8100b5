"""Leases and seats: one judge for a GPU and a core, also when several start at the same moment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from cudal1_env.errors import MachineError
from cudal1_env.judge.workers import lease as leases
from cudal1_env.judge.workers.lease import Seat, away_from, choose_core, lease, take_seat

CORES = (0, 1, 2, 3, 4, 5, 6)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "cudal1-leases"


@pytest.fixture
def seven_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(CORES))


def test_judges_of_gpus_take_cores_of_their_own_from_the_upper_half(seven_cores: None) -> None:
    seats = [take_seat("cuda") for _ in range(3)]
    assert [seat.core for seat in seats] == [6, 5, 4]
    assert {seat.kept_free for seat in seats} == {frozenset({4, 5, 6})}
    shared = take_seat("cuda")
    assert shared.core == 6, "no core is left: judges take turns on the last one"
    seats[1].close()
    assert take_seat("cuda").core == 5
    for seat in (*seats, shared):
        seat.close()


def test_judges_of_the_cpu_share_the_last_core(seven_cores: None) -> None:
    assert take_seat("cpu") == take_seat("cpu") == Seat(6, frozenset({6}))


def test_with_two_cores_the_judge_keeps_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    first, second = take_seat("cuda"), take_seat("cuda")
    assert (first.core, second.core) == (1, 1)
    assert first.kept_free == {1}
    first.close()


def test_with_one_core_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert take_seat("cuda") == Seat(None, frozenset())


PROGRAM = """
import os, sys, tempfile
tempfile.tempdir = sys.argv[1]
os.sched_getaffinity = lambda pid: set(range(16))
from cudal1_env.judge.workers.lease import take_seat
seat = take_seat("cuda")
print(seat.core, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_judges_that_start_at_once_get_different_cores_and_a_dead_one_gives_its_back(tmp_path: Path) -> None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    judges = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        cores = {int(judge.stdout.readline()) for judge in judges if judge.stdout is not None}
        assert cores == {12, 13, 14, 15}
    finally:
        for judge in judges:
            judge.kill()
            judge.communicate()


def test_a_lease_that_is_held_for_too_long_is_a_clear_error(folder: Path) -> None:
    message = "timed out waiting for gpu-x, which another judge holds"
    with lease("gpu-x"), pytest.raises(MachineError, match=message), lease("gpu-x", wait_s=0.0):
        pass
    with lease("gpu-x", "cpu-1", wait_s=0.0) as waited:
        assert waited < 1.0
    assert {path.name for path in folder.iterdir()} == {
        f"{name}{lock}" for name in ("gpu-x", "cpu-1") for lock in ("", ".turnstile")
    }


def test_a_long_wait_says_once_what_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "_SAID_S", 0.05)
    with lease("gpu-x"), pytest.raises(MachineError), lease("gpu-x", wait_s=0.3):
        pass
    assert caplog.messages == ["waiting for gpu-x, which another judge holds"]


def test_shared_and_exclusive_leases_exclude_each_other(folder: Path) -> None:
    refused = pytest.raises(MachineError, match="timed out waiting for gpu")
    with lease("gpu", shared=True), lease("gpu", shared=True), refused, lease("gpu", wait_s=0.0):
        pass
    with lease("gpu"), refused, lease("gpu", shared=True, wait_s=0.0):
        pass
    with lease("gpu", wait_s=0.0):
        pass


def test_a_sharer_has_its_turn_before_a_later_exclusive_user(folder: Path) -> None:
    order: list[str] = []

    def wait(name: str, *, shared: bool) -> None:
        with lease("gpu", shared=shared, wait_s=20.0):
            order.append(name)
            time.sleep(0.05)

    waiting = [
        threading.Thread(target=wait, args=("shared",), kwargs={"shared": True}),
        threading.Thread(target=wait, args=("exclusive",), kwargs={"shared": False}),
    ]
    with lease("gpu"):
        for thread in waiting:
            thread.start()
            time.sleep(0.3)
    for thread in waiting:
        thread.join()
    assert order == ["shared", "exclusive"]


SHARER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from cudal1_env.judge.workers.lease import lease
print("ready", flush=True)
while True:
    with lease("gpu", shared=True):
        time.sleep(0.3)
"""


@pytest.mark.slow
def test_an_exclusive_lease_waits_only_for_present_sharers(folder: Path) -> None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    sharers = [
        subprocess.Popen([sys.executable, "-c", SHARER, str(folder.parent)], stdout=subprocess.PIPE, env=environment)
        for _ in range(4)
    ]
    try:
        for sharer in sharers:
            assert sharer.stdout is not None
            assert sharer.stdout.readline()
            time.sleep(0.07)  # out of step, so that the device is never free
        for _ in range(3):
            with lease("gpu", wait_s=10.0) as waited:
                assert waited < 3.0, "each shares the device for 0.3 s"
                with pytest.raises(MachineError, match="timed out"), lease("gpu", shared=True, wait_s=0.1):
                    pass
            with lease("gpu", shared=True, wait_s=10.0):
                pass
    finally:
        for sharer in sharers:
            sharer.kill()
            sharer.communicate()


def test_a_killed_waiter_blocks_no_other_lease(folder: Path) -> None:
    waiter = "import sys, tempfile\ntempfile.tempdir = sys.argv[1]\n"
    waiter += "from cudal1_env.judge.workers.lease import lease\nlease('gpu').__enter__()\n"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    with lease("gpu", shared=True):
        process = subprocess.Popen([sys.executable, "-c", waiter, str(folder.parent)], env=environment)
        try:
            while True:  # until it waits in the turnstile
                try:
                    with lease("gpu", shared=True, wait_s=0.0):
                        time.sleep(0.01)
                except MachineError:
                    break
        finally:
            process.kill()
            process.wait()
        with lease("gpu", shared=True, wait_s=0.0):
            pass


def test_a_lock_that_another_user_made_can_be_held(folder: Path) -> None:
    with lease("gpu-x"):
        pass
    (folder / "gpu-x").chmod(0o444)
    with lease("gpu-x", wait_s=0.0):
        pass


def test_the_judge_keeps_off_the_arms_cores() -> None:
    before = os.sched_getaffinity(0)
    core = choose_core()
    with away_from(frozenset() if core is None else frozenset({core})) as home:
        assert os.sched_getaffinity(0) == home
        assert core is None or core not in home
    with away_from(frozenset(before)) as home:
        assert home == before, "there is no other"
    assert os.sched_getaffinity(0) == before
