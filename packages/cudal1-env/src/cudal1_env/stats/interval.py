"""Estimation of a speedup from trials, with a 95 % interval that stays valid over several looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

from cudal1_env.records import Speedup
from cudal1_env.stats.trial_samples import TrialSamples, centre

ALPHA = 0.05
"""Probability that the reported interval misses the true speedup, over all looks together."""

SMALLEST_SPREAD = 0.001
"""Lower bound of a calibrated spread: measured process pairs differed by 0.2 to 1.2 %."""

PRIOR_WEIGHT = 4.0
"""Maximum degrees of freedom of the calibrated spread when it is pooled with the scatter of several trials.

Spreads differ between tasks. If a task's is twice (three times) the machine's, `report` misses the truth in 4 %
(9 %) of simulations with this bound and in 10 % (19 %) without; if it equals the machine's, the bound makes the
interval a sixth wider.
"""

MAX_LOG = 700.0
"""Limit of log ratios; exp() overflows just above it."""


class Spread(BaseModel):
    """Trial-to-trial spread of this machine, beyond the noise within a trial."""

    model_config = ConfigDict(frozen=True)

    sigma: float = Field(gt=0.0, lt=1.0, allow_inf_nan=False)
    """Standard deviation of log(reference / candidate) from one pair of processes to the next (0.003 is 0.3 %)."""
    degrees_of_freedom: float = Field(ge=1.0, allow_inf_nan=False)
    """Degrees of freedom of `sigma`."""


DEFAULT_SPREAD = Spread(sigma=0.0075, degrees_of_freedom=20)
"""Spread of a machine that was not calibrated.

Over 28 pairs of processes with the same code on one machine, |log ratio| was 0.5 % in the median (0.6745 sigma) and
1.2 % at the 95th percentile (1.96 sigma), noise within trials included: sigma is 0.61 to 0.74 %.
"""


def alpha_at(look: int, *, final: bool, alpha: float = ALPHA) -> float:
    """Return the error probability of one look, so that all looks of an evaluation together spend `alpha`.

    Look k spends alpha / (k (k + 1)). The looks before look k have spent alpha (1 - 1 / k), and the `final` look
    spends the remaining alpha / k. By the union bound the reported interval covers the truth with probability
    1 - alpha, whichever look ends the evaluation.

    Args:
        look: Number of the look, from 1.
        final: Whether no look will follow.
        alpha: Error probability of all looks together.

    Raises:
        ValueError: `look` is less than 1.

    >>> [round(alpha_at(k, final=False), 4) for k in (1, 2, 3)], round(alpha_at(3, final=True), 4)
    ([0.025, 0.0083, 0.0042], 0.0167)
    """
    if look < 1:
        raise ValueError(f"look is {look}; count looks from 1")
    return alpha / look if final else alpha / (look * (look + 1))


def estimate(
    trials: Sequence[TrialSamples], *, spread: Spread = DEFAULT_SPREAD, look: int = 1, final: bool = True
) -> Speedup:
    """Return reference / candidate with an interval that covers the truth with 95 % at all looks together.

    Trial l has the centre m_l and, from the noise within it, the squared error v_l (see `centre`). The trial is the
    unit: m_l ~ N(truth, spread^2 + v_l), so for L trials, all on the log scale,

    - point: the mean of m_l;
    - prior variance of one trial: p = sigma^2 + mean(v_l), with nu degrees of freedom
      by Welch (1947) and Satterthwaite (1946); for L > 1 at most PRIOR_WEIGHT;
    - s^2 = (nu p + (L - 1) var(m_l)) / (nu + L - 1); for one trial that is p;
    - interval: point -+ t(1 - alpha_k / 2; nu + L - 1) s / sqrt(L), with alpha_k of `alpha_at`.

    Assumptions: trials are independent, and the two samples of each pair follow each other. The result does not
    depend on the unit of time or the order of the trials; swapping the arms gives its reciprocal.

    Args:
        trials: At least one, each of at least two pairs.
        spread: The machine's spread, from `calibrate_spread`.
        look: Number of the look, from 1.
        final: Whether no look will follow.

    Raises:
        ValueError: There is no trial, a trial has fewer than two pairs, or the ratio overflows.
    """
    if not trials:
        raise ValueError("there are no trials to estimate from; measure first")
    alpha = alpha_at(look, final=final)
    centres = [centre(trial) for trial in trials]
    count = len(centres)
    mean = math.fsum(one.log_ratio for one in centres) / count
    between = math.fsum((one.log_ratio - mean) ** 2 for one in centres)
    within = math.fsum(one.variance for one in centres) / count
    within_freedom = math.fsum(one.degrees_of_freedom for one in centres)

    of_spread = spread.sigma**2
    prior = of_spread + within
    freedom = prior**2 / (of_spread**2 / spread.degrees_of_freedom + within**2 / within_freedom)
    if count > 1:
        freedom = min(freedom, PRIOR_WEIGHT)
    variance = (freedom * prior + between) / (freedom + count - 1)
    half = student_quantile(1.0 - alpha / 2.0, freedom + count - 1) * math.sqrt(variance / count)
    if abs(mean) + half > MAX_LOG:
        raise ValueError(
            f"the log ratio of the times is {mean:.1f} +- {half:.1f}, beyond {MAX_LOG:.0f}; "
            "check the unit of time and measure more pairs"
        )
    return Speedup(low=math.exp(mean - half), point=math.exp(mean), high=math.exp(mean + half))


def student_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t; the degrees of freedom may be fractional."""
    return float(stdtrit(degrees_of_freedom, probability))


def half_width(speedup: Speedup) -> float:
    """Return half the width of the interval on the log scale: 0.03 is about 3 % to either side."""
    return (math.log(speedup.high) - math.log(speedup.low)) / 2.0


def calibrate_spread(trials: Sequence[TrialSamples]) -> Spread:
    """Return the machine's spread from control trials.

    Trials of short calls have more noise within, so each is weighted by its information: with centres m_l and squared
    errors v_l within the trial, sigma^2 is the maximum-likelihood estimate for m_l ~ N(0, sigma^2 + v_l) (Hardy and
    Thompson 1996; the true log ratio is 0, so a bias that all trials share counts as spread), at least
    SMALLEST_SPREAD^2. Degrees of freedom: sum of (sigma^2 / (sigma^2 + v_l))^2, from the Fisher information of the
    m_l on sigma^2, between 1 and L.

    Args:
        trials: At least five, of the same code in both arms, best from several tasks and of 20 pairs or more each.

    Raises:
        ValueError: There are fewer than five trials, a trial has fewer than two pairs, or trials differ e-fold.

    >>> still = TrialSamples((1.0, 1.0), (1.0, 1.0))
    >>> calibrate_spread([still] * 5)
    Spread(sigma=0.001, degrees_of_freedom=5.0)
    """
    count = len(trials)
    if count < 5:
        raise ValueError(f"{count} trials are too few to calibrate the spread; measure at least 5")
    centres = [centre(trial, caution=0.0) for trial in trials]
    squares = np.array([one.log_ratio**2 for one in centres])
    within = np.array([one.variance for one in centres])

    def unlikeliness(log_squared: float) -> float:
        total = np.exp(log_squared) + within
        return float(np.sum(np.log(total) + squares / total))

    least, most = SMALLEST_SPREAD**2, float(squares.max())
    squared = least
    if most > least:
        from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]  # takes half a second

        minimize: Any = optimize.minimize_scalar  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        bounds = (math.log(least), math.log(most))
        found = minimize(unlikeliness, bounds=bounds, method="bounded")
        squared = math.exp(float(found.x))
    freedom = float(np.sum((squared / (squared + within)) ** 2))
    if squared >= 1.0:
        raise ValueError(f"trials of the same code differ by a factor of {math.exp(math.sqrt(squared)):.1f}")
    return Spread(sigma=math.sqrt(squared), degrees_of_freedom=max(freedom, 1.0))
