"""Processes as /proc shows them, for the judge and for a worker's supervisor."""

from __future__ import annotations

import contextlib
import os

STOPPED = b"T"
DEAD = (b"Z", b"X")
STAT_BYTES = 512
"""Enough of /proc/PID/stat for the number of threads."""


def state_of(line: bytes) -> tuple[bytes, int, int]:
    """State letter, parent and number of threads from a line of /proc/PID/stat.

    The name in brackets is the process's to choose; the last bracket closes it.
    """
    fields = line[line.rindex(b")") + 2 :].split(b" ", 18)
    return fields[0], int(fields[1]), int(fields[17])


def living() -> dict[int, int]:
    """Return pid and parent of every process of which a thread lives: the first may be dead while others run on."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent, threads = state_of(file.read(STAT_BYTES))
                if state not in DEAD or threads > 1:
                    parents[int(name)] = parent
    return parents


def descendants(root: int) -> set[int]:
    """Return the living processes whose chain of parents leads to `root`."""
    parents = living()
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {root}
