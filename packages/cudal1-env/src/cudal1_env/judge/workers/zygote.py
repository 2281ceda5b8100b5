"""The judge's handle of the zygote, the process from which workers are forked."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from cudal1_worker import protocol as wire
from cudal1_worker.sandbox import NOBODY, Spec

from cudal1_env.errors import MachineError, WorkerLostError
from cudal1_env.judge.device.memory import SharedBlock
from cudal1_env.judge.workers.worker import Dead, Late, Worker
from cudal1_env.sandbox import Cage, CgroupUnavailable, clean_environment

_START_TIMEOUT_S = 60.0
_FORK_TIMEOUT_S = 20.0
_USERS = range(61184, 65520)
"""Users of root's workers: no account has them, because systemd gives them to services for a while."""
_workers = itertools.count(os.getpid())


class Zygote:
    """The process from which workers are forked; started by exec, and restarted if it dies."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, preload: Sequence[str] = ()) -> None:
        self._environment = dict(environment or {})
        self._preload = tuple(preload)
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self.torch = ""
        """Version of the workers' torch."""
        self.cuda: str | None = None
        """CUDA version of the workers' torch."""

    def start(self) -> None:
        """Start the process, unless it runs. Several threads may call it.

        It starts without preloaded modules if one of them opens a GPU: a process that opened a GPU cannot be forked
        into workers that use it.

        Raises:
            MachineError: The process does not start in time.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._run() and self._preload:
                self.close()
                self._preload = ()
                self._run()

    def _run(self) -> bool:
        """Start the process; return whether it has opened a GPU."""
        ours, theirs = socket.socketpair()
        environment = clean_environment(
            OMP_NUM_THREADS="1",
            MKL_NUM_THREADS="1",
            OMP_WAIT_POLICY="PASSIVE",  # a waiting oracle must not keep a core busy
            # Keep freed memory in the process. By default, glibc decides by the order of early calls whether to return
            # large blocks to the system; processes with the same code then differ by a factor of two in time.
            MALLOC_MMAP_THRESHOLD_=str(1 << 40),
            MALLOC_TRIM_THRESHOLD_=str(1 << 40),
            MALLOC_TOP_PAD_=str(64 << 20),
            # torch.compile: no compiler processes (the gate would kill them, and an arm has one core), and no
            # precompiled header, which takes 4 s and is used once.
            TORCHINDUCTOR_COMPILE_THREADS="1",
            TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0",
            PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        )
        environment |= self._environment
        self._channel = ours
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
        try:
            ready = self._answer(_START_TIMEOUT_S)
        except (wire.ChannelClosed, wire.ChannelTimeout) as error:
            raise MachineError(f"the zygote did not start within {_START_TIMEOUT_S:g} s: {error}") from error
        self.torch, self.cuda = ready["torch"], ready["cuda"]
        return bool(ready["touched"])

    def fork(self, role: Literal["arm", "oracle"], spec: Spec) -> Worker:
        """Fork a worker and wait until it has entered its sandbox.

        Raises:
            WorkerLostError: The zygote or the new worker died or timed out.
        """
        spec = replace(spec, user=_next_user())
        with ExitStack() as ours:
            with ExitStack() as theirs:
                channel, their_channel = _sockets(ours, theirs)
                orders, their_orders = _sockets(ours, theirs)
                log_fd, their_log = _pipe(ours, theirs)
                report_fd, their_report = _pipe(ours, theirs)
                with contextlib.suppress(PermissionError):
                    fcntl.fcntl(their_log, fcntl.F_SETPIPE_SZ, 1 << 20)
                pages: list[SharedBlock] = []
                if role == "arm":
                    pages = [SharedBlock(wire.PAGE_BYTES, sealed=True), SharedBlock(wire.PAGE_BYTES, sealed=False)]
                for page in pages:
                    ours.callback(page.close)
                fds = [their_channel, their_log, their_report, their_orders, *(page.fd for page in pages)]
                with self._lock:
                    answer = self._ask_to_fork(role, spec, fds)
            if (pid := answer["worker"]) is None:
                fault = os.read(report_fd, 4096).decode("utf-8", "replace")
                raise WorkerLostError(f"the supervisor could not make a worker: {fault}")
            try:
                cage = _caged(pid, spec, ours)
                worker = Worker(pid, answer["supervisor"], channel, orders, log_fd, report_fd, pages, cage, ours)
            except (ProcessLookupError, FileNotFoundError) as error:
                raise WorkerLostError(f"the new worker {pid} died at once: {error}") from error
        try:
            ready = worker.answer(timeout_s=_FORK_TIMEOUT_S)
        except BaseException as error:
            worker.close()
            if not isinstance(error, Dead | Late):
                raise
            raise WorkerLostError(
                f"the new worker {pid} did not enter its sandbox: {error}; its log: {worker.log}"
            ) from error
        worker.layers, worker.missing = tuple(ready["layers"]), tuple(ready["missing"])
        if cage is None:
            worker.missing += ("cgroup",)
        else:
            worker.layers += ("cgroup",)
        return worker

    def _ask_to_fork(self, role: str, spec: Spec, fds: list[int]) -> wire.Message:
        """Request a worker."""
        self.start()
        try:
            return self._answer(_FORK_TIMEOUT_S, {"role": role, "spec": spec.to_json()}, fds)
        except (wire.ChannelClosed, wire.ChannelTimeout) as error:
            raise WorkerLostError(f"the zygote did not fork a worker within {_FORK_TIMEOUT_S:g} s: {error}") from error

    def _answer(self, timeout_s: float, request: wire.Message | None = None, fds: Sequence[int] = ()) -> wire.Message:
        """Return the answer to a request, or the first message. Without one, also after an interrupt, stop the process.

        Its answer would be taken for the next request's.
        """
        assert self._channel is not None
        try:
            if request is not None:
                wire.send(self._channel, request, fds)
            return wire.receive(self._channel, timeout_s=timeout_s)[0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the zygote; its workers die with it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _next_user() -> int:
    """Return a user that no living worker of this process has; `NOBODY` where a container has too few users."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        spans = [(int(first), int(count)) for first, _, count in map(str.split, file)]
    if not any(first <= _USERS[0] and _USERS[-1] < first + count for first, count in spans):
        return NOBODY
    return _USERS[next(_workers) % len(_USERS)]


def _sockets(ours: ExitStack, theirs: ExitStack) -> tuple[socket.socket, int]:
    """Return our end of a socket pair and the descriptor of theirs; each stack closes its own."""
    one, other = socket.socketpair()
    return ours.enter_context(one), theirs.enter_context(other).fileno()


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """Return our non-blocking read end of a pipe and their write end; each stack closes its own."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


def _caged(pid: int, spec: Spec, ours: ExitStack) -> Cage | None:
    """Move a new worker into a control group with the limits of `spec`; None if this judge may not create groups."""
    try:
        cage = Cage.make()
    except CgroupUnavailable:
        return None
    ours.callback(cage.remove)
    # Memory shared with the zygote stays charged to the zygote's group.
    cage.limit(memory_bytes=spec.memory_bytes, tasks=spec.max_processes)
    cage.add(pid)
    return cage
