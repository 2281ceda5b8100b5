"""What `cudal1-env evaluate` prints below a verdict: the reward, where it is less than the interval's lower end."""

from __future__ import annotations

from typing import Any

import pytest
from cudal1_env.commands.output import details
from cudal1_env.records import Evaluation, Status
from doubles.evaluator import evaluation


def record(speedup: float = 2.0, **fields: Any) -> Evaluation:
    return evaluation(speedup=speedup, spread=0.1).model_copy(update=fields)


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (
            record(rewarded_low=1.5, stealable_ms=0.0125, reference_shares=(1.0, 0.9)),
            "reward 1.5, not 1.8: 12.5 us of harness overhead count as the program's time; "
            "the reference alone took 0.9 of its time in pairs",
        ),
        (
            record(rewarded_low=0.9, stealable_ms=0.5, constant_ms=0.0),
            "reward 1, not 1.8: 500.0 us of harness overhead count as the program's time",
        ),
        (record(rewarded_low=1.0, stealable_ms=0.5, too_short=True), "reward 1, not 1.8: calls are too short for more"),
        (record().doubted(["tf32"]), "reward 1, not 1.8: outputs may not show all work"),
        (
            record(rewarded_low=1.7, stealable_ms=0.0, constant_ms=0.03),
            "reward 1.7, not 1.8: 30.0 us for values that recur with other inputs count as the program's time",
        ),
    ],
)
def test_a_reward_below_the_interval_is_printed_with_its_reason(one: Evaluation, line: str) -> None:
    assert details(one) == [line]


@pytest.mark.parametrize(
    "one",
    [
        record(),
        record(rewarded_low=1.7999),
        record(0.5, rewarded_low=0.3, stealable_ms=0.5),
        record(1.0, rewarded_low=0.8, stealable_ms=0.5),
        evaluation(status=Status.WRONG_OUTPUT),
        evaluation().model_copy(update={"precision": "correct", "speedup": None}),
    ],
    ids=["old record", "equal in three digits", "slower", "no difference", "incorrect", "not timed"],
)
def test_another_reward_needs_no_line(one: Evaluation) -> None:
    assert details(one) == []
