"""Stop rules: a few looks at fixed points, with the error probabilities of `alpha_at`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from cudal1_env.records import Precision, Speedup
from cudal1_env.stats.interval import DEFAULT_SPREAD, Spread, estimate, half_width
from cudal1_env.stats.trial_samples import TrialSamples

Step = Literal["trial", "pair", "stop"]
"""Next step of the judge: start a trial with fresh workers, measure one more paired sample in it, or conclude."""


@dataclass(frozen=True)
class StopRule:
    """How much to measure at one precision."""

    looks: tuple[tuple[int, int], ...]
    """When to compute the interval: increasing (trials so far, pairs in the newest); each look widens the interval."""
    half_width: float
    """A look stops if the interval's half-width on the log scale is at most this (0.03 is about 3 %)."""
    loses_below: float | None = None
    """A look stops if the interval's upper end is below this, because the candidate is slower. None: never."""
    min_pairs: int = 8
    """Minimum pairs in each trial, for any budget: the noise estimate from four makes the interval twice as wide as
    that from eight."""

    def __post_init__(self) -> None:
        if not self.looks or list(self.looks) != sorted(set(self.looks)) or self.min_pairs < 2:
            raise ValueError(
                f"looks are {self.looks} and min_pairs {self.min_pairs}; give looks that grow, and at least 2 pairs"
            )
        if any(trials < 1 or pairs < self.min_pairs for trials, pairs in self.looks):
            raise ValueError(
                f"looks are {self.looks}; give each at least one trial and min_pairs={self.min_pairs} pairs"
            )

    @property
    def min_trials(self) -> int:
        """Minimum number of trials, for any budget."""
        return self.looks[0][0]

    @property
    def pairs_in_trial(self) -> int:
        """Pairs of samples in a complete trial."""
        return max(pairs for _, pairs in self.looks)


TRAINING = StopRule(looks=((1, 8), (1, 14), (1, 20)), half_width=0.03, loses_below=0.97)
"""One trial. With samples of 20 ms the looks come after 0.32, 0.56 and 0.8 s.

In simulations with 1 % noise per sample, autocorrelation 0.3, and 0.3 % per trial, 56 % of evaluations stop at the
first look, and the median half-width is 1.9 %; with DEFAULT_SPREAD 60 % and 2.4 %.
"""

REPORT = StopRule(looks=((3, 26), (5, 26), (8, 26)), half_width=0.01)
"""Three to eight trials of 26 pairs, which is 1 s each with samples of 20 ms.

With the same simulated noise, 73 % of evaluations on a calibrated machine stop at three trials, and the median
half-width is 0.8 %; with DEFAULT_SPREAD most need all eight.
"""

RULES: Mapping[Precision, StopRule] = MappingProxyType({"training": TRAINING, "report": REPORT})
"""Rule for each precision with timing."""


def decide(
    trials: Sequence[TrialSamples], rule: StopRule, *, spread: Spread = DEFAULT_SPREAD, spent: bool = False
) -> Step:
    """Return the next step.

    Args:
        trials: Trials so far, the newest last; a trial that was just started is empty.
        rule: The precision's rule (`RULES[precision]`).
        spread: The machine's spread, from `calibrate_spread`.
        spent: Whether the time budget is spent, which ends the evaluation once the rule's minimum is measured.
            It may depend on the ratio of the arms only through the time that samples take.

    >>> decide([], TRAINING)
    'trial'
    >>> steady = TrialSamples((2.0,) * 8, (1.0,) * 8)
    >>> decide([steady.first(7)], TRAINING), decide([steady], TRAINING)
    ('pair', 'stop')
    """
    if not trials:
        return "trial"
    count, pairs = len(trials), trials[-1].pairs
    if pairs < rule.min_pairs:
        return "pair"
    if count >= rule.min_trials and (spent or _enough(trials, rule, spread)):
        return "stop"
    return "trial" if spent or pairs >= rule.pairs_in_trial else "pair"


def conclude(trials: Sequence[TrialSamples], rule: StopRule, *, spread: Spread = DEFAULT_SPREAD) -> Speedup:
    """Return the speedup of an evaluation that `decide` stopped, with its interval corrected for the looks.

    Between two scheduled looks, where only a spent budget can stop, the end counts as a final look.

    Raises:
        ValueError: There is no trial, or a trial has fewer than two pairs.
    """
    if not trials:
        raise ValueError("there are no trials to estimate from; follow `decide` until it says stop")
    at = (len(trials), trials[-1].pairs)
    look = 1 + sum(1 for scheduled in rule.looks if scheduled < at)
    final = at not in rule.looks[:-1]
    return estimate(trials, spread=spread, look=look, final=final)


def _enough(trials: Sequence[TrialSamples], rule: StopRule, spread: Spread) -> bool:
    """Return whether the trials are at a look that ends the evaluation."""
    at = (len(trials), trials[-1].pairs)
    if at >= rule.looks[-1]:
        return True
    if at not in rule.looks:
        return False
    speedup = conclude(trials, rule, spread=spread)
    loses = rule.loses_below is not None and speedup.high < rule.loses_below
    return loses or half_width(speedup) <= rule.half_width
