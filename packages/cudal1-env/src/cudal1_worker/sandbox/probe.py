"""`python -m cudal1_worker.sandbox.probe`: print the sandbox layers that work on this machine, as JSON.

A short-lived worker enters the sandbox, then attempts forbidden actions. If the worker does not start (a kernel may
support a layer only partially), the probe retries without the layers that may be the cause.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Literal

from cudal1_worker import sandbox
from cudal1_worker.sandbox.spec import LAYERS, Report, Spec

_DOUBTFUL: tuple[tuple[str, ...], ...] = (
    (),
    ("fork-gate",),
    ("user-namespace",),
    ("user-namespace", "mount-namespace", "pid-namespace"),
    tuple(name for name in LAYERS if name.endswith("-namespace")),
    (*(name for name in LAYERS if name.endswith("-namespace")), "unprivileged-uid"),
)
"""Sets of layers to leave out, tried in order until a worker starts."""

Answer = dict[str, dict[str, str | None]]
"""`layers` and `attempts`: reason of the problem by name; None for no problem."""


def main() -> None:
    """Print which layers work for the device named by the first argument (default `cpu`)."""
    device: Literal["cpu", "cuda"] = "cuda" if sys.argv[1:2] == ["cuda"] else "cpu"
    sys.stdout.write(json.dumps(probe(device)) + "\n")


def probe(device: Literal["cpu", "cuda"] = "cpu") -> Answer:
    """Try the layers; return which are missing and why, and which forbidden attempts succeeded."""
    failed = ""
    for without in _DOUBTFUL:
        with tempfile.TemporaryDirectory(prefix="cudal1-probe-") as folder:
            os.chmod(folder, 0o777)  # without a mount namespace it is the worker's only writable folder
            spec = Spec(
                device=device,
                layers=tuple(name for name in LAYERS if name not in without),
                readable=sandbox.readable_paths(),
                build_dir=folder,
            )
            report, attempts, problem = _try(spec)
        if report is None:
            failed = problem
            continue
        reasons = {name: report.missing.get(name) for name in LAYERS}
        reasons |= dict.fromkeys(without, f"with it no worker started: {failed}")
        return {"layers": reasons, "attempts": attempts}
    return {"layers": dict.fromkeys(LAYERS, f"no worker started: {failed}"), "attempts": {}}


def _try(spec: Spec) -> tuple[Report | None, dict[str, str | None], str]:
    """Run one worker; return its report and attempts, or why there is none."""
    read_end, write_end = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(read_end)
        _supervise(spec, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read()
    os.waitpid(supervisor, 0)
    answer: dict[str, object] = json.loads(text) if text else {"problem": "the worker died without an answer"}
    if "problem" in answer:
        return None, {}, str(answer["problem"])
    report = Report(list(answer["entered"]), dict(answer["missing"]))  # type: ignore[call-overload]
    return report, dict(answer["attempts"]), ""  # type: ignore[call-overload]


def _supervise(spec: Spec, out: int) -> None:
    try:
        report = sandbox.unshare_namespaces(spec)
        gate = sandbox.Gate()
        worker = os.fork()
        if worker == 0:
            _work(spec, report, gate, out)
        os.close(out)
        gate.keep(worker)
    finally:
        os._exit(0)


def _work(spec: Spec, report: Report, gate: sandbox.Gate, out: int) -> None:
    try:
        sandbox.enter(spec, report, gate)
        _live(report)
        attempts = {name: _outcome(attempt) for name, attempt in ATTEMPTS.items()}
        answer: dict[str, object] = {"entered": report.entered, "missing": report.missing, "attempts": attempts}
    except BaseException as error:  # the next attempt leaves out more layers
        answer = {"problem": f"{type(error).__name__}: {error}"}
    os.write(out, json.dumps(answer).encode())
    os._exit(0)


def _live(report: Report) -> None:
    """Do what a program may do: write to its folder, start a process and a thread."""
    path = os.path.join(report.tmp, f"probe-{os.getpid()}")
    with open(path, "w", encoding="ascii") as file:
        file.write("x")
    os.unlink(path)
    subprocess.run(["/bin/sh", "-c", "exit 0"], check=True, stdin=subprocess.DEVNULL)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _open(path: str, flags: int) -> Callable[[], object]:
    return lambda: os.close(os.open(path, flags | os.O_CLOEXEC, 0o600))


def _connect() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(0.1)
        client.connect(("127.0.0.1", 9))


def _move() -> None:
    # Setting even the present affinity needs the right to set it.
    os.sched_setaffinity(0, os.sched_getaffinity(0))


def _signal_outside() -> None:
    if os.getppid() == 0:
        raise ProcessLookupError("no process is outside")
    os.kill(os.getppid(), 0)


ATTEMPTS: dict[str, Callable[[], object]] = {
    "write to /proc/sys/kernel/core_pattern": _open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "write to /proc/sys/vm/drop_caches": _open("/proc/sys/vm/drop_caches", os.O_WRONLY),
    "write outside its folder": _open("/var/cudal1-probe", os.O_WRONLY | os.O_CREAT),
    "write to a control group": _open("/sys/fs/cgroup/cudal1-probe", os.O_WRONLY | os.O_CREAT),
    "open a network socket": _connect,
    "choose a core": _move,
    "signal a process outside": _signal_outside,
    "read the memory of the machine": _open("/dev/mem", os.O_RDONLY),
}
"""Attempts that must fail inside the sandbox."""


def _outcome(attempt: Callable[[], object]) -> str | None:
    """Return why an attempt that must fail succeeded; None if it failed."""
    try:
        attempt()
    except OSError:
        return None
    return "the attempt succeeded; the sandbox must refuse it"


if __name__ == "__main__":
    main()
