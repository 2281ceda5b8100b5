"""What families raise while they write a task."""

from __future__ import annotations


class UnsuitableError(Exception):
    """What was drawn makes no good task; the next attempt draws anew. Never leaves this package."""
