"""What a turn takes beside its calls: learnt from the reference, and looked at again when the candidate is dead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudal1_env.judge.measure.interference import median_and_error

FIRST_CALL_MS = 0.1
"""The first call of a turn on a GPU takes longer than the others by no more than this."""
_FIRST_MS, _FIRST_SPREAD_MS = 0.01, 0.01
"""By so much it does as a rule, and so much that differs; what is measured counts as much as it knows better."""
_OVERSTATED_ERRORS = 3.0


@dataclass(frozen=True)
class Overhead:
    """What is subtracted from a turn."""

    fixed_ms: float
    """However many calls it has."""
    harness_ms: float
    """For each call, the worker's own work on it."""
    spread_ms: float
    """How well `fixed_ms` is known."""

    def of_turn(self, calls: int) -> float:
        """Milliseconds that a turn of so many calls takes beside them."""
        return self.fixed_ms + calls * self.harness_ms


def of_cpu(empty_ms: Sequence[float], describing_ms: float) -> Overhead:
    """Return the overhead of single calls on a CPU.

    Args:
        empty_ms: Empty calls, with the worker's work on them.
        describing_ms: What of it that work is.
    """
    middle = statistics.median(empty_ms)
    spread = statistics.median(abs(time - middle) for time in empty_ms)
    return Overhead(middle - describing_ms, describing_ms, spread)


def of_gpu(empty_ms: Mapping[int, Sequence[float]], full_ms: Mapping[int, Sequence[float]]) -> Overhead:
    """Return the overhead of turns on a GPU.

    Turns of m and of n calls are made, empty (with the smallest kernel in place of the calls) and not.
    T(n) = a + n (h + t), E(n) = e + n h, with h the harness's own work on each call and t the call: so
    a = (n T(m) - m T(n)) / (n - m), h = (E(n) - E(m)) / (n - m), and what a turn takes beside n t is a + n h.
    a exceeds e by what the first call of a turn takes longer than the others. Where calls are long the difference of
    two long times tells that badly. So it is what is most likely, given a difference x of a and e with the error s, and
    10 us +- 10 us before anything is measured (both normal): (x / s^2 + 10 / 10^2) / (1 / s^2 + 1 / 10^2), between 0
    and `FIRST_CALL_MS`. (Held to that range alone, noise of either sign makes it too large in the mean.)

    Args:
        empty_ms: Times of empty turns by their number of calls, of which there are two.
        full_ms: The same of turns of calls.
    """
    m, n = sorted(empty_ms)
    harness = max(0.0, (statistics.median(empty_ms[n]) - statistics.median(empty_ms[m])) / (n - m))
    least = statistics.median(empty_ms[n]) - n * harness
    (some, some_error), (all_, all_error) = median_and_error(full_ms[m]), median_and_error(full_ms[n])
    measured = (n * some - m * all_) / (n - m) - least
    error = math.hypot(n * some_error, m * all_error) / (n - m)
    if error > 0.0:
        weight, before = error**-2, _FIRST_SPREAD_MS**-2
        measured = (weight * measured + before * _FIRST_MS) / (weight + before)
    return Overhead(least + min(max(measured, 0.0), FIRST_CALL_MS), harness, min(error, FIRST_CALL_MS))


def overstated_ms(before_ms: Sequence[float], after_ms: Sequence[float]) -> float:
    """By how much the overhead was learnt too large: a candidate that lives can make empty turns of the reference long.

    The difference of the medians where it exceeds three standard errors, else 0.

    Args:
        before_ms: Empty turns from which the overhead was learnt.
        after_ms: As long ones once the candidate is dead.
    """
    (before, before_error), (after, after_error) = median_and_error(before_ms), median_and_error(after_ms)
    over = before - after
    return over if over > _OVERSTATED_ERRORS * math.hypot(before_error, after_error) else 0.0
