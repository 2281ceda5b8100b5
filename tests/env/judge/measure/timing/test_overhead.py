"""Harness overhead: subtracted from both arms, added to the candidate at the rewarded end."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from cudal1_data import Task
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.record import Seen, measured
from cudal1_env.judge.measure.timing.interference import Alone, alone, reference_share
from cudal1_env.judge.measure.timing.overhead import (
    Overhead,
    estimate_overhead,
    is_too_short,
    rewarded_low,
    without_constant,
)
from cudal1_env.judge.measure.timing.trial import TrialResult
from cudal1_env.records import Evaluation, Speedup
from cudal1_env.stats import TrialSamples
from hypothesis import given
from hypothesis import strategies as st

MS = st.floats(1e-3, 100.0)


@given(MS, MS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_stealing_the_stealable_overhead_pays_nothing(
    reference_ms: float, work_ms: float, stealable_ms: float, part: float
) -> None:
    """A program that hides a part of the overhead's time is never paid more than its work is worth."""
    stolen = part * min(stealable_ms, work_ms)
    seems_ms = max(work_ms - stolen, 1e-6)
    paid = rewarded_low(reference_ms / seems_ms, reference_ms, stealable_ms)
    assert paid <= reference_ms / work_ms * (1 + 1e-9)


@given(st.floats(0.01, 100.0), MS, st.floats(0.0, 1.0))
def test_the_rewarded_end_is_no_higher_than_the_interval(low: float, reference_ms: float, stealable_ms: float) -> None:
    paid = rewarded_low(low, reference_ms, stealable_ms)
    assert 0.0 < paid <= low * (1 + 1e-12)
    if is_too_short(reference_ms, stealable_ms):
        assert paid <= 1.0


@given(st.floats(0.01, 100.0), MS, st.floats(0.02, 1.0, exclude_min=True))
def test_outputs_whose_constant_part_costs_something_pay_nothing_above_1(
    low: float, reference_ms: float, part: float
) -> None:
    assert without_constant(low, reference_ms, 1.001 * part * reference_ms) <= 1.0


@given(st.floats(1.01, 100.0), MS, st.floats(0.0, 1.0), st.floats(0.0, 0.02))
def test_the_time_of_constant_parts_counts_like_stolen_time(
    low: float, reference_ms: float, stealable_ms: float, part: float
) -> None:
    end, constant_ms = rewarded_low(low, reference_ms, stealable_ms), 0.99 * part * reference_ms
    paid = without_constant(end, reference_ms, constant_ms)
    assert paid <= end * (1 + 1e-12)
    if not is_too_short(reference_ms, stealable_ms):
        assert paid == pytest.approx(1.0 / (1.0 / low + (stealable_ms + constant_ms) / reference_ms))


def test_goals_of_short_calls() -> None:
    """What h must be for a candidate of half the time to be paid 1.5 at 50 us, and 1.2 at 20 us."""
    assert rewarded_low(2.0, 50e-3, 8.3e-3) == pytest.approx(1.5, rel=2e-3)
    assert rewarded_low(2.0, 20e-3, 6.66e-3) == pytest.approx(1.2, rel=2e-3)


def test_a_latency_within_the_overheads_noise_is_taken_as_that_noise() -> None:
    overhead = estimate_overhead([0.2, 0.21, 0.22], [0.0, 0.0, 0.0])
    assert overhead.net_ms(0.2, 0.21) == overhead.resolution_ms == pytest.approx(0.01)
    assert overhead.net_ms(1.21, 0.21) == pytest.approx(1.0)


def test_the_smaller_time_of_the_reference_counts() -> None:
    times = [1.0, 1.01, 0.99, 1.0]
    slowed = alone([1.2] * 8, times, times * 2)
    assert reference_share([slowed], allowed=1.0) == pytest.approx(1 / 1.2, rel=0.015)
    assert reference_share([slowed] * 3, allowed=1.0) == pytest.approx(1 / 1.2, rel=0.01)
    assert reference_share([alone([1.0] * 4 + [3.0] * 4, times, times * 2)], allowed=1.0) < 0.6
    assert reference_share([alone([1.2] * 8, [1.2] * 4, times * 2)], allowed=1.0) == pytest.approx(1 / 1.2, rel=0.015)
    assert reference_share([alone([0.9] * 8, times, times)], allowed=1.0) == 1.0
    assert reference_share([alone([1.04] * 8, times, times)], allowed=1.05) == 1.0


def test_noise_that_differs_from_trial_to_trial_does_not_shift_what_is_stated() -> None:
    """The smaller of two noisy times is too small in the mean: by 3 % here in each trial, and by 0.3 % over eight."""
    rng = np.random.default_rng(4)
    each: list[float] = []
    pooled: list[float] = []
    for _ in range(100):
        trials: list[Alone] = []
        for _ in range(8):
            blocks = np.exp(0.05 * rng.standard_normal(3))
            beside, before, after = (
                (block * np.exp(0.02 * rng.standard_normal(n))).tolist()
                for block, n in zip(blocks, (20, 4, 8), strict=True)
            )
            trials.append(alone(beside, before, after))
        each += [reference_share([one], allowed=1.0) for one in trials]
        pooled.append(reference_share(trials, allowed=1.0))
    assert 1 - statistics.fmean(pooled) < 0.005 < 0.02 < 1 - statistics.fmean(each)


def _record(slowed: float) -> Evaluation:
    """The record of a candidate that takes none of its own time, beside a reference that it slowed by a factor."""
    samples = TrialSamples((0.1 * slowed,) * 8, (0.005,) * 8)
    beside = Alone((-math.log(slowed), 0.0), (-math.log(slowed), 0.0))
    trial = TrialResult(samples, Overhead(0.1, 0.1, 0.0), (0.1, 0.1), beside, 1.0)
    task = Task(id="file/one", name="one", level=1, origin="file", source="")
    return measured(
        Built(Case(task, "", "training")), Seen(trials=[trial]), Speedup(low=20.0, point=20.0, high=20.0), 20.0
    ).evaluation


def test_slowing_the_reference_hides_no_overhead() -> None:
    """A reference as long as the overhead is too short, also beside a candidate that slows it ten times."""
    plain, slowed = _record(1.0), _record(10.0)
    assert plain.too_short
    assert slowed.too_short
    assert slowed.rewarded_low == pytest.approx(plain.rewarded_low)
    assert slowed.rewarded_low is not None
    assert slowed.rewarded_low <= 1.0


def test_the_message_names_the_length_that_is_needed() -> None:
    assert "calls of 100.0 us are too short" in _record(1.0).message
    assert _record(1.0).message.endswith("on this machine, which needs 300.0 us")


def test_noise_takes_little_from_an_honest_program() -> None:
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(400):
        times = np.exp(0.05 * rng.standard_normal(32)).tolist()
        shares.append(reference_share([alone(times[4:24], times[:4], times[24:])], allowed=1.0))
    assert statistics.fmean(shares) > 0.985
