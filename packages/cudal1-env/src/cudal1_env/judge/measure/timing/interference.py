"""Interference check: did the candidate slow the reference? Then the reference's time without it counts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cudal1_env.stats.trial_samples import TRIM

_ERRORS = 2.0
"""Standard errors added to the reference's latency alone, so that noise costs an honest program little."""


def reference_share(
    beside_ms: Sequence[float], before_ms: Sequence[float], after_ms: Sequence[float], *, allowed: float
) -> float:
    """Return the share of the reference's latency in pairs that counts; at most 1.

    The smaller reference time counts (docs/decisions/005-smaller-reference-time.md): min(1, allowed x
    alone / beside). Beside is the trimmed mean of the logarithms, as speedups have it; alone is the smaller of those
    before and after, each with `_ERRORS` standard errors on top. A candidate that slows the reference gains nothing
    beyond the allowance.

    Args:
        beside_ms: Latencies of the reference's samples in pairs.
        before_ms: Latencies before the candidate's samples.
        after_ms: The same after its death.
        allowed: How many times as long the reference may take beside an honest program (`Device.neighbour_allowance`).

    >>> reference_share([2.0] * 8, [1.0] * 4, [1.1] * 4, allowed=1.0)
    0.5
    >>> reference_share([1.0] * 8, [1.5] * 4, [2.0] * 4, allowed=1.0)
    1.0
    """
    beside, _ = _trimmed(beside_ms)
    alone = min(middle + _ERRORS * error for middle, error in map(_trimmed, (before_ms, after_ms)))
    return math.exp(min(0.0, math.log(allowed) + alone - beside))


def _trimmed(times_ms: Sequence[float]) -> tuple[float, float]:
    """Trimmed mean of the logarithms, and its standard error."""
    logs = sorted(math.log(time) for time in times_ms)
    cut = int(TRIM * len(logs))
    kept = logs[cut : len(logs) - cut]
    pulled_in = [min(max(log, kept[0]), kept[-1]) for log in logs]
    spread = statistics.stdev(pulled_in) if len(logs) > 1 else 0.0
    return statistics.fmean(kept), spread / math.sqrt(len(logs)) / (1.0 - 2.0 * cut / len(logs))
