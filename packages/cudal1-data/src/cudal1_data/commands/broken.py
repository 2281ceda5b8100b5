"""What commands say of tasks that they leave out."""

from __future__ import annotations

import sys

from cudal1_data.suite import Suite


def report_broken(suite: Suite) -> None:
    """Tell on standard error what of a suite cannot be used, and why."""
    for entry in suite.broken:
        print(f"left out: {entry.error}", file=sys.stderr)
