"""Exclusive and shared use of CPU cores and GPUs, among all judges of this host."""

from __future__ import annotations

import contextlib
import fcntl
import logging
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
"""Seconds that shared users may continue while a judge waits for exclusive use; then their workers are killed. With
their death and the other judge's own work, the waiting judge has the device within 10 s."""
_CHECK_S = 0.1
"""Seconds between checks whether another judge waits."""
_SAID_S = 30.0
"""Seconds of a wait after which a warning says what is waited for."""
_log = logging.getLogger(__name__)


def choose_core() -> int | None:
    """Return the core to pin arms to: the last one that this process may use; None if there is only one.

    With one core the arms share it with the judge; timing is then coarser, and the record says `core: null`.
    """
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) > 1 else None


def siblings(core: int) -> frozenset[int]:
    """Return the cores that share a core's execution units, including itself, as far as the system reports them."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") as file:
            parts = [part.split("-") for part in file.read().strip().split(",")]
        return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)) | {core}
    except (OSError, ValueError):
        return frozenset({core})


@dataclass
class Seat:
    """The core to which a judge pins its arms. Close it when the judge ends; the end of the process also closes it."""

    core: int | None
    """The core; None if there is only one."""
    kept_free: frozenset[int]
    """Cores that the judge itself avoids while it measures: those of its own and other judges' arms."""
    _fd: int = -1

    def close(self) -> None:
        """Release the core for other judges."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _kept_free(arms: frozenset[int]) -> frozenset[int]:
    """Return the arms' cores, with their siblings if the judge then has other cores left to spin on."""
    wide = arms.union(*(siblings(core) for core in arms))
    return wide if os.sched_getaffinity(0) - wide else arms


def take_seat(device: Device) -> Seat:
    """Choose a core for the arms.

    On a CPU it is always the last core: judges would disturb each other, so they measure one after another. On GPUs,
    the judges of a host measure at the same time, each with its own GPU and core. Each takes the last free core of the
    upper half and holds it by a file lock. If none is free, it shares the last core and waits for it in each
    measurement.
    """
    last = choose_core()
    if last is None or device == "cpu":
        return Seat(last, frozenset() if last is None else _kept_free(frozenset({last})))
    cores = sorted(os.sched_getaffinity(0))
    upper = cores[(len(cores) + 1) // 2 :]
    for core in reversed(upper):
        fd = _open_lock(f"seat-{core_name(core)}")
        if _locked(fd, fcntl.LOCK_EX):
            return Seat(core, _kept_free(frozenset(upper)), fd)
        os.close(fd)
    return Seat(last, _kept_free(frozenset(upper)))


def core_name(core: int | None) -> str:
    """Return the name of a core's lease."""
    return f"cpu-{'all' if core is None else core}"


@contextlib.contextmanager
def lease(*names: str, shared: bool = False, wait_s: float = _WAIT_S) -> Generator[float]:
    """Hold devices, taken in the order of their names; yield the seconds waited for them.

    Shared and exclusive holders exclude each other; shared holders do not measure. Who waits first has the device
    first, up to the interval of checks, and sharers have it together. So a sharer must not take the same device twice.

    A lock is a file lock on an empty file, which is never removed: removal would race with the next holder.

    Raises:
        MachineError: Another judge holds a device for longer than `wait_s`.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        for name in sorted(names):
            held.callback(os.close, _take(name, shared=shared, deadline=began + wait_s))
        yield time.monotonic() - began


class Hold:
    """A hold of devices. A shared hold may have to give way; see `sharing`."""

    def __init__(self) -> None:
        self.gave_way = False
        """Whether workers were killed because another judge waited for exclusive use; their results do not count."""
        self._stops: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def kills(self, stop: Callable[[], None]) -> None:
        """Register what kills a worker: called from another thread when this hold gives way, or at once if it has."""
        with self._lock:
            self._stops.append(stop)
            late = self.gave_way
        if late:
            stop()

    def give_way(self) -> None:
        """Kill every registered worker."""
        with self._lock:
            self.gave_way = True
            stops = list(self._stops)
        for stop in stops:
            stop()


@contextlib.contextmanager
def sharing(*names: str) -> Generator[tuple[Hold, float]]:
    """Share devices with other judges; yield the hold and the seconds waited for it.

    Workers registered by `Hold.kills` may use the devices until the block ends; close them within it. They are killed
    when another judge has waited `PATIENCE_S` for exclusive use, so shared work never delays a measurement for long.

    Raises:
        MachineError: Another judge holds one of the devices exclusively for longer than 10 minutes.
    """
    hold, done = Hold(), threading.Event()
    with lease(*names, shared=True) as waited:
        watcher = threading.Thread(target=_watch, args=(names, hold, done), daemon=True)
        watcher.start()
        try:
            yield hold, waited
        finally:
            done.set()
            watcher.join()


def _watch(names: Sequence[str], hold: Hold, done: threading.Event) -> None:
    """Make the hold give way when another judge waits for exclusive use, which it shows by holding the turnstile."""
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
    """Wait for a device at its turnstile; return the descriptor that holds it.

    Every judge takes the turnstile (a second lock) before the device, and keeps it until it has the device, so that
    exclusive and shared users take turns. Shared users wait in it together.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    turnstile, device = _open_lock(f"{name}.turnstile"), _open_lock(name)
    said_at = time.monotonic() + _SAID_S
    try:
        while not (_locked(turnstile, kind) and _locked(device, kind)):
            if time.monotonic() > deadline:
                raise MachineError(
                    f"timed out waiting for {name}, which another judge holds; wait for it to finish, or choose "
                    "another GPU with CUDA_VISIBLE_DEVICES"
                )
            if time.monotonic() > said_at:
                _log.warning("waiting for %s, which another judge holds", name)
                said_at = deadline
            time.sleep(_POLL_S)
    except BaseException:
        os.close(device)
        raise
    finally:
        os.close(turnstile)
    return device


def _locked(fd: int, kind: int) -> bool:
    """Try to take a lock without waiting; a lock that this descriptor already has stays taken."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(name: str) -> int:
    """Open a lock's file read-only, which suffices for locking, because another user may have created it."""
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
    """Keep the calling thread off some cores, if others are left; yield the cores that it may use."""
    before = os.sched_getaffinity(0)
    home = frozenset(before - cores) or frozenset(before)
    os.sched_setaffinity(0, home)
    try:
        yield home
    finally:
        os.sched_setaffinity(0, before)
