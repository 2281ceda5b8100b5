"""Speedup of a candidate over a baseline, when both were measured against the reference."""

from __future__ import annotations

import math

from cudal1_env.records import Speedup


def against(candidate: Speedup, baseline: Speedup) -> Speedup:
    """Return the candidate's speedup over a baseline, from the speedups of both over the reference.

    With s_c = t_ref / t_candidate and s_b = t_ref / t_baseline the reference cancels:
    t_baseline / t_candidate = s_c / s_b. On the log scale that is a difference of two estimates, x_c - x_b. Its
    interval follows from their intervals, [l_c, u_c] and [l_b, u_b]:

        low  = x_c - x_b - sqrt((x_c - l_c)^2 + (u_b - x_b)^2)
        high = x_c - x_b + sqrt((u_c - x_c)^2 + (x_b - l_b)^2)

    This is the "method of variance estimates recovery" of Zou and Donner, "Construction of confidence intervals about
    effect measures: a general approach", Statistics in Medicine 27 (2008), 1693-1702. It supports asymmetric
    intervals, and its width is at least that of either.

    Assumptions: the two estimates are independent. They come from different trials, each a fresh pair of processes
    with its own reference arm. Effects of the machine on a whole trial (clock, temperature, another tenant)
    are in both arms and cancel within each ratio. Not covered: a bias that all trials of a machine share, and
    the allowance for the harness in `candidate.low`, which is treated like the rest although it is not spread.

    Args:
        candidate: Speedup over the reference.
        baseline: Speedup over the reference, on the same task and machine.

    >>> exact = Speedup(low=2.0, point=2.0, high=2.0)
    >>> ratio = against(Speedup(low=2.7, point=3.0, high=3.3), exact)
    >>> round(ratio.low, 6), ratio.point, ratio.high
    (1.35, 1.5, 1.65)
    """
    point = math.log(candidate.point / baseline.point)
    below = math.hypot(math.log(candidate.point / candidate.low), math.log(baseline.high / baseline.point))
    above = math.hypot(math.log(candidate.high / candidate.point), math.log(baseline.point / baseline.low))
    return Speedup(low=math.exp(point - below), point=math.exp(point), high=math.exp(point + above))
