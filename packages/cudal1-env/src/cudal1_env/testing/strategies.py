"""Hypothesis strategies for mutants, exploit templates and noise. Needs the extra `testing`."""

from __future__ import annotations

import numpy as np

from cudal1_env.mutants import Array
from cudal1_env.mutants.mutation import Mutation
from cudal1_env.mutants.programs import ANSWER_MUTANTS, MUTANTS
from cudal1_env.stats.trial_samples import TrialSamples
from cudal1_env.testing import templates
from cudal1_env.testing.noise import (
    Autoregressive,
    HeavyTails,
    LinearDrift,
    Lognormal,
    Noise,
    NoiseModel,
    RandomWalk,
    Spikes,
)

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "cudal1_env.testing.strategies needs hypothesis; install cudal1-env[testing]",
        name="hypothesis",
    ) from error


def mutants() -> st.SearchStrategy[Mutation]:
    """Return a strategy for mutants; `mutant.on(program)` is the mutated program."""
    return st.sampled_from(list(MUTANTS.values()))


def exploits() -> st.SearchStrategy[Mutation]:
    """Return a strategy for exploit templates with parameters; `exploit.on(program)` is the attack."""
    return st.one_of(
        st.builds(templates.honest_first, st.integers(1, 30)),
        st.builds(templates.kept_by_shape),
        st.builds(templates.kept_by_sample, st.integers(1, 64)),
        st.builds(templates.later, st.integers(20, 500)),
        st.builds(templates.uninitialised),
        st.builds(templates.every_nth_row, st.integers(2, 16)),
        st.builds(templates.agreeable),
        st.builds(templates.slowed_timers, st.integers(1, 5)),
        st.builds(templates.forged_result, st.integers(0, 3), st.integers(1, 10)),
    )


@st.composite
def mutant_answers(draw: st.DrawFn, correct: Array, values: Array, other: Array) -> Array:
    """Return a strategy for arrays that differ from a correct answer, without equivalent mutants.

    Args:
        draw: Passed by hypothesis.
        correct: The correct answer, floating-point numbers.
        values: The first input.
        other: The answer to another input, of the same shape.
    """
    mutants = [mutant(correct, values, other) for mutant in ANSWER_MUTANTS.values()]
    return draw(st.sampled_from([one for one in mutants if not np.array_equal(one, correct)]))


def noises() -> st.SearchStrategy[Noise]:
    """Return a strategy for one noise of plausible size."""
    small = st.floats(0.0, 0.05)
    return st.one_of(
        st.builds(Lognormal, sigma=small),
        st.builds(HeavyTails, scale=small, degrees_of_freedom=st.floats(2.0, 10.0)),
        st.builds(Spikes, probability=st.floats(0.0, 0.3), size=st.floats(0.0, 1.0)),
        st.builds(LinearDrift, per_sample=st.floats(-0.01, 0.01)),
        st.builds(RandomWalk, step=st.floats(0.0, 0.02)),
        st.builds(Autoregressive, sigma=small, rho=st.floats(-0.95, 0.95)),
    )


def noise_models() -> st.SearchStrategy[NoiseModel]:
    """Return a strategy for models with up to two noises in each place."""
    few = st.lists(noises(), max_size=2).map(tuple)
    return st.builds(NoiseModel, machine=few, arm=few, process=few)


@st.composite
def simulated_trials(draw: st.DrawFn, *, max_trials: int = 5, max_pairs: int = 25) -> list[TrialSamples]:
    """Return a strategy for the trials of one evaluation: any noise model, true ratio and unit of time.

    Args:
        draw: Passed by hypothesis.
        max_trials: Maximum number of trials.
        max_pairs: Maximum number of pairs in a trial; the minimum is two.
    """
    model = draw(noise_models())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, max_trials))
    pairs = draw(st.integers(2, max_pairs))
    ratio, latency_ms = draw(st.floats(0.1, 10.0)), draw(st.floats(1e-3, 1e3))
    return model.trials(rng, count, pairs, ratio=ratio, latency_ms=latency_ms)
