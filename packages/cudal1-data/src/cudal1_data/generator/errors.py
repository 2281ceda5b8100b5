"""Exceptions of families."""

from __future__ import annotations


class UnsuitableError(Exception):
    """A drawn task is unsuitable; the next attempt draws again. It never leaves this package."""
