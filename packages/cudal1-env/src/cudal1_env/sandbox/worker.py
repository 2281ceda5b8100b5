"""A worker seen from the judge: stop it, know that it is stopped, let it go on, kill it with all that it made.

Stopping is SIGSTOP, confirmed thread by thread in /proc. It is complete for one process: nothing inside can arm what
would wake it (see the worker's `seccomp`), and process 1 of a pid namespace can be stopped from outside only. A second
process could wake the first or go on by itself. Therefore:

* `seal` closes the worker's gate and kills its other processes: from then on there is one, and a freeze costs tens of
  microseconds.
* Before that, or where there is no gate, each `freeze` also looks for other processes and kills them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable

from cudal1_worker.sandbox.gate import SEAL, SEALED

from cudal1_env.sandbox.cgroup import Cage

_STOPPED = b"T"
_DEAD = (b"Z", b"X")
_STAT_BYTES = 512
_MOST_KEPT = 64
"""Threads whose file is kept open: opening takes longer than reading, and the judge has a thousand descriptors."""
_DEATH_S = 30.0
"""A GPU's driver ends what a worker left running there before the worker is dead. Where a million device threads print,
that takes more than 5 s (tests/exploits/cuda/h36_printf_flood.py)."""


class WorkerGone(Exception):
    """The worker is dead: it cannot be stopped. Not the machine's fault; the supervisor knows how it died."""


class Worker:
    """The judge's hold on one worker.

    Args:
        pid: The worker's pid as the judge sees it.
        cage: Its control groups, if any.
    """

    def __init__(self, pid: int, cage: Cage | None = None) -> None:
        self.pid = pid
        self.cage = cage
        self.sealed = False
        """Whether the worker is known to be one process for good; see `seal`."""
        try:
            self._handle = os.pidfd_open(pid)
            self._tasks = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._namespace = os.readlink(f"/proc/{pid}/ns/pid")
        except (ProcessLookupError, FileNotFoundError) as error:
            raise WorkerGone(f"worker {pid} is dead") from error
        self._stats: dict[int, int] = {}
        self._own_pids = _own_pid_namespace(pid)
        # Without a pid namespace its orphans become the supervisor's children (see `unshare_namespaces`).
        parent = _parent(pid)
        self._top = pid if parent == os.getpid() else parent

    def close(self) -> None:
        """Forget the worker (kill it before)."""
        for fd in (self._handle, self._tasks, *self._stats.values()):
            os.close(fd)
        self._stats.clear()

    # -- stopping --------------------------------------------------------------------------------------------------

    def freeze(self, timeout_s: float = 1.0) -> list[int]:
        """Stop every thread of the worker and return when it is certain that all stand and nothing else lives.

        Args:
            timeout_s: Longest wait, seconds.

        Returns:
            Pids of processes beside the worker that were found and killed (always empty once sealed).

        Raises:
            WorkerGone: It is dead.
            TimeoutError: A thread cannot be stopped, or processes are made faster than they die.
        """
        if self.sealed:
            self.stop(timeout_s)
            return []
        killed: set[int] = set()
        deadline = time.monotonic() + timeout_s
        while True:
            self._signal(signal.SIGSTOP)
            stood = self._all_stopped()
            others = self.stragglers()
            # Standing before and after the look, the worker made nothing in between: it cannot stop itself.
            if stood and not others and self._all_stopped():
                return sorted(killed)
            _kill(others)
            killed.update(others)
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"expected worker {self.pid} to stand alone within {timeout_s} s, beside it {others}"
                )

    def stop(self, timeout_s: float = 1.0) -> None:
        """SIGSTOP the worker's process and wait until each of its threads is seen stopped.

        Raises:
            WorkerGone: It is dead.
            TimeoutError: A thread cannot be stopped.
        """
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + timeout_s
        while not self._all_stopped():
            if time.monotonic() > deadline:
                raise TimeoutError(f"expected worker {self.pid} to stop within {timeout_s} s, a thread goes on")

    def thaw(self) -> None:
        """Let the worker run again.

        Raises:
            WorkerGone: It is dead.
        """
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError as error:
            raise WorkerGone(f"worker {self.pid} is dead") from error

    def _all_stopped(self) -> bool:
        """Look at every thread's state. Only a thread that runs can begin another one, so all stopped means all."""
        state, threads = self._look(self.pid)
        if state in _DEAD and threads <= 1:
            raise WorkerGone(f"worker {self.pid} is dead")
        if threads == 1:
            self._forget({self.pid})
            return state == _STOPPED
        if state != _STOPPED and state not in _DEAD:
            return False
        try:
            tasks = os.listdir(self._tasks)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise WorkerGone(f"worker {self.pid} is dead") from error
        self._forget({self.pid, *map(int, tasks)})
        return all(self._look(int(name))[0] in (_STOPPED, *_DEAD) for name in tasks)

    def _forget(self, living: set[int]) -> None:
        """Close the files of threads that have ended: a program may begin and end as many as it likes."""
        for task in self._stats.keys() - living:
            os.close(self._stats.pop(task))

    def _look(self, task: int) -> tuple[bytes, int]:
        """State letter of a task, and how many threads its process has."""
        fd = self._stats.pop(task, None)
        try:
            if fd is None:
                fd = os.open(f"{task}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._tasks)
            line = os.pread(fd, _STAT_BYTES, 0)
        except (ProcessLookupError, FileNotFoundError):
            line = b""
        if fd is not None and line and len(self._stats) < _MOST_KEPT:
            self._stats[task] = fd
        elif fd is not None:
            os.close(fd)
        if not line:
            return b"X", 0
        fields = _stat_fields(line)
        return fields[0], int(fields[17])

    def seal(self, control: socket.socket | None, timeout_s: float = 1.0) -> list[int]:
        """Close the worker's gate, kill its other processes, and leave it stopped: from now on it is one process.

        Args:
            control: The socket to the supervisor's `Gate.keep`; None where there is no gate: then the worker's own
                seal is not believed, and every freeze goes on looking for other processes.
            timeout_s: Longest wait for each step, seconds.

        Returns:
            Pids of the processes that were killed. An honest program may have left some (a pool of compilers).

        Raises:
            WorkerGone: It is dead.
            TimeoutError: A thread cannot be stopped, or the supervisor does not answer.
        """
        if control is not None:
            control.settimeout(timeout_s)
            try:
                control.sendall(SEAL)
                answer = control.recv(1)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise TimeoutError(f"expected the gate to close within {timeout_s} s, got no answer") from error
                raise WorkerGone(f"worker {self.pid}: its supervisor is gone") from error
            if answer != SEALED:
                raise WorkerGone(f"worker {self.pid}: its supervisor is gone")
        killed = self.freeze(timeout_s)
        self.sealed = control is not None
        return killed

    # -- everything else that the worker made ----------------------------------------------------------------------

    def stragglers(self) -> list[int]:
        """Return the pids (as the judge sees them) of all other living processes of the worker."""
        if not self._own_pids:
            return self._relatives()
        if not self._has_company():
            return []
        found: list[int] = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != self.pid:
                with contextlib.suppress(OSError):  # it ended, or is another user's
                    if os.readlink(f"/proc/{name}/ns/pid") == self._namespace and _lives(int(name)):
                        found.append(int(name))
        return found

    def kill_all(self, timeout_s: float = _DEATH_S) -> None:
        """Kill the worker and everything that it made, and wait until all of it is dead.

        Raises:
            TimeoutError: Something does not die (a task hangs inside the kernel).
        """
        deadline = time.monotonic() + timeout_s
        others = [] if self._own_pids else self._relatives()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)  # as process 1 it takes its namespace along
        _kill(others)
        if self.cage is not None:
            self.cage.kill()
        while any(_lives(pid) for pid in (self.pid, *others)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"expected worker {self.pid} to die within {timeout_s} s")
            time.sleep(0.0002)

    def pin(self, core: int) -> None:
        """Hold every thread of the worker to one core. Inside it cannot be undone (see the worker's `seccomp`).

        Raises:
            WorkerGone: It is dead.
        """
        done: set[str] = set()
        while todo := set(os.listdir(self._tasks)) - done:
            for name in todo:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(name), {core})
            done |= todo
        if not done:
            raise WorkerGone(f"worker {self.pid} is dead")

    def _relatives(self) -> list[int]:
        return sorted(_descendants(self._top) - {self.pid})

    def _has_company(self) -> bool:
        """Whether the worker's own /proc shows a process beside 1."""
        try:
            return any(name.isdigit() and name != "1" for name in os.listdir(f"/proc/{self.pid}/root/proc"))
        except OSError:  # it is dead, or its files are not for this user: then look the long way
            return True


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _own_pid_namespace(pid: int) -> bool:
    """Whether a process is process 1 of a pid namespace below the judge's."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                numbers = line.split()[1:]
                return len(numbers) > 1 and numbers[-1] == "1"
    return False


def _lives(pid: int) -> bool:
    """Whether any thread of a process lives. Its first thread may be dead (a zombie) while others run on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = _stat_fields(file.read(_STAT_BYTES))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in _DEAD or int(fields[17]) > 1


def _stat_fields(line: bytes) -> list[bytes]:
    """Fields of a line of /proc/PID/stat: state, parent, ..., threads (at 17), and the rest unsplit.

    The name in brackets is the process's to choose; the last bracket closes it.
    """
    return line[line.rindex(b")") + 2 :].split(b" ", 18)


def _parent(pid: int) -> int:
    """The parent of a process.

    Raises:
        WorkerGone: There is no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read(_STAT_BYTES)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise WorkerGone(f"worker {pid} is dead") from error
    return int(_stat_fields(line)[1])


def _descendants(root: int) -> set[int]:
    """Living processes whose chain of parents leads to `root`."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as file:
                fields = _stat_fields(file.read(_STAT_BYTES))
                if fields[0] not in _DEAD or int(fields[17]) > 1:
                    parents[int(name)] = int(fields[1])
    family = {root}
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grew = bool(more)
    return family - {root}
