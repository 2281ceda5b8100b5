"""What commands say of tasks that they leave out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudal1_data.suite import Suite

SHOWN = 10
"""Reasons or names that are worth reading: behind as many, a count says more."""


def report_broken(suite: Suite) -> None:
    """Tell on standard error what of a suite cannot be used, and why."""
    report_left_out([str(entry.error) for entry in suite.broken])


def report_left_out(reasons: Sequence[str]) -> None:
    """Tell on standard error why something was left out: the first reasons, and how many more there are."""
    for reason in reasons[:SHOWN]:
        print(f"left out: {reason}", file=sys.stderr)
    if len(reasons) > SHOWN:
        print(f"left out: {len(reasons) - SHOWN} more, {len(reasons)} in all", file=sys.stderr)


def first_names(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are.

    >>> first_names(["a", "b"]), first_names(list("abcdefghijkl"))
    ('a, b', 'a, b, c, d, e, f, g, h, i, j and 2 more')
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
