"""Progress of long work, sent to the package's logger, which is silent until a command enables it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

LOG = logging.getLogger("cudal1_data")
"""Logger of progress messages."""
SOON_S = 3.0
"""Shorter work reports nothing."""
QUIET_S = 15.0
"""Minimum time between two lines of the same work."""

Item = TypeVar("Item")


def paced(items: Iterable[Item], total: int, what: str, *, notify: Callable[[str], None] = LOG.info) -> Iterator[Item]:
    """Yield items and report the number done, at most every `QUIET_S`; a last line follows only if one came before.

    Args:
        items: The items to process.
        total: Number of items.
        what: Label of the count: `tasks traced`.
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
    """Write the package's messages to standard error while a command runs."""
    handler, level = logging.StreamHandler(sys.stderr), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
