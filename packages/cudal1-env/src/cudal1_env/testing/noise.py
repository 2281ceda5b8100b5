"""Timing noise, to simulate the judge without a clock: heavy tails, spikes, drift, autocorrelation, process shifts.

A noise is a pure function of a random generator that returns an addend to the logarithm of each sample's
latency. A `NoiseModel` says where noises act: on the machine (along time, on both arms), on an arm (along
the samples of that arm alone), on a process (once for each trial). `MODELS` are those with which cudal1's
statistics are tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from cudal1_env.stats.trial_samples import FloatArray, TrialSamples


class Noise(Protocol):
    """Anything that perturbs samples."""

    def __call__(self, rng: np.random.Generator, samples: int, /) -> FloatArray:
        """Return the addends to the log latency of `samples` consecutive samples, shape (samples,)."""
        ...


@dataclass(frozen=True)
class Lognormal:
    """Independent normal noise on the log latency."""

    sigma: float
    """Standard deviation (0.01 is 1 %)."""

    def __call__(self, rng: np.random.Generator, samples: int, /) -> FloatArray:
        """Return the noise of `samples` samples."""
        return self.sigma * rng.standard_normal(samples)


@dataclass(frozen=True)
class HeavyTails:
    """Independent Student t noise on the log latency."""

    scale: float
    """Scale (the standard deviation is larger, or infinite)."""
    degrees_of_freedom: float
    """Smaller means heavier tails; the variance is infinite at 2 and below."""

    def __call__(self, rng: np.random.Generator, samples: int, /) -> FloatArray:
        """Return the noise of `samples` samples."""
        return self.scale * rng.standard_t(self.degrees_of_freedom, samples)


@dataclass(frozen=True)
class Spikes:
    """Random samples are longer, by an exponentially distributed amount."""

    probability: float
    """Probability of a spike in a sample."""
    size: float
    """Mean addend of a spike to the log latency (0.3 is about 30 %)."""

    def __call__(self, rng: np.random.Generator, samples: int, /) -> FloatArray:
        """Return the noise of `samples` samples."""
        return np.where(rng.random(samples) < self.probability, rng.exponential(self.size, samples), 0.0)


@dataclass(frozen=True)
class LinearDrift:
    """Latency that rises steadily, as when a machine heats up."""

    per_sample: float
    """Rise of the log latency from one sample to the next."""

    def __call__(self, rng: np.random.Generator, samples: int, /) -> FloatArray:
        """Return the noise of `samples` samples."""
        return self.per_sample * np.arange(samples, dtype=np.float64)


@dataclass(frozen=True)
class RandomWalk:
    """Random walk of the log latency."""

    step: float
    """Standard deviation of the step from one sample to the next."""

    def __call__(self, rng: np.random.Generator, samples: int, /) -> FloatArray:
        """Return the noise of `samples` samples."""
        return np.cumsum(self.step * rng.standard_normal(samples))


@dataclass(frozen=True)
class Autoregressive:
    """First-order autoregressive normal noise (AR(1)), stationary from the first sample."""

    sigma: float
    """Standard deviation of one sample."""
    rho: float
    """Correlation of neighbouring samples, between -1 and 1."""

    def __call__(self, rng: np.random.Generator, samples: int, /) -> FloatArray:
        """Return the noise of `samples` samples."""
        values: list[float] = (self.sigma * rng.standard_normal(samples)).tolist()
        fresh = math.sqrt(1.0 - self.rho**2)
        for sample in range(1, samples):
            values[sample] = self.rho * values[sample - 1] + fresh * values[sample]
        return np.array(values)


@dataclass(frozen=True)
class NoiseModel:
    """Where noises act; noises in the same place add up."""

    machine: tuple[Noise, ...] = ()
    """Along time, on both arms: two samples per pair, the reference's first."""
    arm: tuple[Noise, ...] = ()
    """Along the samples of each arm, drawn separately for each arm."""
    process: tuple[Noise, ...] = ()
    """Once for each arm and trial: the difference between processes that run the same code."""

    def trial(
        self, rng: np.random.Generator, pairs: int, *, ratio: float = 1.0, latency_ms: float = 1.0
    ) -> TrialSamples:
        """Return one simulated trial.

        Args:
            rng: Source of randomness.
            pairs: Number of paired samples.
            ratio: True reference / candidate.
            latency_ms: Noiseless latency of the reference.
        """
        in_time = _total(self.machine, rng, 2 * pairs).reshape(pairs, 2)
        reference = in_time[:, 0] + _total(self.arm, rng, pairs) + _total(self.process, rng, 1)
        candidate = in_time[:, 1] + _total(self.arm, rng, pairs) + _total(self.process, rng, 1) - math.log(ratio)
        times_ms = (latency_ms * np.exp(np.stack([reference, candidate]))).tolist()
        return TrialSamples(tuple(times_ms[0]), tuple(times_ms[1]))

    def trials(
        self, rng: np.random.Generator, count: int, pairs: int, *, ratio: float = 1.0, latency_ms: float = 1.0
    ) -> list[TrialSamples]:
        """Return `count` simulated trials of `pairs` pairs each; see `trial`."""
        return [self.trial(rng, pairs, ratio=ratio, latency_ms=latency_ms) for _ in range(count)]


def _total(noises: Sequence[Noise], rng: np.random.Generator, samples: int) -> FloatArray:
    total = np.zeros(samples)
    for noise in noises:
        total = total + noise(rng, samples)
    return total


_SHIFT = Lognormal(0.003 / math.sqrt(2.0))
"""Log ratios of two processes with this noise have a standard deviation of 0.3 %."""

TYPICAL = NoiseModel(arm=(Autoregressive(0.01, 0.3),), process=(_SHIFT,))
"""An ordinary machine: 1 % per sample with autocorrelation 0.3, and 0.3 % from one pair of processes to the next."""

MODELS: Mapping[str, NoiseModel] = MappingProxyType(
    {
        "typical": TYPICAL,
        "lognormal": NoiseModel(machine=(Lognormal(0.01),), process=(_SHIFT,)),
        "heavy tails": NoiseModel(machine=(HeavyTails(0.01, 3.0),), process=(_SHIFT,)),
        "infinite variance": NoiseModel(arm=(HeavyTails(0.01, 2.0),), process=(_SHIFT,)),
        "spikes": NoiseModel(machine=(Lognormal(0.01), Spikes(0.05, 0.3)), process=(_SHIFT,)),
        "linear drift": NoiseModel(machine=(Lognormal(0.01), LinearDrift(0.001)), process=(_SHIFT,)),
        "random walk": NoiseModel(machine=(Lognormal(0.01), RandomWalk(0.005)), process=(_SHIFT,)),
        "strong memory": NoiseModel(arm=(Autoregressive(0.01, 0.6),), process=(_SHIFT,)),
        "slow memory": NoiseModel(arm=(Lognormal(0.01), Autoregressive(0.005, 0.9)), process=(_SHIFT,)),
        "process shifts": NoiseModel(machine=(Lognormal(0.005),), process=(Lognormal(0.006 / math.sqrt(2.0)),)),
        "heavy process shifts": NoiseModel(machine=(Lognormal(0.01),), process=(HeavyTails(0.003, 3.0),)),
        "everything": NoiseModel(
            machine=(HeavyTails(0.007, 3.0), Spikes(0.05, 0.3), RandomWalk(0.003)),
            arm=(Autoregressive(0.007, 0.5),),
            process=(HeavyTails(0.003, 4.0),),
        ),
    }
)
"""Noise models with which cudal1's statistics are tested, by name."""
