"""Time limit of a training, which stops at the first safe point after it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from cudal1_agent.errors import ConfigError, TimeIsUpError

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_S = 500 * 3600.0
"""Longest time limit in seconds. The operating system's own limit is 2^31 ms, 596 hours."""


class Deadline:
    """Time limit of a training. Each session reaches at least one safe point, so that it makes progress."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            seconds: How long the training may take; None is no limit.
            clock: Monotonic clock in seconds.
        """
        self._clock = clock
        self._end_s = None if seconds is None else clock() + seconds
        self._safe_points = 0

    @property
    def passed(self) -> bool:
        """Whether the time limit is reached."""
        return self._end_s is not None and self._clock() >= self._end_s

    def safe_point(self, *, progress: bool = True) -> None:
        """Stop here if the time limit is reached; all finished work is on the disk.

        Args:
            progress: Whether anything was done since the last safe point.

        Raises:
            TimeIsUpError: The time limit is reached.
        """
        self._safe_points += progress
        if self.passed and self._safe_points:
            raise TimeIsUpError("the time of --for is over; the run stopped where it can be resumed exactly")


def seconds_of(text: str, *, option: str = "--for") -> float:
    """Return the seconds that a text like `540s`, `9m` or `1.5h` stands for.

    Args:
        text: What a user typed.
        option: Name of the option, for the error.

    Raises:
        ConfigError: The text is not a time above 0 and up to 500 hours.

    >>> seconds_of("9m"), seconds_of("90s")
    (540.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    seconds = 0.0 if found is None else float(found[1]) * _UNITS_S[found[2]]
    if not 0 < seconds <= _MAX_S:
        raise ConfigError(
            f"invalid {option} {text!r}: write a time above 0, such as 540s, 9m or 1.5h; "
            f"{_MAX_S / 3600:.0f}h is the longest"
        )
    return seconds
