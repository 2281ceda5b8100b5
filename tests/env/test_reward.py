"""The reward never rises when the evidence falls, stays in its bounds, and its smoothing resumes exactly."""

from __future__ import annotations

import math

import pytest
from cudal1_env.records import Evaluation, Latency, Speedup, Status
from cudal1_env.reward import LOG_FLOOR, MILESTONES, RewardSmoother, reward, reward_of
from cudal1_env.stats import estimate
from cudal1_env.testing.strategies import simulated_trials
from doubles.evaluator import evaluation
from hypothesis import given, settings
from hypothesis import strategies as st

RULES = ["speedup", "log", "milestone"]
positive = st.floats(1e-3, 1e3)
intervals = st.tuples(positive, positive, positive).map(sorted).map(lambda v: Speedup(low=v[0], point=v[1], high=v[2]))
rewards = st.floats(-1e3, 1e3)


@pytest.mark.parametrize(
    ("low", "point", "high", "speedup", "log", "milestone"),
    [
        (1.9, 2.0, 2.1, 1.9, math.log(1.9), 5),
        (1.0, 1.1, 1.2, 1.0, 0.0, 1),
        (0.9, 0.95, 1.0, 1.0, 0.0, 1),
        (0.4, 0.5, 0.6, 0.5, math.log(0.5), 1),
        (0.01, 0.2, 90.0, 0.2, math.log(0.2), 1),
        (0.7, 1.3, 2.0, 1.0, 0.0, 1),
        (0.01, 0.02, 0.03, 0.02, LOG_FLOOR, 1),
        (20.0, 21.0, 22.0, 20.0, math.log(20.0), len(MILESTONES)),
    ],
)
def test_the_rules_by_example(low, point, high, speedup, log, milestone):
    interval = Speedup(low=low, point=point, high=high)
    assert reward(Status.CORRECT, interval) == speedup
    assert reward(Status.CORRECT, interval, "log") == pytest.approx(log)
    assert reward(Status.CORRECT, interval, "milestone") == milestone


@given(intervals, intervals, st.sampled_from(RULES))
def test_the_reward_does_not_fall_when_the_interval_rises(a, b, rule):
    higher = Speedup(low=max(a.low, b.low), point=max(a.point, b.point), high=max(a.high, b.high))
    for one in (a, b):
        assert reward(Status.CORRECT, higher, rule) >= reward(Status.CORRECT, one, rule)


@given(intervals, st.floats(1.0, 10.0))
def test_a_wider_interval_around_a_win_is_never_worth_more(interval, factor):
    wider = Speedup(low=interval.low / factor, point=interval.point, high=interval.high * factor)
    if interval.low > 1.0:
        assert reward(Status.CORRECT, wider) <= reward(Status.CORRECT, interval)


@given(intervals)
def test_bounds(interval):
    value = reward(Status.CORRECT, interval)
    assert value > 0.0
    assert value <= max(1.0, interval.low)
    assert interval.low <= value
    assert reward(Status.CORRECT, interval, "log") >= LOG_FLOOR
    assert 1 <= reward(Status.CORRECT, interval, "milestone") <= len(MILESTONES)


@given(
    intervals, st.sampled_from([status for status in Status if status is not Status.CORRECT]), st.sampled_from(RULES)
)
def test_no_failure_is_rewarded_at_any_speed(interval, status, rule):
    worst = LOG_FLOOR if rule == "log" else 0.0
    assert reward(status, interval, rule) == reward(status, None, rule) == worst
    assert reward(Status.CORRECT, interval, rule) >= worst


@settings(deadline=None)
@given(simulated_trials(), st.floats(1e-3, 1e3))
def test_the_reward_does_not_know_the_unit_of_time_or_the_order(launches, factor):
    changed = [
        type(one)(tuple(factor * t for t in one.reference_ms), tuple(factor * t for t in one.candidate_ms))
        for one in reversed(launches)
    ]
    before, after = estimate(launches), estimate(changed)
    # On the edge of 1 the last bit may decide.
    if min(abs(before.low - 1.0), abs(before.high - 1.0)) > 1e-9:
        assert reward(Status.CORRECT, after) == pytest.approx(reward(Status.CORRECT, before), rel=1e-9)


def test_a_record_is_rewarded_by_its_own_speedup():
    latency = Latency(median_ms=1.0, low_ms=1.0, high_ms=1.0, samples=8)
    common = {"id": "1", "created_at": "", "task": "t", "task_sha256": "", "task_source": "", "message": ""}
    common |= {"source": "", "source_sha256": "", "precision": "training"}
    speedup = Speedup(low=1.4, point=1.5, high=1.6)
    timed = {"reference": latency, "candidate": latency}
    right = Evaluation.model_validate(common | timed | {"status": Status.CORRECT, "speedup": speedup})
    assert reward_of(right) == 1.4
    evidence = Evaluation.model_validate(common | {"status": Status.IMPOSSIBLE, "speedup": speedup})
    assert reward_of(evidence) == 0.0


def test_correct_needs_a_speedup():
    with pytest.raises(ValueError, match="has no speedup"):
        reward(Status.CORRECT, None)


@given(st.lists(rewards, min_size=1, max_size=50), rewards, st.floats(0.1, 5.0))
def test_smoothed_rewards_are_clipped_and_keep_their_order(seen, value, k):
    smoother = RewardSmoother(k=k).updated(seen)
    assert -k <= smoother.smooth(value) <= k
    assert smoother.smooth(value + 1.0) >= smoother.smooth(value)


@given(st.lists(rewards, min_size=2, max_size=50), st.integers(2, 60))
def test_statistics_are_those_of_the_latest_rewards(seen, window):
    smoother = RewardSmoother(window=window).updated(seen[:1]).updated(seen[1:])
    counted = seen[-window:]
    mean = math.fsum(counted) / len(counted)
    assert smoother.mean == pytest.approx(mean, abs=1e-9)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in counted) / len(counted))
    assert smoother.deviation == pytest.approx(deviation, rel=1e-6, abs=1e-6)


def test_old_rewards_are_forgotten():
    early = RewardSmoother(window=4).updated([0.0, 0.1, 0.0, 0.1])
    late = early.updated([2.0, 2.1, 2.0, 2.1])
    assert early.smooth(2.05) == 1.5
    assert late.smooth(2.05) == pytest.approx(0.0)


@given(st.lists(rewards, max_size=30), st.lists(rewards, min_size=1, max_size=30))
def test_a_saved_smoother_resumes_bit_for_bit(before, after):
    smoother = RewardSmoother().updated(before)
    resumed = RewardSmoother.model_validate_json(smoother.model_dump_json())
    assert resumed == smoother
    assert resumed.updated(after) == smoother.updated(after) == RewardSmoother().updated(before + after)


def test_equal_rewards_have_no_scale():
    smoother = RewardSmoother().updated([0.1] * 7)
    assert smoother.smooth(0.1) == 0.0
    assert RewardSmoother().smooth(3.0) == 0.0


def test_a_smoother_refuses_values_that_are_no_number():
    with pytest.raises(ValueError, match="finite rewards"):
        RewardSmoother().updated([1.0, math.nan])
    with pytest.raises(ValueError, match="pass a finite one"):
        RewardSmoother().smooth(math.inf)


@pytest.mark.parametrize("rule", RULES)
def test_a_program_that_was_not_timed_gets_no_more_than_the_slowest_that_was(rule) -> None:
    untimed = evaluation().model_copy(update={"precision": "correct", "speedup": None})
    slowest = evaluation(speedup=1e-3)
    assert reward(Status.WRONG_OUTPUT, None, rule) <= reward_of(untimed, rule) <= reward_of(slowest, rule)


def test_a_record_without_a_clock_holds_no_speedup() -> None:
    timed = evaluation().model_dump()
    with pytest.raises(ValueError, match="times nothing"):
        Evaluation.model_validate({**timed, "precision": "correct"})
    untimed = {**timed, "speedup": None, "reference": None, "candidate": None}
    assert Evaluation.model_validate({**untimed, "precision": "correct"}).correct
    with pytest.raises(ValueError, match="a CORRECT record needs a speedup"):
        Evaluation.model_validate(untimed)


def test_an_unknown_rule_is_no_other_rule() -> None:
    with pytest.raises(ValueError, match="unknown reward 'speed'; did you mean 'speedup'"):
        reward(Status.WRONG_OUTPUT, None, "speed")  # pyright: ignore[reportArgumentType]
