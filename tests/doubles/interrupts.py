"""An interrupt that a test sends itself, as Ctrl-C would."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest


class InterruptError(Exception):
    """What the interrupt raises in the main thread."""


@contextlib.contextmanager
def interrupted(after_s: float, *, within_s: float) -> Iterator[None]:
    """Interrupt the block after some seconds; it must end by the interrupt within others."""

    def interrupt(*_: object) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGUSR1))
    began = time.monotonic()
    try:
        timer.start()
        with pytest.raises(InterruptError):
            yield
        assert time.monotonic() - began < within_s
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
