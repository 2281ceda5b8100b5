"""One speedup over another: a candidate against a baseline, when both were measured against the reference."""

from __future__ import annotations

import math

from cudal1_env.records import Speedup


def against(candidate: Speedup, baseline: Speedup) -> Speedup:
    """Return the candidate's speedup against a baseline; both are given against the reference.

    With s_c = t_ref / t_candidate and s_b = t_ref / t_baseline the reference cancels:
    t_baseline / t_candidate = s_c / s_b. In logarithms that is a difference of two estimates, x_c - x_b, whose
    interval is made from theirs, [l_c, u_c] and [l_b, u_b]:

        low  = x_c - x_b - sqrt((x_c - l_c)^2 + (u_b - x_b)^2)
        high = x_c - x_b + sqrt((u_c - x_c)^2 + (x_b - l_b)^2)

    This is the "method of variance estimates recovery" of Zou and Donner, "Construction of confidence intervals about
    effect measures: a general approach", Statistics in Medicine 27 (2008), 1693-1702. It keeps intervals that are not
    symmetric, and its width is never less than either of theirs.

    Assumptions: the two estimates are independent. They come from different trials, each a fresh pair of processes
    with a reference arm of its own, and what a machine does to all of a trial (clock, temperature, another tenant)
    is in both arms and cancels within each ratio. Not covered: a bias that all trials of a machine share, and
    the allowance for the harness in `candidate.low`, which is added like the rest although it is no spread.

    Args:
        candidate: Against the reference.
        baseline: Against the reference, on the same task and machine.

    >>> exact = Speedup(low=2.0, point=2.0, high=2.0)
    >>> ratio = against(Speedup(low=2.7, point=3.0, high=3.3), exact)
    >>> round(ratio.low, 6), ratio.point, ratio.high
    (1.35, 1.5, 1.65)
    """
    point = math.log(candidate.point / baseline.point)
    below = math.hypot(math.log(candidate.point / candidate.low), math.log(baseline.high / baseline.point))
    above = math.hypot(math.log(candidate.high / candidate.point), math.log(baseline.point / baseline.low))
    return Speedup(low=math.exp(point - below), point=math.exp(point), high=math.exp(point + above))
