"""Exclusive and shared use of CPU cores and GPUs, among all judges of this host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal1_env.errors import MachineError
from cudal1_env.records import Device

_WAIT_S = 600.0
_POLL_S = 0.01
PATIENCE_S = 5.0
"""Seconds for which a judge that waits for exclusive use lets shared users continue. Then it kills their workers. With
the death of a worker and the judge's own work it has the device within 10 s."""
_CHECK_S = 0.1
"""Seconds between two checks whether another judge waits."""


def choose_core() -> int | None:
    """Return the core that arms are held to: the last one this process may use; None when there is only one.

    With one core the arms share it with the judge; timing is then coarser, and the record says `core: null`.
    """
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) > 1 else None


def siblings(core: int) -> frozenset[int]:
    """Return the cores that share a core's execution units, itself among them, as far as the system says."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") as file:
            parts = [part.split("-") for part in file.read().strip().split(",")]
        return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)) | {core}
    except (OSError, ValueError):
        return frozenset({core})


@dataclass
class Seat:
    """The core that a judge holds its arms to. Close it when the judge ends; the end of the process does so too."""

    core: int | None
    """None when there is only one core."""
    kept_free: frozenset[int]
    """Cores on which the judge itself does not work while it measures: its own arms', and other judges' arms'."""
    _fd: int = -1

    def close(self) -> None:
        """Let other judges have it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _kept_free(arms: frozenset[int]) -> frozenset[int]:
    """The arms' cores and those that share execution units with them, if a judge has others left; it spins there."""
    wide = arms.union(*(siblings(core) for core in arms))
    return wide if os.sched_getaffinity(0) - wide else arms


def take_seat(device: Device) -> Seat:
    """Choose a core for the arms.

    On a CPU it is always the last one: judges then measure one after another, because they would disturb each other.
    On GPUs judges of one host measure at the same time, each with a GPU and a core of its own. Each takes the last core
    of the upper half that no other judge has taken, by a file lock that it holds while it lives; where all are taken it
    shares the last one, and waits for its turn in each measurement.
    """
    last = choose_core()
    if last is None or device == "cpu":
        return Seat(last, frozenset() if last is None else _kept_free(frozenset({last})))
    cores = sorted(os.sched_getaffinity(0))
    upper = cores[(len(cores) + 1) // 2 :]
    for core in reversed(upper):
        fd = _open_lock(f"seat-{core_name(core)}")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        return Seat(core, _kept_free(frozenset(upper)), fd)
    return Seat(last, _kept_free(frozenset(upper)))


def core_name(core: int | None) -> str:
    """Return the name of the lease of a core."""
    return f"cpu-{'all' if core is None else core}"


@contextlib.contextmanager
def lease(*names: str, shared: bool = False, wait_s: float = _WAIT_S) -> Generator[float]:
    """Hold devices, taken in the order of their names; yield the seconds that were waited for them.

    Those who share a device measure nothing on it, and nobody measures on it meanwhile. Whoever waits for a device of
    its own waits for those that share it now, and for nobody who comes later: so nobody who shares a device may take
    it a second time meanwhile.

    A lock is a file lock on an empty file that stays: removing it would race with the next holder.

    Raises:
        MachineError: Others hold one for longer than `wait_s`.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        for name in sorted(names):
            held.callback(os.close, _take(name, shared=shared, deadline=began + wait_s))
        yield time.monotonic() - began


class Hold:
    """A hold of devices. One that is shared may have to give way; see `sharing`."""

    def __init__(self) -> None:
        self.gave_way = False
        """Whether workers were killed because another judge waited for exclusive use: their results do not count."""
        self._stops: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def kills(self, stop: Callable[[], None]) -> None:
        """Let a waiting judge stop a worker.

        Args:
            stop: Kills the worker; called from another thread, at once if somebody has waited for too long already.
        """
        with self._lock:
            self._stops.append(stop)
            late = self.gave_way
        if late:
            stop()

    def give_way(self) -> None:
        """Stop every worker."""
        with self._lock:
            self.gave_way = True
            stops = list(self._stops)
        for stop in stops:
            stop()


@contextlib.contextmanager
def sharing(*names: str) -> Generator[tuple[Hold, float]]:
    """Share devices with other judges; yield the hold and the seconds that were waited for it.

    Workers that the hold `kills` may use the devices until the block ends; close them within it. When somebody has
    waited for `PATIENCE_S` to have one of the devices alone, they are killed. So nothing that runs beside others
    delays a measurement for long.

    Raises:
        MachineError: Somebody has one of the devices alone for longer than 10 minutes.
    """
    hold, done = Hold(), threading.Event()
    with lease(*names, shared=True) as waited:
        watcher = threading.Thread(target=_watch, args=(names, hold, done), daemon=True)
        if names:
            watcher.start()
        try:
            yield hold, waited
        finally:
            done.set()
            if names:
                watcher.join()


def _watch(names: Sequence[str], hold: Hold, done: threading.Event) -> None:
    """Check whether another judge waits for exclusive use: it holds the turnstile."""
    with contextlib.ExitStack() as opened:
        turnstiles = [_open_lock(f"{name}.turnstile") for name in names]
        for fd in turnstiles:
            opened.callback(os.close, fd)
        waited_since: float | None = None
        while not done.wait(_CHECK_S):
            free = [_locked(fd, fcntl.LOCK_SH) for fd in turnstiles]
            for fd in turnstiles:
                fcntl.flock(fd, fcntl.LOCK_UN)
            if all(free):
                waited_since = None
            elif waited_since is None:
                waited_since = time.monotonic()
            elif time.monotonic() - waited_since > PATIENCE_S:
                hold.give_way()
                return


def _take(name: str, *, shared: bool, deadline: float) -> int:
    """Wait for a device behind its turnstile; return the descriptor that holds it.

    Everybody passes the turnstile (a lock of its own) on the way to the device. Whoever wants the device alone stays in
    it until the device is free; whoever shares the device steps back out when it cannot have it at once.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    turnstile, device = _open_lock(f"{name}.turnstile"), _open_lock(name)
    try:
        while not (_locked(turnstile, kind) and _locked(device, kind)):
            if shared:
                fcntl.flock(turnstile, fcntl.LOCK_UN)
            if time.monotonic() > deadline:
                raise MachineError(
                    f"timed out waiting for {name}, which another judge holds; wait for it to finish, or choose "
                    "another GPU with CUDA_VISIBLE_DEVICES"
                )
            time.sleep(_POLL_S)
    except BaseException:
        os.close(device)
        raise
    finally:
        os.close(turnstile)
    return device


def _locked(fd: int, kind: int) -> bool:
    """Try to take a lock; one that this descriptor has already stays taken."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(name: str) -> int:
    """Open the file of a lock, which another user may have made: reading is enough to lock it."""
    folder = Path(tempfile.gettempdir()) / "cudal1-leases"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o777)
        folder.chmod(0o1777)
    try:
        return os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


@contextlib.contextmanager
def away_from(cores: frozenset[int]) -> Generator[frozenset[int]]:
    """Keep the calling thread off some cores, if others are left; yield the cores it may use meanwhile."""
    before = os.sched_getaffinity(0)
    home = frozenset(before - cores) or frozenset(before)
    os.sched_setaffinity(0, home)
    try:
        yield home
    finally:
        os.sched_setaffinity(0, before)
