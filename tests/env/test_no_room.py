"""Where a GPU has too little memory, other tasks' inputs go first; then the task is too large. A CPU stands for it."""

from __future__ import annotations

from typing import Any

import pytest
from cudal1_data import Task
from cudal1_env.errors import MachineError, TaskError
from cudal1_env.judge import JudgeSettings
from cudal1_env.judge.batch import BatchJudge
from cudal1_env.judge.launches import Launches
from cudal1_env.records import Evaluation, Status
from task_programs import program

ANSWER = program(2).replace("class Model(", "class ModelNew(")
TASKS = [Task(id=f"file/{name}", source=program(2) + f"# {name}\n", name=name, level=1, origin="file") for name in "ab"]


class Full(Exception):
    """What a driver raises that has no memory to give."""


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    with BatchJudge(JudgeSettings(device="cpu")) as one:
        monkeypatch.setattr(one.device, "faults", (Full,))
        monkeypatch.setattr(one.device, "out_of_room", lambda error: "memory" in str(error))
        yield one


def failing(monkeypatch: pytest.MonkeyPatch, judge: BatchJudge, words: str, *, while_pools: int) -> None:
    """Let measurements fail while the judge keeps so many pools."""
    measure = Launches.measure

    def full(self: Launches, built: Any, pool: Any) -> Evaluation:
        if len(judge._pools) >= while_pools:
            raise Full(words)
        return measure(self, built, pool)

    monkeypatch.setattr(Launches, "measure", full)


def test_other_tasks_inputs_go_and_come_again(monkeypatch: pytest.MonkeyPatch, judge: BatchJudge) -> None:
    failing(monkeypatch, judge, "out of memory", while_pools=2)
    found = judge.evaluate_many([(task, ANSWER) for task in TASKS for _ in range(2)])
    assert [one.status for one in found] == [Status.CORRECT] * 4, [one.message for one in found]
    assert {one.task for one in found} == {"file/a", "file/b"}


def test_each_program_of_a_sweep_is_told(monkeypatch: pytest.MonkeyPatch, judge: BatchJudge) -> None:
    failing(monkeypatch, judge, "out of memory", while_pools=2)
    told: dict[int, object] = {}
    judge.evaluate_each([(task, ANSWER) for task in TASKS], told.__setitem__)
    assert all(isinstance(one, Evaluation) and one.correct and one.seed for one in told.values()), told
    assert len(told) == 2


def test_a_task_that_is_too_large_says_so_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, judge: BatchJudge
) -> None:
    failing(monkeypatch, judge, "out of memory", while_pools=1)
    told: dict[int, object] = {}
    judge.evaluate_each([(task, ANSWER) for task in TASKS], told.__setitem__)
    assert all(isinstance(one, TaskError) for one in told.values())
    assert "file/a: expected room on the GPU" in str(told[0])
    assert "--scale" in str(told[0])


def test_other_faults_are_the_machines(monkeypatch: pytest.MonkeyPatch, judge: BatchJudge) -> None:
    failing(monkeypatch, judge, "an illegal address", while_pools=1)
    with pytest.raises(MachineError, match="illegal address"):
        judge.evaluate(TASKS[0], ANSWER)
