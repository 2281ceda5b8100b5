"""The zygote: a process with torch imported, from which every worker is forked in milliseconds.

The judge starts `python -m cudal1_worker.zygote FD` by exec, with a clean environment, before any secret exists. The
zygote never runs an untrusted program. For each worker it forks a supervisor, which makes namespaces, forks the worker
(process 1 of its pid namespace) and reports how the worker ended. Programs reach the worker over its own channel and
never pass through the zygote.

Descriptors of a fork request, in this order: the worker's channel, its log, the supervisor's report, the supervisor's
orders (the gate), and for an arm the control page and the reply page.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import warnings
from typing import NoReturn

import torch

from cudal1_worker import compilers, sandbox
from cudal1_worker import protocol as wire
from cudal1_worker.gpus import touched_gpu
from cudal1_worker.oracle.oracle import Oracle
from cudal1_worker.preload import preload, pretend_gpu
from cudal1_worker.program.arm import Arm


def main() -> None:
    """Serve fork requests until the judge closes the channel."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors leave no zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge handles ctrl-c
    torch.set_num_threads(1)
    preload(sys.argv[2:])
    warnings.filterwarnings("ignore", message="The given buffer is not writable")  # inputs are intentionally read-only
    gc.collect()
    gc.freeze()
    ready = {"torch": torch.__version__, "cuda": torch.version.cuda, "touched": touched_gpu()}
    wire.send(channel, {"ready": True, **ready})
    while True:
        try:
            message, fds = wire.receive(channel)
        except wire.ChannelClosed:
            return
        read_end, write_end = os.pipe()
        supervisor = os.fork()
        if supervisor == 0:
            channel.close()
            os.close(read_end)
            supervise(message, fds, write_end)
        os.close(write_end)
        for fd in fds:
            os.close(fd)
        with os.fdopen(read_end, "rb") as pipe:
            answer = pipe.read()
        wire.send(channel, {"supervisor": supervisor, **(json.loads(answer) if answer else {"worker": None})})


def supervise(message: wire.Message, fds: list[int], pid_pipe: int) -> NoReturn:
    """Make namespaces, fork the worker, serve its gate, report its end, exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    report_fd, orders_fd = fds[2], fds[3]
    try:
        os.setsid()
        spec = sandbox.Spec.from_json(message["spec"])
        report = sandbox.unshare_namespaces(spec)
        gate = sandbox.Gate()
        worker = os.fork()
        if worker == 0:
            for fd in (pid_pipe, report_fd, orders_fd):
                os.close(fd)
            live(message["role"], spec, report, gate, fds)
        os.write(pid_pipe, json.dumps({"worker": worker}).encode())
        os.close(pid_pipe)
        for fd in fds:
            if fd not in (report_fd, orders_fd):
                os.close(fd)
        status = gate.keep(worker, orders_fd)
        how = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"exit": os.WEXITSTATUS(status)}
    except Exception as error:  # a fault of the machine: the judge raises it
        how = {"fault": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):  # the judge may be gone
        os.write(report_fd, json.dumps(how).encode())
    os._exit(0)


def live(role: str, spec: sandbox.Spec, report: sandbox.Report, gate: sandbox.Gate, fds: list[int]) -> NoReturn:
    """Run as the worker: enter the sandbox, report it, serve, exit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel_fd, log_fd, _, _, *pages = fds
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.close(log_fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the worker is killed, never flushed
    channel = socket.socket(fileno=channel_fd)
    code = 0
    try:
        entered = sandbox.enter(spec, report, gate)
        sandbox.keep_only([0, 1, 2, channel_fd, *pages])
        _point_compilers(entered)
        if spec.blind:
            pretend_gpu()
        # An arm is timed on one core; the oracle is not timed and may use all cores.
        torch.set_num_threads(1 if role == "arm" else len(os.sched_getaffinity(0)))
        wire.send(channel, {"ready": True, "layers": list(entered.active), "missing": entered.missing})
        if role == "arm":
            Arm(channel, *pages).serve()
        else:
            Oracle(channel).serve()
    except wire.ChannelClosed:
        pass  # the judge has ended or no longer needs the worker
    except BaseException as error:
        os.write(2, f"worker: {type(error).__name__}: {error}\n".encode())
        code = 70
    os._exit(code)


def _point_compilers(entered: sandbox.Report) -> None:
    """Let compilers write to the build folder, which the judge may copy."""
    if entered.build is not None:
        os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(entered.build, "torch_extensions")
        os.environ["TRITON_CACHE_DIR"] = os.path.join(entered.build, "triton")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(entered.build, "inductor")
        os.environ.update(compilers.settings(os.environ, entered.build))
        if entered.build == sandbox.BUILD_PATH:
            os.environ["CUDAL1_HEADERS"] = sandbox.HEADERS_PATH


if __name__ == "__main__":
    main()
