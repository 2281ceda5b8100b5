"""Harness overhead: subtracted from each timed call of both arms; a candidate could steal a part of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESOLUTION = 0.02
"""Latencies below this share of the overhead, or below its spread, are indistinguishable from it and raised to it."""
TOO_SHORT = 3.0
"""A reference that takes less than this many times the stealable overhead is too short for a reward above 1."""
_CONSTANT_SHARE = 0.02
"""If writing the recurring parts of the outputs takes more than this share of the reference's latency, no reward above
1 is paid: a program could keep outputs that already contain these parts."""


@dataclass(frozen=True)
class Overhead:
    """Harness overhead of one call, estimated on the reference's worker by empty calls."""

    call_ms: float
    """L: release, flag and read; the median of a trial. Each pair's own overhead is subtracted from both arms."""
    stealable_ms: float
    """h: maximum part of L that a candidate could use for its own work. On a GPU this is all of L: kernels can run
    while masks are removed and samples copied. On a CPU it excludes the judge's reading, because the worker is frozen
    then. It is added to the candidate's latency at the rewarded end."""
    spread_ms: float
    """Median absolute deviation of empty calls."""

    @property
    def resolution_ms(self) -> float:
        """Latencies below this cannot be distinguished from the overhead."""
        return max(self.spread_ms, _RESOLUTION * self.call_ms)

    def net_ms(self, elapsed_ms: float, empty_ms: float) -> float:
        """Return a call's latency without the overhead `empty_ms` of its empty call; at least `resolution_ms`."""
        return max(elapsed_ms - empty_ms, self.resolution_ms)


def estimate_overhead(empty_ms: Sequence[float], reading_ms: Sequence[float]) -> Overhead:
    """Return the overhead estimated from empty calls of the reference, and the judge's reading in each.

    >>> estimate_overhead([0.5, 0.75, 1.0], [0.25, 0.25, 0.5])
    Overhead(call_ms=0.75, stealable_ms=0.5, spread_ms=0.25)
    """
    call_ms = statistics.median(empty_ms)
    spread_ms = statistics.median(abs(one - call_ms) for one in empty_ms)
    return Overhead(call_ms, call_ms - statistics.median(reading_ms), spread_ms)


def rewarded_low(low: float, reference_ms: float, stealable_ms: float) -> float:
    """Return the lower end that rewards use.

    (T_ref - L) / (T_cand - L + h) with T_cand - L = (T_ref - L) / low: 1 / (1 / low + h / (T_ref - L)).
    It is at most 1 if the reference takes less than `TOO_SHORT` h.

    Args:
        low: Lower end of the speedup's interval.
        reference_ms: T_ref - L, the reference's latency.
        stealable_ms: h.

    >>> rewarded_low(2.0, 1.0, 0.1), rewarded_low(2.0, 1.0, 0.0), rewarded_low(8.0, 0.2, 0.1)
    (1.6666666666666667, 2.0, 1.0)
    """
    end = 1.0 / (1.0 / low + stealable_ms / reference_ms)
    return min(end, 1.0) if is_too_short(reference_ms, stealable_ms) else end


def without_constant(end: float, reference_ms: float, constant_ms: float) -> float:
    """Return an end above 1 with the time for constant parts added to the candidate's latency, as h was.

    It is at most 1 if w exceeds `_CONSTANT_SHARE` of the reference's latency.

    Args:
        end: The end that `rewarded_low` returned.
        reference_ms: T_ref - L, the reference's latency.
        constant_ms: w, the time to write the parts of the outputs that recur with other inputs; a program may keep
            outputs that already contain them.

    >>> without_constant(2.0, 1.0, 0.01), without_constant(2.0, 1.0, 0.1)
    (1.9607843137254901, 1.0)
    """
    lower = 1.0 / (1.0 / end + constant_ms / reference_ms)
    return min(lower, 1.0) if constant_ms > _CONSTANT_SHARE * reference_ms else lower


def is_too_short(reference_ms: float, stealable_ms: float) -> bool:
    """Return whether a reference is too short for a reward above 1."""
    return reference_ms < TOO_SHORT * stealable_ms
