"""What in one launch speaks against a candidate: a slowed reference, work where nobody asked for any."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cudal1_env.stats.launch import TRIM

_SLOWED = 1.05
"""The reference may be this much slower beside the candidate than alone (DESIGN.md, protocol 7)."""
_FAR, _OFTEN = 1.2, 0.25
"""Or this much slower than its longest turn once the candidate is dead, in this share of its turns: what only some
turns meet moves their centre before it moves their median."""
_FAR_OFF = 6.0
"""Standard deviations that nobody is asked about."""
_OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, for normal noise: sqrt(pi / 2)."""
_CHANCE = 1e-4
"""What is seen before the candidate's calls only is no chance if chance does as much with less than this probability.
It is asked after each of several launches, and by chance less than one evaluation of 1024 should be blamed."""


def slowed(beside_ms: Sequence[float], before_ms: Sequence[float], after_ms: Sequence[float]) -> bool:
    """Whether the reference was slower beside the candidate than alone.

    Either the median beside exceeds the smaller of the two medians alone by 5 % (DESIGN.md, protocol 7), and by three
    standard errors of either, so that noise is not called tampering. Or more than a quarter of the turns beside took
    1.2 times the longest of those after it. Where half of the turns take three times as long, the first sees it in four
    of ten launches, the second in nine. Of honest turns as a GPU made them it suspects less than 3 %
    (`tests/env/test_suspicion.py`).

    Args:
        beside_ms: Latencies of the reference's turns in pairs.
        before_ms: Latencies alone, before the candidate's turns.
        after_ms: The same after its death.
    """
    beside, beside_error = median_and_error(beside_ms)
    alone, alone_error = min(median_and_error(before_ms), median_and_error(after_ms))
    if beside - 3.0 * beside_error > _SLOWED * (alone + 3.0 * alone_error):
        return True
    far = _FAR * max(after_ms)
    return sum(time > far for time in beside_ms) > _OFTEN * len(beside_ms)


def kept_share(beside_ms: Sequence[float], before_ms: Sequence[float], after_ms: Sequence[float]) -> float:
    """How much of the reference's time beside the candidate it takes alone, too; at most 1.

    "The smaller reference time counts" (DESIGN.md, protocol 7): exp(alone - beside), with the trimmed mean of the
    logarithms beside, as speedups have it, and alone the smaller of those before and after, each with its standard
    error on top, so that noise takes little from an honest program.

    Args:
        beside_ms: Latencies of the reference's turns in pairs.
        before_ms: Latencies alone, before the candidate's turns.
        after_ms: The same after its death.
    """
    beside, _ = _trimmed(beside_ms)
    alone = min(sum(_trimmed(times)) for times in (before_ms, after_ms))
    return math.exp(min(0.0, alone - beside))


def _trimmed(times_ms: Sequence[float]) -> tuple[float, float]:
    """Trimmed mean of the logarithms, and its standard error."""
    logs = sorted(math.log(time) for time in times_ms)
    cut = int(TRIM * len(logs))
    kept = logs[cut : len(logs) - cut]
    pulled_in = [min(max(log, kept[0]), kept[-1]) for log in logs]
    spread = statistics.stdev(pulled_in) if len(logs) > 1 else 0.0
    return statistics.fmean(kept), spread / math.sqrt(len(logs)) / (1.0 - 2.0 * cut / len(logs))


def beyond_chance(mine: int, other: int) -> bool:
    """Whether something ran before the candidate's calls too often for a chance that favours neither arm.

    The sign test, one-sided: sum over k >= mine of C(n, k) / 2^n < `_CHANCE`, with n = mine + other. Both arms' calls
    of a pair follow each other closely and in random order, so whoever else uses the device meets either alike.

    Args:
        mine: Pairs in which something ran before the candidate's watched calls only.
        other: The same for the reference's.

    >>> beyond_chance(13, 0), beyond_chance(14, 0), beyond_chance(14, 1), beyond_chance(40, 30)
    (False, True, False, False)
    """
    n = mine + other
    return sum(math.comb(n, k) for k in range(mine, n + 1)) < _CHANCE * 2**n


def beyond_usual(usual_ms: Sequence[float], times_ms: Sequence[float]) -> list[float]:
    """By how much each time exceeds what is usual.

    A time alone counts from six standard deviations above the usual median on, so that a busy machine adds little. All
    together count by how much their median exceeds the usual one by more than three standard errors.

    Args:
        usual_ms: Times of somebody who is trusted.
        times_ms: What is asked about.

    >>> [round(over, 2) for over in beyond_usual([1.0, 1.0, 1.1, 0.9], [1.0, 1.1, 5.0])]
    [0.0, 0.0, 3.56]
    >>> beyond_usual([1.0] * 8, [1.5] * 8) == [0.5] * 8
    True
    """
    (usual, usual_error), (middle, error) = median_and_error(usual_ms), median_and_error(times_ms)
    bound = usual + _FAR_OFF * usual_error * math.sqrt(len(usual_ms)) / _OF_MEDIAN
    always = max(0.0, middle - usual - 3.0 * math.hypot(error, usual_error))
    return [max(always, time - bound) for time in times_ms]


def median_and_error(times_ms: Sequence[float]) -> tuple[float, float]:
    """Median and its standard error from the median absolute deviation, as for normal noise."""
    middle = statistics.median(times_ms)
    deviation = 1.4826 * statistics.median(abs(time - middle) for time in times_ms)
    return middle, _OF_MEDIAN * deviation / math.sqrt(len(times_ms))
