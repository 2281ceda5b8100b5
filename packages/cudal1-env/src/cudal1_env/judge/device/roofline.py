"""Roofline of a task on a GPU: no program is faster than moving its bytes at full memory bandwidth.

The bytes that must move are the input elements that influence the output (the task gate measures their minimum share)
and the outputs, minus the L2 cache's size, because the cache may hold inputs at the start of a call and outputs at its
end. Weights do not count: they are the same in each call and may stay in registers. So the roofline is a lower bound
of an honest program's latency.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_IMPOSSIBLE_BELOW = 0.95
"""Share of the roofline below which a latency is impossible (docs/decisions/006-surprising-speedups.md). Copies reach
0.89 of the full rate on an H200; the rest allows for clock errors."""


@dataclass(frozen=True)
class Roofline:
    """The memory-bandwidth bound of a call of one task."""

    moved_bytes: int
    """Bytes that must move to or from GPU memory."""
    bound_ms: float
    """Time for this at full memory bandwidth; positive."""

    def forbids(self, latencies_ms: Sequence[float], *, resolution_ms: float = 0.0) -> bool:
        """Return whether latencies are certainly below the roofline.

        The median plus three standard errors plus the resolution must be below 0.95 of the roofline.

        Args:
            latencies_ms: Mean latency of a call, for each sample.
            resolution_ms: Smallest latency difference that the clock resolves.
        """
        middle = statistics.median(latencies_ms)
        deviation = 1.4826 * statistics.median(abs(one - middle) for one in latencies_ms)
        error = 1.2533 * deviation / math.sqrt(len(latencies_ms))
        return middle + 3.0 * error + resolution_ms < _IMPOSSIBLE_BELOW * self.bound_ms

    def is_broken_by(self, reference_ms: Sequence[float]) -> bool:
        """Return whether the reference itself is below the roofline, which must then be incorrect.

        Its median decides without allowance for noise, so that a doubtful roofline rejects no program.

        Args:
            reference_ms: Mean latency of a call of the reference, for each sample.
        """
        return statistics.median(reference_ms) < _IMPOSSIBLE_BELOW * self.bound_ms


def moved_bytes(input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float], *, level2_bytes: int) -> int:
    """Return the minimum bytes that one call must move.

    Args:
        input_bytes: Size of each input tensor.
        output_bytes: Size of all outputs that do not alias inputs.
        shares: Minimum share of each input tensor's elements that influence the output; if empty (unknown), inputs do
            not count.
        level2_bytes: Size of the L2 cache.
    """
    known = len(shares) == len(input_bytes)
    needed = sum(size * share for size, share in zip(input_bytes, shares, strict=True)) if known else 0.0
    return max(0, int(needed) + output_bytes - level2_bytes)


def roofline_of(moved: int, bandwidth_gb_s: float) -> Roofline | None:
    """Return the roofline for moving bytes at a bandwidth (1e9 bytes/s); None for zero bytes."""
    return Roofline(moved, moved / bandwidth_gb_s * 1e-6) if moved > 0 else None
