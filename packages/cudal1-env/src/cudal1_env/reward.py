"""The reward of a verdict, and the paper's smoothing of rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from cudal1_env.errors import check_choice
from cudal1_env.records import Evaluation, Speedup, Status

Rule = Literal["speedup", "log", "milestone"]
"""How a verdict becomes a number; see `reward`."""

NEARLY = 0.8
"""Minimum lower confidence bound at which an interval that contains 1 counts as exactly 1."""

LOG_FLOOR = math.log(0.1)
"""Reward of a failure under `log`, and its minimum: a program 10 times slower is worth as much as an incorrect one."""

MILESTONES = (0.0, 1.01, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Thresholds that `milestone` counts. Every correct program passes the first; the second is the paper's threshold for
a speedup.
"""

UNTIMED: Mapping[Rule, float] = MappingProxyType({"speedup": 0.0, "log": LOG_FLOOR, "milestone": 1.0})
"""Reward of a correct program that was not timed (`correct` precision), by rule. It equals the reward of the slowest
correct program, so no program gains by not being timed.
"""


def reward(
    status: Status,
    speedup: Speedup | None,
    rule: Rule = "speedup",
    *,
    rewarded_low: float | None = None,
) -> float:
    """Return the reward of a verdict.

    `speedup` is 0 for any status but `CORRECT`. For a correct program it is the rewarded end of the interval if that is
    above 1; 1.0 if the interval contains 1 and its lower end is at least `NEARLY`; otherwise the point estimate, capped
    at 1. The point estimate prevents a slow program from gaining by varying its own time until its interval is wide.
    The reward never falls when low end, point estimate and high end all rise.

    `log` is the logarithm of the `speedup` reward, at least LOG_FLOOR; a failure gets LOG_FLOOR. `milestone` is the
    number of MILESTONES that the `speedup` reward exceeds, 0 for a failure.

    Args:
        status: The verdict.
        speedup: Reference over candidate; needed with `CORRECT`, ignored with any other status.
        rule: One of the three rules.
        rewarded_low: `rewarded_low` of the record; by default `speedup.low`.

    Raises:
        SettingsError: There is no such rule.
        ValueError: `CORRECT` without a speedup.

    >>> reward(Status.CORRECT, Speedup(low=1.8, point=1.9, high=2.0))
    1.8
    >>> reward(Status.CORRECT, Speedup(low=0.98, point=1.01, high=1.04))
    1.0
    >>> reward(Status.CORRECT, Speedup(low=0.01, point=0.2, high=9.0))
    0.2
    >>> reward(Status.WRONG_OUTPUT, None)
    0.0
    """
    check_choice("reward", rule, get_args(Rule))
    value = 0.0
    if status is Status.CORRECT:
        if speedup is None:
            raise ValueError("a CORRECT verdict has no speedup; pass the record's own")
        value = _worth(speedup, speedup.low if rewarded_low is None else rewarded_low)
    if rule == "speedup":
        return value
    if rule == "log":
        return max(math.log(value), LOG_FLOOR) if value > 0.0 else LOG_FLOOR
    return float(sum(1 for threshold in MILESTONES if value > threshold))


def reward_of(evaluation: Evaluation, rule: Rule = "speedup") -> float:
    """Return the reward of a record; see `reward`. A correct program that was not timed gets its value in `UNTIMED`."""
    if evaluation.correct and evaluation.precision == "correct":
        return UNTIMED[rule]
    return reward(evaluation.status, evaluation.speedup, rule, rewarded_low=evaluation.rewarded_low)


def _worth(speedup: Speedup, rewarded_low: float) -> float:
    if rewarded_low > 1.0:
        return rewarded_low
    return 1.0 if speedup.low >= NEARLY and speedup.high >= 1.0 else min(speedup.point, 1.0)


class RewardSmoother(BaseModel):
    """The paper's reward smoothing (stage 3): clip((r - mu) / sigma, -k, k) with rolling mean and deviation.

    mu and sigma are the mean and the population standard deviation of the last `window` rewards passed to `updated`, so
    they follow an improving policy. A smoother is frozen: keep the one that `updated` returns. Its JSON holds the exact
    state, so a resumed run continues exactly.

    >>> smoother = RewardSmoother().updated([0.0, 1.0, 2.0])
    >>> smoother.smooth(1.0), smoother.smooth(100.0), RewardSmoother().smooth(1.0)
    (0.0, 1.5, 0.0)
    """

    model_config = ConfigDict(frozen=True)

    k: float = Field(default=1.5, gt=0.0, allow_inf_nan=False)
    """Largest smoothed reward (the paper's 1.5)."""
    window: int = Field(default=256, ge=2)
    """Number of latest rewards that count. The paper does not publish it."""
    recent: tuple[FiniteFloat, ...] = ()
    """These rewards, oldest first."""

    @property
    def mean(self) -> float:
        """Mean of the rewards that count; 0 before the first."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the rewards that count; 0 while they are equal."""
        if not self.recent or min(self.recent) == max(self.recent):
            return 0.0
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.recent) / len(self.recent))

    def updated(self, rewards: Sequence[float]) -> RewardSmoother:
        """Return a smoother that includes `rewards`; update with a batch first, then smooth it.

        Raises:
            ValueError: A reward is not finite.
        """
        for value in rewards:
            if not math.isfinite(value):
                raise ValueError(f"a reward is {value!r}; pass finite rewards only")
        return RewardSmoother(k=self.k, window=self.window, recent=(*self.recent, *rewards)[-self.window :])

    def smooth(self, reward: float) -> float:
        """Return the smoothed reward; 0 while all rewards that count are equal, because their deviation is 0.

        Raises:
            ValueError: The reward is not finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"the reward is {reward!r}; pass a finite one")
        deviation = self.deviation
        return min(max((reward - self.mean) / deviation, -self.k), self.k) if deviation else 0.0
