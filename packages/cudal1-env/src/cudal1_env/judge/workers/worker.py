"""The judge's handle of one worker process: messages, log, freezing, and killing it with all its children.

A freeze is SIGSTOP, confirmed thread by thread in /proc. For a single process this is complete: the worker's `seccomp`
filter forbids everything that could wake it later, and process 1 of a pid namespace can be stopped only from outside. A
second process could wake the first one or continue to run. Therefore:

* `seal` closes the worker's gate and kills its other processes. Afterwards the worker is one process, and a freeze
  takes tens of microseconds.
* Before that, or without a gate, each `freeze` also finds and kills other processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from cudal1_worker import protocol as wire
from cudal1_worker.gpus import touched_gpu
from cudal1_worker.sandbox.gate import SEAL, SEALED
from cudal1_worker.sandbox.processes import DEAD, STAT_BYTES, STOPPED, descendants, living, state_of

from cudal1_env.errors import MachineError
from cudal1_env.judge.device.memory import SharedBlock
from cudal1_env.sandbox import Cage

_LOG_KEPT = 4000
_LOG_READS = 32
"""Maximum reads of 64 KiB from a log at a time, because a worker may write faster than the judge reads."""
_SEAL_S = 1.0
_DEATH_S = 30.0
"""A worker dies only after the GPU driver has ended its kernels. If a million device threads print, that takes more
than 5 s (tests/exploits/cuda/h36_printf_flood.py)."""


class Dead(Exception):
    """A worker ended; `how` is its supervisor's report: `{"signal": n}` or `{"exit": n}`. The text is how it died."""

    def __init__(self, how: dict[str, Any]) -> None:
        known = f"of signal {how['signal']}" if "signal" in how else f"with exit code {how.get('exit')}"
        super().__init__("having closed its channel" if how.get("closed") else known)
        self.how = how


class Late(Exception):
    """A worker did not answer or stop in time."""


class Worker:
    """One worker process.

    Methods raise `Dead` if the worker has ended or closed its channel, `Late` if it does not answer or stop in time,
    and `protocol.BadMessage` if it sends an invalid message.

    Args:
        pid: The worker's pid as the judge sees it.
        supervisor: The pid of its supervisor.
        channel: The judge's end of the socket for messages.
        orders: The judge's end of the supervisor's socket: it closes the gate; closing it kills the worker.
        log_fd: Non-blocking read end of the worker's standard output and error.
        report_fd: Non-blocking read end of the supervisor's report.
        pages: The page that the worker can only read, and the page that it writes; empty for an oracle.
        cage: Its control groups, if any.
        owned: Releases all of the above; the worker takes ownership.

    Raises:
        ProcessLookupError, FileNotFoundError: The worker is already dead.
    """

    def __init__(
        self,
        pid: int,
        supervisor: int,
        channel: socket.socket,
        orders: socket.socket,
        log_fd: int,
        report_fd: int,
        pages: Sequence[SharedBlock],
        cage: Cage | None,
        owned: ExitStack,
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.pages = pages
        self.layers: tuple[str, ...] = ()
        """Active sandbox layers, known once the worker has entered them."""
        self.missing: tuple[str, ...] = ()
        self.sealed = False
        """Whether the worker is permanently a single process; see `seal`."""
        self.interrupted = False
        """Whether another thread of the judge has killed it; see `interrupt`."""
        self._supervisor = supervisor
        self._orders = orders
        self._log_fd = log_fd
        self._report_fd = report_fd
        self._cage = cage
        self._owned = owned
        self._log = b""
        self._muted = False
        self._how: dict[str, Any] | None = None
        self._dying: list[int] = []
        self._open = True
        self._closing = threading.Lock()
        self._pidfd = self._own(os.pidfd_open(pid))
        self._tasks = self._own(os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._namespace = os.readlink(f"/proc/{pid}/ns/pid")
        self._owned = owned.pop_all()

    def _own(self, fd: int) -> int:
        self._owned.callback(os.close, fd)
        return fd

    # --- messages ----------------------------------------------------------------------------------------------

    def tell(self, message: wire.Message, fds: Sequence[int] = (), *, timeout_s: float) -> None:
        """Send a message."""
        try:
            wire.send(self.channel, message, fds, timeout_s=timeout_s)
        except wire.ChannelClosed:
            raise Dead(self.end()) from None
        except wire.ChannelTimeout as error:
            raise Late(str(error)) from None

    def ask(self, message: wire.Message, fds: Sequence[int] = (), *, timeout_s: float) -> wire.Message:
        """Send a message and wait for the answer; see `tell` and `answer`."""
        self.tell(message, fds, timeout_s=timeout_s)
        return self.answer(timeout_s=timeout_s)

    def answer(self, *, timeout_s: float) -> wire.Message:
        """Wait for a message, draining the log meanwhile."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(self._log_fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Late(f"no answer within {timeout_s:g} s")
            ready = dict(poll.poll(left * 1e3))
            if self._log_fd in ready and not self.drain():
                poll.unregister(self._log_fd)
            if self.channel.fileno() in ready:
                try:
                    message, _ = wire.receive(self.channel, timeout_s=max(left, 1.0), max_fds=0)
                except wire.ChannelTimeout:
                    raise Late(f"only a part of its answer came within {timeout_s:g} s") from None
                except wire.ChannelClosed:
                    raise Dead(self.end()) from None
                return message

    def drain(self) -> bool:
        """Read the available log and keep its end; return False once the worker has closed it."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_LOG_READS):
                data = os.read(self._log_fd, 1 << 16)
                if not data:
                    return False
                if not self._muted:
                    self._log = (self._log + data)[-_LOG_KEPT:]
        return True

    def mute(self) -> None:
        """Discard everything that the worker prints from now on."""
        self.drain()
        self._muted = True

    @property
    def log(self) -> str:
        """The end of the worker's output (untrusted text)."""
        return self._log.decode("utf-8", "replace")

    # --- stopping ----------------------------------------------------------------------------------------------

    def freeze(self, timeout_s: float = 1.0) -> None:
        """Stop every thread of the worker and kill its other processes; return once this is confirmed."""
        deadline = time.monotonic() + timeout_s
        self._signal(signal.SIGSTOP)
        while True:
            stopped = self._all_stopped()
            others = [] if self.sealed else self.other_processes()
            # It was stopped before and after the search, so it made no process in between: it cannot stop itself.
            if stopped and not others and (self.sealed or self._all_stopped()):
                return
            if time.monotonic() > deadline:
                raise Late(f"worker {self.pid} did not stop within {timeout_s:g} s; its other processes: {others}")
            _kill(others)
            if not self.sealed:  # another process may have woken it
                self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the worker run again."""
        self._signal(signal.SIGCONT)

    def seal(self) -> None:
        """Close the worker's gate permanently, kill its other processes, and leave it frozen as a single process.

        An honest program may have left other processes (a pool of compilers). Without a gate (see `layers`), each later
        freeze still searches for them.
        """
        gated = "fork-gate" in self.layers
        if gated:
            self._orders.settimeout(_SEAL_S)
            try:
                self._orders.sendall(SEAL)
                closed = self._orders.recv(1) == SEALED
            except TimeoutError:
                raise Late(f"the supervisor of worker {self.pid} did not answer within {_SEAL_S:g} s") from None
            except OSError:
                closed = False
            if not closed:
                raise Dead(self.end())
        self.freeze()
        self.sealed = gated

    def pin(self, core: int) -> None:
        """Pin every thread of the frozen worker to one core; its program cannot undo this (`seccomp`)."""
        for task in self._threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), {core})

    def _signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            raise Dead(self.end()) from None

    def _threads(self) -> list[str]:
        try:
            return os.listdir(self._tasks)
        except (FileNotFoundError, ProcessLookupError):
            raise Dead(self.end()) from None

    def _all_stopped(self) -> bool:
        """Return whether all threads are stopped. Only a running thread can start another, so the check is complete."""
        state, threads = self._look(str(self.pid))
        if threads > 1:
            still = (STOPPED, *DEAD)
            return state in still and all(self._look(task)[0] in still for task in self._threads())
        if state in DEAD:
            raise Dead(self.end())
        return state == STOPPED

    def _look(self, task: str) -> tuple[bytes, int]:
        """Return a thread's state letter and the number of threads of its process."""
        try:
            fd = os.open(f"{task}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._tasks)
            try:
                state, _, threads = state_of(os.read(fd, STAT_BYTES))
            finally:
                os.close(fd)
        except (ProcessLookupError, FileNotFoundError):
            return DEAD[0], 0
        return state, threads

    # --- other processes of the worker, and its end ------------------------------------------------------------

    def other_processes(self) -> list[int]:
        """Return the pids (as the judge sees them) of the worker's other living processes."""
        if "pid-namespace" not in self.layers:  # its orphans are the supervisor's children
            return sorted(descendants(self._supervisor) - {self.pid})
        if not self._has_company():
            return []
        found: list[int] = []
        for pid in living().keys() - {self.pid}:
            with contextlib.suppress(OSError):  # it ended, or belongs to another user
                if os.readlink(f"/proc/{pid}/ns/pid") == self._namespace:
                    found.append(pid)
        return sorted(found)

    def _has_company(self) -> bool:
        """Return whether the worker's own /proc shows another process; cheaper than a search of the host's /proc."""
        try:
            return any(name.isdigit() and name != "1" for name in os.listdir(f"/proc/{self.pid}/root/proc"))
        except OSError:  # it is dead, or this user may not read its files: search the host's /proc
            return True

    @property
    def alive(self) -> bool:
        """Whether the worker is still alive."""
        return not _readable(self._pidfd, 0.0)

    def uses_gpu(self) -> bool:
        """Return whether the worker may use a GPU: it has opened one, or it has child processes."""
        try:
            return bool(self.other_processes()) or touched_gpu(self.pid)
        except PermissionError:  # unknown
            return True

    def start_kill(self) -> None:
        """Send SIGKILL to the worker and all its processes without waiting; see `kill`."""
        if not self._dying:
            # The death of process 1 of a pid namespace kills the whole namespace.
            others = [] if "pid-namespace" in self.layers else self.other_processes()
            self._dying = [self._pidfd]
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    self._dying.append(self._own(os.pidfd_open(pid)))
        for fd in self._dying:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        if self._cage is not None:
            self._cage.kill()

    def interrupt(self) -> None:
        """Kill the worker from another thread, unless it is closed; a thread waiting for its answer gets `Dead`."""
        with self._closing:
            if self._open:
                self.interrupted = True
                self.start_kill()

    def kill(self, timeout_s: float = _DEATH_S) -> None:
        """Kill the worker with all its processes; wait until they are dead and the device driver has released them.

        Raises:
            MachineError: A process does not die in time.
        """
        self.start_kill()
        deadline = time.monotonic() + timeout_s
        if not all(_readable(fd, max(0.0, deadline - time.monotonic())) for fd in self._dying):
            raise MachineError(
                f"worker {self.pid} did not die within {timeout_s:g} s of SIGKILL: one of its tasks hangs inside the "
                "kernel; restart the machine, or use another GPU"
            )

    def end(self) -> dict[str, Any]:
        """Kill what remains of the worker; return how it ended.

        Returns:
            The supervisor's report (see `Dead`), or `{"closed": True}` if the worker closed its channel and lived on.
        """
        if self._how is None:
            closed = False
            if not _readable(self._report_fd, 1.0):  # the channel may close a moment before the process does
                closed = self.alive
                self.kill()
                _readable(self._report_fd, 5.0)
            self.drain()
            try:
                self._how = json.loads(os.read(self._report_fd, 4096) or b"{}")
            except (BlockingIOError, ValueError):
                self._how = {}
            if closed:
                self._how = {"closed": True}
        return dict(self._how or {})

    def close(self) -> None:
        """Kill the worker, wait for its death and release its resources. A second call does nothing.

        Raises:
            MachineError: A process does not die in time.
        """
        with self._closing:
            if self._open:
                self.kill()
                self.end()
                self._open = False
                self._owned.close()


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _readable(fd: int, timeout_s: float) -> bool:
    """Return whether a descriptor becomes readable in time; a pidfd does when all threads of its process are dead."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))
