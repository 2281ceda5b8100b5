"""A process that keeps the arms' core from sleeping, and gives way to anything else that wants to run there."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator

_PROGRAM = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the judge
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    pass
"""


@contextlib.contextmanager
def kept_awake(core: int | None) -> Generator[None]:
    """Keep a core awake for a while.

    A core that sleeps takes tens of microseconds to wake, and in a virtual machine more and unevenly; a worker that is
    let go would pay that on the judge's clock. This process has the scheduler's idle class: it runs when nothing else
    does.

    Args:
        core: Which; None does nothing.
    """
    if core is None:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, str(core)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
