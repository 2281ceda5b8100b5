"""Budget of time and candidates. Work that runs when a time is over is interrupted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

CONFIRMING_SHARE = 0.4
"""Share of the time that is reserved for confirming, at most `CONFIRMING_S`."""
CONFIRMING_S = 150.0
"""Seconds that confirming takes on a busy machine: three evaluations at `report` precision, and the drop-in's times."""
_CLOSING_SHARE, _CLOSING_S = 0.05, 5.0
"""Share of the time that is reserved for stopping the judge and writing the folder, at most that many seconds."""


class OverError(Exception):
    """A time is over. It never leaves `cudal1_agent.optimize`."""


class Budget:
    """Time and candidates that are left; the time runs from construction.

    >>> budget = Budget(100.0, 8)
    >>> round(budget.left_s), round(budget.search_s), budget.candidates
    (95, 55, 8)
    """

    def __init__(self, seconds: float, candidates: int) -> None:
        self.seconds = seconds
        self.candidates = candidates
        """Programs that may be judged."""
        self._began = time.monotonic()

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """Seconds that are left until the end, apart from closing."""
        return self.seconds - self.spent_s - min(_CLOSING_SHARE * self.seconds, _CLOSING_S)

    @property
    def search_s(self) -> float:
        """Seconds that are left for the search."""
        return self.left_s - min(CONFIRMING_SHARE * self.seconds, CONFIRMING_S)

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Interrupt the block after some seconds, as Ctrl-C would.

        Outside the main thread, which alone receives signals, nothing is interrupted.

        Raises:
            OverError: The time is over.
        """
        if seconds <= 0:
            raise OverError
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def over(_: int, __: FrameType | None) -> None:
            raise OverError

        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
