"""Resource limits (setrlimit) of a worker.

`RLIMIT_DATA` limits private writable memory, so that an allocation of 100 GB fails with an error that Python and torch
handle. `RLIMIT_AS` is not used: it counts address space, of which CUDA reserves terabytes without touching them.
`RLIMIT_DATA` ignores shared mappings; the judge's memory cgroup limits those. Without a cgroup, the kernel's
out-of-memory killer kills the worker first (`oom_score_adj`).
"""

from __future__ import annotations

import os
import resource

from cudal1_worker.sandbox.spec import Report, Spec

_OPEN_FILES = 4096
_FILE_BYTES = 1 << 30
_SHARED_ALLOWANCE = 4096
"""Added to the process limit if the kernel counts a user's processes over the whole machine."""


def enter(spec: Spec, report: Report) -> None:
    """Set every limit permanently."""
    # 1 and not 0: with 0 the kernel still starts the host's crash handler when core_pattern is a pipe.
    _lower(resource.RLIMIT_CORE, 1)
    _lower(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _lower(resource.RLIMIT_FSIZE, _FILE_BYTES)
    alone = "user-namespace" in report.entered and _kernel() >= (5, 14)
    _lower(resource.RLIMIT_NPROC, spec.max_processes + (0 if alone else _SHARED_ALLOWANCE))
    _lower(resource.RLIMIT_MSGQUEUE, 0)
    if spec.device == "cpu" and spec.memory_bytes is not None:
        _lower(resource.RLIMIT_DATA, spec.memory_bytes + _data_bytes())
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _lower(which: int, value: int) -> None:
    """Set soft and hard limit to `value`, or to the present hard limit if that is lower."""
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _data_bytes() -> int:
    """Return this process's private writable memory in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdigit()) or 0)
