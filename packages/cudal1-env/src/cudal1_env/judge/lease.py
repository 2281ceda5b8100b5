"""Exclusive use of one CPU core or GPU, among all judges of this host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from cudal1_env.errors import MachineError

_WAIT_S = 600.0


def choose_core() -> int | None:
    """Return the core that arms are held to: the last one this process may use; None when there is only one.

    With one core the arms share it with the judge; timing is then coarser, and the record says `core: null`.
    """
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) > 1 else None


def siblings(core: int | None) -> frozenset[int]:
    """Return the cores that share a core's execution units, itself among them, as far as the system says."""
    if core is None:
        return frozenset()
    try:
        with open(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") as file:
            parts = [part.split("-") for part in file.read().strip().split(",")]
        return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)) | {core}
    except (OSError, ValueError):
        return frozenset({core})


def core_name(core: int | None) -> str:
    """What the lease of a core is called."""
    return f"cpu-{'all' if core is None else core}"


@contextlib.contextmanager
def lease(*names: str, wait_s: float = _WAIT_S) -> Generator[float]:
    """Hold devices, taken in the order of their names; yield the seconds that were waited for them.

    A lock is a file lock on an empty file that stays: removing it would race with the next holder.

    Raises:
        MachineError: Others hold one for longer than `wait_s`.
    """
    folder = Path(tempfile.gettempdir()) / "cudal1-leases"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o777)
        folder.chmod(0o1777)
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        for name in sorted(names):
            fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            held.callback(os.close, fd)
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() - began > wait_s:
                        raise MachineError(
                            f"expected {name} to be free within {wait_s:g} s, another judge holds it"
                        ) from None
                    time.sleep(0.01)
        yield time.monotonic() - began


@contextlib.contextmanager
def away_from(core: int | None) -> Generator[frozenset[int]]:
    """Keep the calling thread off the arms' core; yield the cores it may use meanwhile.

    Where there are enough, it also stays off the cores that share the arms' execution units (hyper-threads): the judge
    spins while it waits, and would slow them.
    """
    before = os.sched_getaffinity(0)
    home = frozenset(before - siblings(core)) or frozenset(before - {core}) or frozenset(before)
    os.sched_setaffinity(0, home)
    try:
        yield home
    finally:
        os.sched_setaffinity(0, before)
