"""How far long work has come. The package says it to its logger, which is silent until a command lets it speak."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

LOG = logging.getLogger("cudal1_data")
"""Takes what a person who waits wants to know."""
SOON_S = 3.0
"""Work that takes no longer than this says nothing."""
QUIET_S = 15.0
"""Shortest time between two lines of one piece of work."""

Item = TypeVar("Item")


def paced(items: Iterable[Item], total: int, what: str, *, notify: Callable[[str], None] = LOG.info) -> Iterator[Item]:
    """Hand items on and tell, every `QUIET_S` at most, how many are done; the last line only behind an earlier one.

    Args:
        items: What is worked on, one after another.
        total: How many there are.
        what: What is done to them: `tasks traced`.
        notify: Called with each line.

    >>> list(paced("abc", 3, "letters read"))
    ['a', 'b', 'c']
    """
    due_s, done, spoken = time.monotonic() + SOON_S, 0, False
    for item in items:
        if time.monotonic() >= due_s:
            due_s, spoken = time.monotonic() + QUIET_S, True
            notify(f"{done} of {total} {what}")
        yield item
        done += 1
    if spoken:
        notify(f"{done} of {total} {what}")


@contextmanager
def on_stderr() -> Generator[None]:
    """Write what the package says to standard error, as long as a command runs."""
    handler, level = logging.StreamHandler(sys.stderr), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
