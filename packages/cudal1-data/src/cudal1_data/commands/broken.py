"""Messages about tasks that a command leaves out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudal1_data.errors import BrokenTaskError

if TYPE_CHECKING:
    from cudal1_data.suite import Suite

SHOWN = 10
"""Maximum number of reasons or names to print; a count stands for the rest."""


def report_broken(suite: Suite) -> None:
    """Print to standard error why tasks of a suite cannot be used.

    Raises:
        BrokenTaskError: None of them can.
    """
    report_left_out([str(entry.error) for entry in suite.broken])
    if suite.broken and not len(suite):
        raise BrokenTaskError(f"no task of {suite.name} can be used; mend its files, or name another suite")


def report_left_out(reasons: Sequence[str]) -> None:
    """Print to standard error the first reasons why something was left out, and the number of others."""
    for reason in reasons[:SHOWN]:
        print(f"left out: {reason}", file=sys.stderr)
    if len(reasons) > SHOWN:
        print(f"left out: {len(reasons) - SHOWN} more, {len(reasons)} in all", file=sys.stderr)


def first_names(names: Sequence[str]) -> str:
    """Return the first names, and the number of others.

    >>> first_names(["a", "b"]), first_names(list("abcdefghijkl"))
    ('a, b', 'a, b, c, d, e, f, g, h, i, j and 2 more')
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
