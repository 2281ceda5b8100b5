"""Keeps the arms' core from sleeping until the moment at which an arm goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from cudal1_env.judge.device.memory import SharedBlock

_PAGE = 4096
_HELD, _SPINNING = 0, 1
_WAIT_S = 0.05
_PROGRAM = """
import mmap, os, sys
core, page, pipe = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
words = memoryview(mmap.mmap(page, 4096)).cast("Q")
judge = os.getppid()
while os.read(pipe, 1):  # nothing comes when the judge is dead
    words[1] = 1
    spins = 0
    while words[0]:
        spins += 1
        if not spins & 0xFFFFF and os.getppid() != judge:
            sys.exit()
    words[1] = 0
"""


class CoreKeeper:
    """A process that spins on the arms' core while no arm runs there, and makes way at once.

    A core that sleeps takes long to wake, and in a virtual machine unevenly long; an arm that is let go would pay that
    on the judge's clock. So the core is handed over awake: this process blocks when the arm is already runnable.

    It is started when it is first held.

    Args:
        core: Which; None does nothing.
    """

    def __init__(self, core: int | None) -> None:
        self.core = core
        self._process: subprocess.Popen[bytes] | None = None
        self._page: SharedBlock | None = None
        self._pipe = -1

    def _start(self, core: int) -> SharedBlock:
        page = SharedBlock(_PAGE, sealed=False)
        read_end, self._pipe = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(core), str(page.fd), str(read_end)],
            pass_fds=(page.fd, read_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        self._page = page
        return page

    def hold(self) -> None:
        """Spin, and return when it does (or after a while: then only the wake-up is uneven)."""
        if self.core is None:
            return
        words = (self._page or self._start(self.core)).words
        words[_HELD] = 1
        os.write(self._pipe, b"x")
        limit = time.perf_counter() + _WAIT_S
        while not words[_SPINNING] and time.perf_counter() < limit:
            pass

    def release(self) -> None:
        """Make way."""
        if self._page is not None:
            self._page.words[_HELD] = 0

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._pipe)
        if self._page is not None:
            self._page.close()
        self._process = self._page = None
