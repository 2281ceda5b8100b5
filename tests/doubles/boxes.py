"""Workers for the sandbox's tests: a small zygote, on request with torch imported, which runs texts in a sandbox.

It does what the judge's zygote does, in the same order, with the parts left out that have nothing to do with the
sandbox. A text finds `os`, `sys`, `page` (memory shared with the test) and `tell(value)`; what it leaves in `result`
is told at its end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from typing import Any

from cudal1_worker import sandbox

PAGE_BYTES = 4096
PATIENCE_S = 60.0


class Raised(Exception):
    """The text raised an exception; the words are `Type: message`."""


class Box:
    """A worker that runs one text."""

    def __init__(self, words: socket.socket, control: socket.socket, page: mmap.mmap, report_fd: int) -> None:
        self.words, self.control, self.page, self.report_fd = words, control, page, report_fd
        self._heard: list[dict[str, Any]] = []
        words.settimeout(PATIENCE_S)
        self.pid, self.supervisor = self._hear("pids")
        self.layers: tuple[str, ...] = ()

    def _hear(self, wanted: str) -> Any:
        """The next message of a kind; worker and supervisor speak over one socket, in any order."""
        while True:
            for position, message in enumerate(self._heard):
                if wanted in message:
                    return self._heard.pop(position)[wanted]
                if "raised" in message and wanted != "pids":  # the supervisor's message may come after the worker's end
                    raise Raised(message["raised"])
            data = self.words.recv(1 << 20)
            assert data, f"expected `{wanted}`, worker and supervisor are gone"
            self._heard.append(json.loads(data))

    def report(self) -> dict[str, Any]:
        """What the worker says of its layers, and how long it took to enter them."""
        report = self._hear("report")
        self.layers = tuple(report["active"])
        return report

    def value(self) -> Any:
        """The next value that the text tells."""
        return self._hear("value")

    def end(self) -> int:
        """The signal that ended the worker, or 0."""
        self._heard = [message for message in self._heard if "raised" not in message]
        status = self._hear("status")
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    def close(self) -> None:
        """Kill the worker and wait for its end."""
        self.control.close()
        with contextlib.suppress(AssertionError, Raised):  # its end was heard before
            self.end()
        self.words.close()
        self.page.close()
        os.close(self.report_fd)


class Boxes:
    """The zygote, seen from the tests."""

    def __init__(self, *imports: str) -> None:
        ours, theirs = socket.socketpair()
        self.channel = ours
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-B", __file__, str(theirs.fileno()), *imports],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        theirs.close()
        ours.settimeout(PATIENCE_S)
        assert ours.recv(1) == b"r"
        self.open: list[Box] = []

    def start(self, source: str, spec: sandbox.Spec, *, gate: bool = True, enter: bool = True) -> Box:
        """Start a worker that runs `source` inside `spec` (or, for comparison, outside any sandbox)."""
        words, their_words = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control, their_control = socket.socketpair()
        page_fd = os.memfd_create("page")
        os.ftruncate(page_fd, PAGE_BYTES)
        request = {"source": textwrap.dedent(source), "spec": spec.to_json(), "gate": gate, "enter": enter}
        data = json.dumps(request).encode()
        report_fd, their_report = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(report_fd, False)
        fds = [their_words.fileno(), their_control.fileno(), page_fd, their_report]
        socket.send_fds(self.channel, [len(data).to_bytes(4, "little") + data], fds)
        page = mmap.mmap(page_fd, PAGE_BYTES)
        for closed in (their_words, their_control):
            closed.close()
        for fd in (page_fd, their_report):
            os.close(fd)
        box = Box(words, control, page, report_fd)
        self.open.append(box)
        return box

    def clear(self) -> None:
        """Close every worker."""
        while self.open:
            self.open.pop().close()

    def stop(self) -> None:
        """Stop the zygote."""
        self.clear()
        self.channel.close()
        self.process.wait(PATIENCE_S)


# -- the zygote's own side ---------------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> None:
    """Fork a supervisor for each request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    channel.sendall(b"r")
    while True:
        head, fds, _, _ = socket.recv_fds(channel, 4, 4)
        if not head:
            return
        data = b""
        while len(data) < int.from_bytes(head, "little"):
            data += channel.recv(int.from_bytes(head, "little") - len(data))
        if os.fork() == 0:
            channel.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _supervise(json.loads(data), *fds)
        for fd in fds:
            os.close(fd)


def _supervise(request: dict[str, Any], words_fd: int, control: int, page_fd: int, told: int) -> None:
    import time

    words = socket.socket(fileno=words_fd)
    try:
        began = time.monotonic()
        spec = sandbox.Spec.from_json(request["spec"])
        report = sandbox.unshare_namespaces(spec) if request["enter"] else sandbox.Report()
        gate = sandbox.Gate() if request["gate"] else None
        worker = os.fork()
        if worker == 0:
            os.close(control)
            os.close(told)
            _work(request, spec, report, gate, words, page_fd, began)
        words.send(json.dumps({"pids": [worker, os.getpid()]}).encode())
        status = gate.keep(worker, control) if gate is not None else _wait(worker, control)
        os.write(told, json.dumps({"signal": status}).encode())
        words.send(json.dumps({"status": status}).encode())
    except BaseException as error:  # noqa: BLE001 - the test shall hear of it
        words.send(json.dumps({"raised": f"{type(error).__name__}: {error}"}).encode())
    os._exit(0)


def _wait(worker: int, control: int) -> int:
    end = os.pidfd_open(worker)
    if control in select.select([end, control], [], [])[0]:
        os.kill(worker, signal.SIGKILL)
    return os.waitpid(worker, 0)[1]


def _work(
    request: dict[str, Any],
    spec: sandbox.Spec,
    report: sandbox.Report,
    gate: sandbox.Gate | None,
    words: socket.socket,
    page_fd: int,
    began: float,
) -> None:
    import time

    def say(**message: Any) -> None:
        words.send(json.dumps(message).encode())

    try:
        page = mmap.mmap(page_fd, PAGE_BYTES)
        if request["enter"]:
            sandbox.enter(spec, report, gate)
        elif gate is not None:
            gate.pass_on(None)
        sandbox.keep_only([words.fileno()])
        say(report={"active": report.active, "missing": report.missing, "ready_s": time.monotonic() - began})
        names: dict[str, Any] = {"os": os, "sys": sys, "page": page, "tell": lambda value: say(value=value)}
        exec(compile(request["source"], "text", "exec"), names)
        if "result" in names:
            say(value=names["result"])
    except BaseException as error:  # noqa: BLE001 - the test shall hear of it
        say(raised=f"{type(error).__name__}: {error}")
    os._exit(0)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
