"""Input sets of a further candidate are made while the models are constructed; no candidate meets another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cudal1_data import Task
from cudal1_env.judge import Judge
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.headroom import check_memory
from cudal1_env.judge.measure.timing import trials
from cudal1_env.judge.oracle.pool import WARM_SETS
from cudal1_env.records import Status
from doubles.judges import QUICK
from task_programs import program

ANSWER = program(2).replace("class Model(", "class ModelNew(")
TASK = Task(id="file/ahead", source=program(2), name="ahead", level=1, origin="file")


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge(QUICK) as one:
        yield one


def test_sets_of_a_further_candidate_are_made_ahead(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    first = judge.evaluate(TASK, ANSWER)
    (pool,) = judge._pools.values()
    kept: list[bool] = []

    def checked(device: Device, candidate: Arm) -> None:
        kept.extend(number in pool._sets for number in range(pool.fresh, pool.fresh + pool._wanted))
        check_memory(device, candidate)

    monkeypatch.setattr(trials, "check_memory", checked)
    second = judge.evaluate(TASK, ANSWER)
    assert first.status is second.status is Status.CORRECT
    assert first.first_set == WARM_SETS
    assert second.first_set is not None
    assert second.first_set > WARM_SETS, "the second candidate has sets of its own"
    assert kept, "the first trial asked for sets"
    assert all(kept), "they are there once both models are constructed"


@pytest.mark.slow
def test_a_set_that_no_candidate_met_is_kept_for_the_next(judge: Judge) -> None:
    judge.evaluate(TASK, ANSWER)
    (pool,) = judge._pools.values()
    fresh = pool.fresh
    assert judge.evaluate(TASK, "import torch\n\nraise RuntimeError('no')\n").status is not Status.CORRECT
    assert pool.fresh == fresh
    assert judge.evaluate(TASK, ANSWER).first_set == fresh
