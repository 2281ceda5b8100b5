"""What commands print for people."""

from __future__ import annotations

import sys

from cudal1_env.records import Evaluation


def describe(evaluation: Evaluation) -> str:
    """Return one line for people, without the control characters that a program may have put into its message."""
    where = f" [{evaluation.task}]"
    times = ""
    if evaluation.reference is not None and evaluation.candidate is not None:
        times = f" ({evaluation.reference.median_ms:.3g} ms -> {evaluation.candidate.median_ms:.3g} ms)"
    return f"{evaluation.status}{where}: {plain(evaluation.message)}{times}"


def plain(text: str) -> str:
    """Return a text as one line without control characters."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def log(text: str) -> None:
    """Print a line for people on standard error."""
    print(text, file=sys.stderr, flush=True)
