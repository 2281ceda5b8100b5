"""Lists processes from /proc, for the judge and for a worker's supervisor."""

from __future__ import annotations

import contextlib
import os

STOPPED = b"T"
DEAD = (b"Z", b"X")
STAT_BYTES = 512
"""Bytes of /proc/PID/stat that include the number of threads."""


def state_of(line: bytes) -> tuple[bytes, int, int]:
    """Return state letter, parent and number of threads from a line of /proc/PID/stat.

    The process chooses the name in brackets, which may contain brackets; the last one ends it.
    """
    fields = line[line.rindex(b")") + 2 :].split(b" ", 18)
    return fields[0], int(fields[1]), int(fields[17])


def living() -> dict[int, int]:
    """Return pid and parent of every process with a living thread; its first thread may be dead while others run."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent, threads = state_of(file.read(STAT_BYTES))
                if state not in DEAD or threads > 1:
                    parents[int(name)] = parent
    return parents


def descendants(root: int) -> set[int]:
    """Return the living descendants of `root`."""
    parents = living()
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {root}
