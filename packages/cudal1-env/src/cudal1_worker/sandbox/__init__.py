"""The sandbox from inside: the layers that a forked worker enters before it runs an untrusted program.

Order of calls: the supervisor (forked from the zygote, one thread) calls `unshare_namespaces(spec)`, makes a `Gate()`
and forks. The child is the worker and calls `enter(spec, report, gate)`; then it may run programs. The supervisor calls
`gate.keep(worker, control)`, which returns how the worker ended. The worker can create processes until the judge closes
the gate over `control`. Only the standard library is imported here.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable

from cudal1_worker.sandbox import identity, landlock, libc, limits, mounts, namespaces, seccomp
from cudal1_worker.sandbox.gate import Gate
from cudal1_worker.sandbox.mounts import readable_paths
from cudal1_worker.sandbox.spec import (
    BUILD_PATH,
    GPU_NODE,
    HEADERS_PATH,
    LAYERS,
    NOBODY,
    Report,
    SandboxFailure,
    Spec,
)

__all__ = [
    "BUILD_PATH",
    "GPU_NODE",
    "HEADERS_PATH",
    "LAYERS",
    "NOBODY",
    "Gate",
    "Report",
    "SandboxFailure",
    "Spec",
    "enter",
    "keep_only",
    "readable_paths",
    "unshare_namespaces",
]


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that forked it ends."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request
        os._exit(1)


def keep_only(descriptors: Iterable[int]) -> None:
    """Close every other file descriptor above 2, because a worker's program can use all that the worker inherits."""
    lowest = 3
    for fd in sorted(fd for fd in descriptors if fd > 2):
        os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))


def unshare_namespaces(spec: Spec) -> Report:
    """Make the namespaces of a worker. Call it in the single-threaded supervisor, which then forks once.

    Without a pid namespace, orphans of the worker become the supervisor's children, so that none is lost.
    """
    report = Report()
    namespaces.unshare(spec, report)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    return report


def enter(spec: Spec, report: Report, gate: Gate | None = None) -> Report:
    """Enter every layer of `spec.layers` that this machine grants. Call it in the worker, before anything untrusted.

    Args:
        spec: The sandbox.
        report: The report from `unshare_namespaces`.
        gate: The supervisor's gate, made before the fork; with None a program can always create processes.

    Returns:
        The completed report.

    Raises:
        SandboxFailure: A layer of `spec.demanded` is missing, or the new root could not be finished.
    """
    inside = "pid-namespace" in report.entered
    parent = 0 if inside else os.getppid()
    if "uts-namespace" in report.entered:
        socket.sethostname("worker")  # a neutral one
    if spec.core is not None:
        os.sched_setaffinity(0, {spec.core})
    if "mount-namespace" in report.entered:
        try:
            mounts.enter(spec, own_proc=inside)
        except OSError as error:
            raise SandboxFailure(f"no new root: {error}; leave out mount-namespace") from error
    _place(spec, report)
    identity.drop(spec, report)
    _attempt(spec, report, "rlimits", lambda: limits.enter(spec, report))
    _attempt(spec, report, "no-new-privs", lambda: libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1))
    _attempt(spec, report, "landlock", lambda: landlock.enter(spec, report))
    _die_with_parent(parent)
    _filter(spec, report, gate)
    for name in LAYERS:
        if name not in report.entered:
            report.missing.setdefault(name, "left out")
    if lacking := [name for name in spec.demanded if name not in report.entered]:
        reasons = "; ".join(f"{name}: {report.missing[name]}" for name in lacking)
        raise SandboxFailure(f"demanded sandbox layers are missing: {reasons}")
    return report


def _attempt(spec: Spec, report: Report, layer: str, act: Callable[[], object]) -> None:
    if layer in spec.layers:
        with report.entering(layer):
            act()


def _filter(spec: Spec, report: Report, gate: Gate | None) -> None:
    """Install the system call filter, with the gate if there is one."""
    listener = None
    if gate is not None and {"seccomp", "fork-gate"} <= set(spec.layers):
        with report.entering("fork-gate"):  # fails on older kernels, or if an outer sandbox already listens
            listener = seccomp.enter(gate=True)
            report.entered.append("seccomp")
    if listener is None:
        _attempt(spec, report, "seccomp", lambda: seccomp.enter())
    if gate is not None:
        gate.pass_on(listener)


def _place(spec: Spec, report: Report) -> None:
    """Choose the worker's writable folder, and direct temporary files and caches to it."""
    own = "mount-namespace" in report.entered
    if spec.build_dir is not None:
        report.build = BUILD_PATH if own else spec.build_dir
    if not own:
        report.tmp = spec.build_dir or "/tmp"
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        os.environ[name] = report.tmp
    os.environ["LOGNAME"] = "worker"  # the system knows no name of the worker's user
