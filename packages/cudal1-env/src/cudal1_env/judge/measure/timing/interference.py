"""Interference check: if the candidate slowed the reference, the reference's time without the candidate counts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_env.stats.trial_samples import TRIM

_ERRORS = 2.0
"""Standard errors added to the reference's latency alone, so that noise rarely costs an honest program."""
_MIN_TO_SPREAD = 3
"""Minimum trials for an error estimate from their spread."""


@dataclass(frozen=True)
class Alone:
    """The reference alone compared with the reference in pairs, in one trial: log ratios with standard errors."""

    before: tuple[float, float]
    """Before the candidate's samples."""
    after: tuple[float, float]
    """After the candidate's death."""


def alone(beside_ms: Sequence[float], before_ms: Sequence[float], after_ms: Sequence[float]) -> Alone:
    """Compare the reference alone with itself in pairs (`beside_ms`), by trimmed means of the log latencies.

    The errors are those of the samples alone.
    """
    beside, _ = _trimmed(beside_ms)
    before, after = ((middle - beside, error) for middle, error in map(_trimmed, (before_ms, after_ms)))
    return Alone(before, after)


def reference_share(trials: Sequence[Alone], *, allowed: float) -> float:
    """Return the share of the reference's latency in pairs that counts; at most 1.

    The smaller reference time counts (docs/decisions/005-smaller-reference-time.md): min(1, allowed x alone / beside).
    `alone` is the smaller of the means before and after over all trials, each plus `_ERRORS` standard errors. A
    candidate that slows the reference gains nothing beyond the allowance.

    Args:
        trials: At least one trial.
        allowed: Maximum slowdown of the reference beside an honest program (`Device.neighbour_allowance`).

    >>> reference_share([alone([2.0] * 8, [1.0] * 4, [1.1] * 4)], allowed=1.0)
    0.5
    >>> reference_share([alone([1.0] * 8, [1.5] * 4, [2.0] * 4)], allowed=1.0)
    1.0
    """
    ends = (_end([one.before for one in trials]), _end([one.after for one in trials]))
    return math.exp(min(0.0, math.log(allowed) + min(ends)))


def _end(found: Sequence[tuple[float, float]]) -> float:
    """Return the mean of log ratios plus `_ERRORS` standard errors."""
    error = math.hypot(*(one for _, one in found)) / len(found)
    ratios = [ratio for ratio, _ in found]
    if len(found) >= _MIN_TO_SPREAD:
        error = max(error, statistics.stdev(ratios) / math.sqrt(len(found)))
    return statistics.fmean(ratios) + _ERRORS * error


def _trimmed(times_ms: Sequence[float]) -> tuple[float, float]:
    """Return the trimmed mean of the logarithms and its standard error."""
    logs = sorted(math.log(time) for time in times_ms)
    cut = int(TRIM * len(logs))
    kept = logs[cut : len(logs) - cut]
    pulled_in = [min(max(log, kept[0]), kept[-1]) for log in logs]
    spread = statistics.stdev(pulled_in) if len(logs) > 1 else 0.0
    return statistics.fmean(kept), spread / math.sqrt(len(logs)) / (1.0 - 2.0 * cut / len(logs))
