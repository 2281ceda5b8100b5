"""The zygote and its workers, seen from the judge."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cudal1_worker import protocol as wire
from cudal1_worker.gpus import touched_gpu
from cudal1_worker.sandbox import Spec

from cudal1_env.errors import MachineError, WorkerLostError
from cudal1_env.judge.device.memory import SharedBlock
from cudal1_env.sandbox import Cage, CgroupUnavailable, WorkerGone, clean_environment
from cudal1_env.sandbox import Worker as Hold

_START_TIMEOUT_S = 60.0
_FORK_TIMEOUT_S = 20.0
_LOG_KEPT = 4000
_LOG_READS = 32
"""Reads of 64 KiB from a log at a time: a worker may write faster than anybody reads."""
_F_SETPIPE_SZ = 1031


class Dead(Exception):
    """A worker ended; `how` is what its supervisor saw: `{"signal": n}` or `{"exit": n}`."""

    def __init__(self, how: dict[str, Any]) -> None:
        super().__init__(str(how))
        self.how = how


class Late(Exception):
    """A worker did not answer in time."""


class Worker:
    """One worker process: its channel, its pages, its log, its end.

    Args:
        hold: Stops and kills the worker.
        channel: Our end of the socket.
        log_fd: Read end of its standard output and error.
        report_fd: Read end of the supervisor's report.
        orders: The supervisor's orders: it closes the gate, and kills the worker when this is closed.
        control: Page that the worker can only read; None for an oracle.
        reply: Page that the worker writes; None for an oracle.
    """

    def __init__(
        self,
        hold: Hold,
        channel: socket.socket,
        log_fd: int,
        report_fd: int,
        orders: socket.socket,
        control: SharedBlock | None,
        reply: SharedBlock | None,
    ) -> None:
        self.hold = hold
        self.pid = hold.pid
        self.pidfd = os.pidfd_open(hold.pid)
        self.channel = channel
        self._orders = orders
        self.control = control
        self.reply = reply
        self.layers: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self._log_fd = log_fd
        self._report_fd = report_fd
        self._log = b""
        self._muted = False
        self._how: dict[str, Any] | None = None
        self._open = True

    def ask(self, message: wire.Message, fds: Sequence[int] = (), *, timeout_s: float) -> wire.Message:
        """Send a message and wait for the answer, draining the log meanwhile.

        Raises:
            Dead: The worker ended.
            Late: No answer in time.
            BadMessage: What came is no message.
        """
        try:
            wire.send(self.channel, message, fds, timeout_s=timeout_s)
        except wire.ChannelClosed:
            raise Dead(self.end()) from None
        except wire.ChannelTimeout:
            raise Late("it does not listen") from None
        return self.answer(timeout_s=timeout_s)

    def answer(self, *, timeout_s: float) -> wire.Message:
        """Wait for a message, draining the log meanwhile.

        Raises:
            Dead: The worker ended.
            Late: No answer in time.
            BadMessage: What came is no message.
        """
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
                    raise Late("half a message") from None
                except wire.ChannelClosed:
                    raise Dead(self.end()) from None
                return message

    def drain(self) -> bool:
        """Take what the log holds, keep its end; False once the other side has closed it."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_LOG_READS):
                data = os.read(self._log_fd, 1 << 16)
                if not data:
                    return False
                if not self._muted:
                    self._log = (self._log + data)[-_LOG_KEPT:]
        return True

    def mute(self) -> None:
        """Keep nothing of what the worker prints from now on."""
        self.drain()
        self._muted = True

    @property
    def log(self) -> str:
        """The end of what the worker printed (untrusted text)."""
        return self._log.decode("utf-8", "replace")

    @property
    def alive(self) -> bool:
        """Whether the worker has not ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def freeze(self) -> None:
        """Stop the worker with all that it made; return when that is certain.

        Raises:
            Dead: The worker ended.
            Late: It does not stop.
        """
        try:
            self.hold.freeze()
        except WorkerGone:
            raise Dead(self.end()) from None
        except TimeoutError as error:
            raise Late(str(error)) from None

    def thaw(self) -> None:
        """Let the worker run again.

        Raises:
            Dead: The worker ended.
        """
        try:
            self.hold.thaw()
        except WorkerGone:
            raise Dead(self.end()) from None

    def pin(self, core: int) -> None:
        """Hold the worker, which is frozen, to one core; it cannot undo that.

        Raises:
            Dead: The worker ended.
        """
        try:
            self.hold.pin(core)
        except WorkerGone:
            raise Dead(self.end()) from None

    def seal(self) -> None:
        """Take away the worker's right to make processes, for good, and kill those it made. It is frozen afterwards.

        Without a gate (see `layers`) each later freeze looks for processes again.

        Raises:
            Dead: The worker ended.
            Late: It does not stop.
        """
        try:
            self.hold.seal(self._orders if "fork-gate" in self.layers else None)
        except WorkerGone:
            raise Dead(self.end()) from None
        except TimeoutError as error:
            raise Late(str(error)) from None

    def kill(self) -> None:
        """Kill the worker with all that it made; wait until it is gone."""
        try:
            self.hold.kill_all()
        except TimeoutError as error:
            raise MachineError(str(error)) from error

    def end(self) -> dict[str, Any]:
        """Kill what is left of the worker; return how it ended.

        Returns:
            What the supervisor saw (see `Dead`), or `{"closed": True}` for a worker that lived on without its channel.
        """
        if self._how is None:
            poll = select.poll()
            poll.register(self._report_fd, select.POLLIN)
            closed = False
            if not poll.poll(1000):  # the channel may close a moment before the process does
                closed = self.alive
                self.kill()
                poll.poll(5000)
            with contextlib.suppress(BlockingIOError):
                self.drain()
            try:
                self._how = json.loads(os.read(self._report_fd, 4096) or b"{}")
            except (BlockingIOError, ValueError):
                self._how = {}
            if closed:
                self._how = {"closed": True}
        return dict(self._how or {})

    def uses_gpu(self) -> bool:
        """Whether the worker may be at work on a GPU: it has opened one, or has a child that might have."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError):
            if children.read_text().strip():
                return True
        try:
            return touched_gpu(self.pid)
        except PermissionError:  # nobody knows
            return True

    def close(self) -> None:
        """Kill the worker and give every descriptor back."""
        if not self._open:
            return
        self._open = False
        self.kill()
        self.end()
        self.channel.close()
        self._orders.close()
        for fd in (self._log_fd, self._report_fd, self.pidfd):
            os.close(fd)
        self.hold.close()
        if self.hold.cage is not None:
            self.hold.cage.remove()
        for block in (self.control, self.reply):
            if block is not None:
                block.close()


def caged(spec: Spec) -> Cage | None:
    """Make a control group with the limits of `spec`; None where this judge may not make groups."""
    try:
        cage = Cage.make(uuid.uuid4().hex[:12])
    except CgroupUnavailable:
        return None
    # The zygote's own memory was charged elsewhere; what a fork shares stays there.
    cage.limit(memory_bytes=spec.memory_bytes, tasks=spec.max_processes)
    return cage


class Zygote:
    """The process from which workers are forked; started by exec, restarted if it dies.

    Args:
        environment: Variables of the workers, beside those that they share with the judge.
        preload: Modules that it imports beside torch, as far as there are such.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, preload: Sequence[str] = ()) -> None:
        self._environment = dict(environment or {})
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self.torch = ""
        """Version of the workers' torch."""
        self.cuda: str | None = None
        """CUDA version of the workers' torch."""
        self._touched = False

    def usable(self) -> bool:
        """Start it, and tell whether what it preloads left GPUs alone: else its workers could not use them."""
        with self._lock:
            if not self._touched:
                self.start()
                if self._touched:
                    self.close()
            return not self._touched

    def start(self) -> None:
        """Start the process, unless it runs.

        Raises:
            MachineError: It does not come up.
        """
        if self._process is not None and self._process.poll() is None:
            return
        ours, theirs = socket.socketpair()
        environment = clean_environment(
            OMP_NUM_THREADS="1",
            MKL_NUM_THREADS="1",
            OMP_WAIT_POLICY="PASSIVE",  # an oracle that waits must not keep a core busy
            # Freed memory stays in the process. By default glibc decides from the order of early calls whether large
            # blocks go back to the system, and two processes with the same code differ by a factor of two.
            MALLOC_MMAP_THRESHOLD_=str(1 << 40),
            MALLOC_TRIM_THRESHOLD_=str(1 << 40),
            MALLOC_TOP_PAD_=str(64 << 20),
            # torch.compile: no processes of its own, which the gate would kill, on the one core that an arm has; and no
            # header compiled beforehand, which costs 4 s and is used once.
            TORCHINDUCTOR_COMPILE_THREADS="1",
            TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0",
            PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        )
        environment |= self._environment
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", "-m", "cudal1_worker.zygote", str(theirs.fileno()), *self._preload],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._channel = ours
        try:
            ready, _ = wire.receive(ours, timeout_s=_START_TIMEOUT_S)
        except (wire.ChannelClosed, wire.ChannelTimeout) as error:
            self.close()
            raise MachineError(f"expected the zygote to start within {_START_TIMEOUT_S:g} s: {error}") from error
        self.torch, self.cuda, self._touched = ready["torch"], ready["cuda"], ready["touched"]

    def fork(self, role: Literal["arm", "oracle"], spec: Spec) -> Worker:
        """Fork a worker and wait until it has entered its sandbox.

        Raises:
            WorkerLostError: The zygote or the new worker died on the way.
        """
        with contextlib.ExitStack() as ours_to_close:
            ours, theirs = socket.socketpair()
            log_read, log_write = os.pipe2(os.O_CLOEXEC)
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(log_write, _F_SETPIPE_SZ, 1 << 20)
            report_read, report_write = os.pipe2(os.O_CLOEXEC)
            for end in (log_read, report_read):
                os.set_blocking(end, False)
                ours_to_close.callback(os.close, end)
            orders, taken = socket.socketpair()
            ours_to_close.callback(ours.close)
            ours_to_close.callback(orders.close)
            pages: list[SharedBlock] = []
            if role == "arm":
                pages = [SharedBlock(wire.PAGE_BYTES, sealed=True), SharedBlock(wire.PAGE_BYTES, sealed=False)]
            for page in pages:
                ours_to_close.callback(page.close)
            fds = [theirs.fileno(), log_write, report_write, taken.fileno(), *(page.fd for page in pages)]
            try:
                with self._lock:
                    answer = self._ask_to_fork(role, spec, fds)
            finally:
                theirs.close()
                taken.close()
                os.close(log_write)
                os.close(report_write)
            if answer["worker"] is None:
                fault = os.read(report_read, 4096).decode("utf-8", "replace")
                raise WorkerLostError(f"expected a worker, the supervisor failed: {fault}")
            try:
                hold = Hold(answer["worker"], caged(spec))
            except WorkerGone as error:
                raise WorkerLostError(f"expected a worker to live until it is held, {error}") from error
            worker = Worker(hold, ours, log_read, report_read, orders, *(pages or (None, None)))
            ours_to_close.pop_all()  # the worker closes them from now on
        try:
            ready = worker.answer(timeout_s=_FORK_TIMEOUT_S)
        except (Dead, Late) as error:
            log = worker.log
            worker.close()
            raise WorkerLostError(f"expected a worker to enter its sandbox, got {error}; it said: {log}") from error
        worker.layers, worker.missing = tuple(ready["layers"]), tuple(ready["missing"])
        if hold.cage is not None:
            hold.cage.add(hold.pid)
            worker.layers += ("cgroup",)
        else:
            worker.missing += ("cgroup",)
        return worker

    def _ask_to_fork(self, role: str, spec: Spec, fds: list[int]) -> wire.Message:
        """Ask for a worker; a zygote that is late is stopped, because its answer would be taken for the next one's.

        Raises:
            WorkerLostError: It is dead or late.
        """
        self.start()
        assert self._channel is not None
        try:
            wire.send(self._channel, {"role": role, "spec": spec.to_json()}, fds)
            answer, _ = wire.receive(self._channel, timeout_s=_FORK_TIMEOUT_S)
        except (wire.ChannelClosed, wire.ChannelTimeout) as error:
            self.close()
            raise WorkerLostError(f"expected the zygote to fork a worker: {error}") from error
        return answer

    def close(self) -> None:
        """Stop the zygote; its workers die with it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
