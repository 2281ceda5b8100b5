"""Roofline of a task on a GPU: no program is faster than its bytes move at the full memory bandwidth.

Bytes that must move are input elements that influence the output (the task gate measured their minimum share) and the
outputs, less what the L2 cache can hold: inputs may lie there when a call begins, outputs when it ends. Weights do not
count: they are the same in each call, and may lie in registers. So the roofline is a lower bound of the latency of
honest programs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_IMPOSSIBLE_BELOW = 0.95
"""Share of the roofline below which a latency is impossible (docs/decisions/006-surprising-speedups.md). Copies reach
0.89 of the full rate on an H200; the rest is for errors of the clock."""


@dataclass(frozen=True)
class Roofline:
    """The memory-bandwidth bound of a call of one task."""

    moved_bytes: int
    """Bytes that must move between memory and the GPU."""
    bound_ms: float
    """Milliseconds that this takes at the full memory bandwidth; over 0."""

    def forbids(self, latencies_ms: Sequence[float], *, resolution_ms: float = 0.0) -> bool:
        """Whether latencies lie below the roofline beyond doubt.

        Their median, with three standard errors and what the clock cannot resolve, must be below 0.95 of the roofline.

        Args:
            latencies_ms: Mean latency of a call, of each sample.
            resolution_ms: Differences that the clock cannot resolve.
        """
        middle = statistics.median(latencies_ms)
        deviation = 1.4826 * statistics.median(abs(one - middle) for one in latencies_ms)
        error = 1.2533 * deviation / math.sqrt(len(latencies_ms))
        return middle + 3.0 * error + resolution_ms < _IMPOSSIBLE_BELOW * self.bound_ms

    def is_broken_by(self, reference_ms: Sequence[float]) -> bool:
        """Whether the reference itself is below the roofline, which must then be wrong.

        Its median decides, without any allowance: a doubtful roofline rejects no program.

        Args:
            reference_ms: Mean latency of a call of the reference, of each sample.
        """
        return statistics.median(reference_ms) < _IMPOSSIBLE_BELOW * self.bound_ms


def moved_bytes(input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float], *, level2_bytes: int) -> int:
    """Return the minimum of bytes that one call must move.

    Args:
        input_bytes: Size of each input tensor.
        output_bytes: Size of all outputs that are not inputs.
        shares: For each input tensor the minimum share of its elements that influence the output; empty if
            not known, and then inputs do not count.
        level2_bytes: Size of the L2 cache, in which inputs may lie when a call begins, and outputs when it ends.
    """
    known = len(shares) == len(input_bytes)
    needed = sum(size * share for size, share in zip(input_bytes, shares, strict=True)) if known else 0.0
    return max(0, int(needed) + output_bytes - level2_bytes)


def roofline_of(moved: int, bandwidth_gb_s: float) -> Roofline | None:
    """Return the roofline of bytes at a bandwidth: bytes / (1e9 bytes a second), in milliseconds; None for none."""
    return Roofline(moved, moved / bandwidth_gb_s * 1e-6) if moved > 0 else None
