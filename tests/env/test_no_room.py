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


def test_candidates_are_imported_again_one_by_one_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, judge: BatchJudge
) -> None:
    alive: list[int] = []
    build, measure = judge._builder.build, Launches.measure
    built: list[Any] = []

    def noted(*arguments: Any, **named: Any) -> Any:
        built.append(build(*arguments, **named))
        return built[-1]

    def counted(self: Launches, one: Any, pool: Any) -> Evaluation:
        alive.append(sum(other.arm is not None for other in built))
        return measure(self, one, pool)

    monkeypatch.setattr(judge._builder, "build", noted)
    monkeypatch.setattr(Launches, "measure", counted)
    monkeypatch.setattr(judge.device, "free_bytes", lambda: 1 << 20)
    found = judge.evaluate_many([(TASKS[0], ANSWER + f"# {k}\n") for k in range(2)])
    assert [one.status for one in found] == [Status.CORRECT] * 2, [one.message for one in found]
    assert alive[0] == 0
    assert len(built) == 4


def test_a_task_that_is_refused_is_asked_about_once_in_a_batch(
    monkeypatch: pytest.MonkeyPatch, judge: BatchJudge
) -> None:
    asked: list[str] = []
    new = judge._new_pool

    def counted(case: Any, seed: bytes | None) -> Any:
        asked.append(case.task.id)
        return new(case, seed)

    monkeypatch.setattr(judge, "_new_pool", counted)
    broken = Task(id="file/broken", source=program(2).replace("x * 2", "x * y"), name="b", level=1, origin="file")
    told: dict[int, object] = {}
    judge.evaluate_each([(broken, ANSWER), (TASKS[0], ANSWER)], told.__setitem__)
    assert isinstance(told[0], TaskError)
    assert isinstance(told[1], Evaluation)
    judge.rehearse([(broken, ANSWER + f"# triton {k}\n") for k in range(3)])
    assert asked.count("file/broken") == 2
