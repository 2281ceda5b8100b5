"""One trial: the paired samples of two fresh worker processes, and their centre with its standard error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

TRIM = 0.2
"""Share of a trial's pairs cut off at each end (see `centre`)."""

CAUTION = 0.75
"""Standard errors added to the lag-one autocorrelation: the least that keeps errors at 5 % for a correlation of 0.6."""

MAX_AUTOCORRELATION = 0.5
"""Upper bound of the estimated autocorrelation.

With 0.9, one in a hundred intervals of eight pairs reached from half to twice the truth, because eight values can look
so correlated by chance. With 0.5 such intervals are a tenth as wide, and 3 % of them miss the truth even if
neighbouring samples of an arm are correlated by 0.6 (`tests/env/stats/test_stats.py`). Measured pairs are not
correlated (-0.13 to 0.09 in the mean, over the trials of each `docs/results/judge_c*`).
"""


@dataclass(frozen=True)
class TrialSamples:
    """Samples of one trial, in order of time: pair i is `reference_ms[i]` and `candidate_ms[i]`.

    Raises:
        ValueError: The arms differ in length, or a time is not positive and finite.

    >>> TrialSamples().add(2.0, 1.0).add(2.2, 1.1).pairs
    2
    """

    reference_ms: tuple[float, ...] = ()
    """Mean latency of a reference call in each sample, in milliseconds."""
    candidate_ms: tuple[float, ...] = ()
    """Mean latency of a candidate call in each sample, in milliseconds."""

    def __post_init__(self) -> None:
        if len(self.reference_ms) != len(self.candidate_ms):
            raise ValueError(
                f"the candidate has {len(self.candidate_ms)} samples and the reference {len(self.reference_ms)}; "
                "add samples in pairs"
            )
        check_times(self.reference_ms, name="reference_ms")
        check_times(self.candidate_ms, name="candidate_ms")

    @property
    def pairs(self) -> int:
        """Number of paired samples."""
        return len(self.reference_ms)

    def add(self, reference_ms: float, candidate_ms: float) -> TrialSamples:
        """Return this trial with one more pair of samples at its end."""
        return TrialSamples((*self.reference_ms, reference_ms), (*self.candidate_ms, candidate_ms))

    def first(self, pairs: int) -> TrialSamples:
        """Return this trial's first `pairs` pairs."""
        return TrialSamples(self.reference_ms[:pairs], self.candidate_ms[:pairs])

    def swapped(self) -> TrialSamples:
        """Return this trial with the arms swapped."""
        return TrialSamples(self.candidate_ms, self.reference_ms)

    def scaled_reference(self, share: float) -> TrialSamples:
        """Return this trial with the reference's latencies multiplied by `share`."""
        return TrialSamples(tuple(share * time for time in self.reference_ms), self.candidate_ms)

    def log_ratios(self) -> FloatArray:
        """Return log(reference / candidate) of each pair, shape (pairs,)."""
        return np.log(np.array(self.reference_ms)) - np.log(np.array(self.candidate_ms))


def check_times(times_ms: Iterable[float], *, name: str) -> None:
    """Check that every time is positive and finite.

    Raises:
        ValueError: A time is not; the message names it.
    """
    for position, time_ms in enumerate(times_ms):
        if not 0.0 < time_ms < math.inf:
            raise ValueError(
                f"{name}[{position}] is {time_ms!r}, which is not a positive finite number of milliseconds; "
                "leave out a sample that could not be timed"
            )


@dataclass(frozen=True)
class Centre:
    """Centre of the log ratios of one trial, with its error."""

    log_ratio: float
    """Trimmed mean of log(reference / candidate)."""
    variance: float
    """Squared standard error of `log_ratio`, from the noise within the trial only."""
    degrees_of_freedom: float
    """Degrees of freedom of `variance`."""


def centre(trial: TrialSamples, *, caution: float = CAUTION) -> Centre:
    """Return the trimmed mean of a trial's log ratios, with a standard error corrected for autocorrelation.

    The samples of a pair are neighbours in time, so effects of the machine on both arms (slow drift, noisy neighbours)
    nearly cancel: a drift of 1 % over a trial of eight pairs leaves 0.06 %. Noise within one arm is handled as
    follows, for n pairs with log ratios d and g = floor(TRIM n):

    - centre: mean of d without its g smallest and g largest values. In simulations of 20 pairs its error is 7 % larger
      than the plain mean's on normal noise, and 7 times smaller with spikes of 30 % in 5 % of the samples. (The median
      loses 22 %; Hodges and Lehmann's estimate 4 %, but it has no simple error under autocorrelation.)
    - variance: s_w^2 / (n (1 - 2 g / n)^2) x (1 + r) / (1 - r). s_w^2 is the variance of the winsorized d: values cut
      off are replaced by the nearest value kept (Tukey and McLaughlin 1963; Yuen 1974). The second factor is the loss
      of information in a first-order autoregression (Bartlett 1935).
    - r: lag-one autocorrelation of those values, plus 1 / n against its known bias, plus `caution` / sqrt(n) because
      few samples estimate an autocorrelation badly; clamped to 0 <= r <= MAX_AUTOCORRELATION.
    - degrees of freedom: (n - 2 g - 1) / sqrt((1 + r) / (1 - r)), at least 1. The root is a choice: without the factor,
      intervals are too narrow at autocorrelation 0.6; with the whole factor, those of 8 pairs are too wide.

    Args:
        trial: At least two pairs.
        caution: Standard errors added to the autocorrelation; 0 adds no safety margin.

    Raises:
        ValueError: The trial has fewer than two pairs.
    """
    n = trial.pairs
    if n < 2:
        raise ValueError(f"the trial has {n} pairs of samples; measure at least 2 before estimating")
    d = trial.log_ratios()
    cut = int(TRIM * n)
    ordered = np.sort(d)
    middle = float(ordered[cut : n - cut].mean())
    pulled_in = np.clip(d, ordered[cut], ordered[n - 1 - cut])
    deviation = pulled_in - pulled_in.mean()
    squares = float(deviation @ deviation)
    if squares == 0.0:
        return Centre(middle, 0.0, float(n - 2 * cut - 1))
    correlation = float(deviation[1:] @ deviation[:-1]) / squares + 1.0 / n + caution / math.sqrt(n)
    correlation = min(max(correlation, 0.0), MAX_AUTOCORRELATION)
    inflation = (1.0 + correlation) / (1.0 - correlation)
    variance = squares / (n - 1) / n / (1.0 - 2.0 * cut / n) ** 2 * inflation
    return Centre(middle, variance, max((n - 2 * cut - 1) / math.sqrt(inflation), 1.0))
