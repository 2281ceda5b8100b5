"""The meter of a run: how long each part took, and how many tokens, verdicts and updates it made."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

Part = Literal["generating", "judging", "learning", "waiting"]
"""Parts of a run's time. `waiting` is everything else: starting, loading, waiting for data."""

PARTS: tuple[Part, ...] = ("generating", "judging", "learning", "waiting")

Count = Literal["generated_tokens", "trained_tokens", "examples", "verdicts", "updates"]
"""What is counted: tokens of answers; tokens, examples and updates of training; programs that were measured."""

COUNTS: tuple[Count, ...] = ("generated_tokens", "trained_tokens", "examples", "verdicts", "updates")


class Meter:
    """Wall time by part: while a part runs, the part around it is paused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with everything at zero.

        Args:
            clock: Monotonic clock in seconds.
        """
        self._clock = clock
        self._last_s = clock()
        self._open: list[Part] = []
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._counts: Counter[Count] = Counter()

    @contextmanager
    def part(self, name: Part) -> Generator[None]:
        """Count the time of the block for a part."""
        self._settle()
        self._open.append(name)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def count(self, name: Count, number: int) -> None:
        """Add to a count."""
        self._counts[name] += number

    def reading(self) -> dict[str, float]:
        """Return seconds by part and all counts, since the beginning."""
        self._settle()
        seconds = {f"{name}_s": self._seconds[name] for name in PARTS}
        return seconds | {name: float(self._counts[name]) for name in COUNTS}

    def _settle(self) -> None:
        now_s = self._clock()
        self._seconds[self._open[-1] if self._open else "waiting"] += now_s - self._last_s
        self._last_s = now_s


def since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the difference of two readings, to the millisecond.

    >>> since({"judging_s": 1.0, "verdicts": 2.0}, {"judging_s": 3.5, "verdicts": 4.0})
    {'judging_s': 2.5, 'verdicts': 2.0}
    """
    return {name: round(value - before.get(name, 0.0), 3) for name, value in after.items()}


def throughput_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return one line on the throughput of a run: counts per minute, and the share of time by part.

    Args:
        records: The `seconds` records of its metrics.
    """
    total_s = {part: sum(record.get(f"{part}_s", 0.0) for record in records) for part in PARTS}
    whole_s = sum(total_s.values())
    if not whole_s:
        return "throughput: nothing was measured"
    rates = ", ".join(
        f"{60 * sum(record.get(name, 0.0) for record in records) / whole_s:.4g} {name.replace('_', ' ')}"
        for name in COUNTS
    )
    shares = ", ".join(f"{part} {seconds / whole_s:.0%}" for part, seconds in total_s.items())
    return f"a minute: {rates}; time: {shares}"
