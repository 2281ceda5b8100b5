"""Where a GPU has too little memory, other tasks' inputs go first; then the task is too large. A CPU stands for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cudal1_data import Task
from cudal1_env.errors import MachineError, TaskError, TooLargeError
from cudal1_env.judge import Judge
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.record import Seen, Verdict, failed
from cudal1_env.judge.measure.timing.trials import Trials
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.records import Evaluation, Precision, Status
from cudal1_worker import gpus
from cudal1_worker import protocol as wire
from doubles.judges import QUICK
from task_programs import program

ANSWER = program(2).replace("class Model(", "class ModelNew(")
TASKS = [
    Task(id=f"file/{name}", source=program(2) + f"# {name}\n", name=name, level=1, origin="file") for name in "abc"
]
TASKS, OTHER = TASKS[:2], TASKS[2]


class Full(Exception):
    """What a driver raises that has no memory to give."""


@pytest.fixture(scope="module")
def one_judge() -> Iterator[Judge]:
    with Judge(QUICK) as one:
        yield one


@pytest.fixture
def judge(one_judge: Judge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    may_be_full(one_judge, monkeypatch)
    yield one_judge
    one_judge.retire()


def may_be_full(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the judge take `Full` for its driver's error."""
    monkeypatch.setattr(judge.device, "faults", (Full,))
    monkeypatch.setattr(judge.device, "out_of_room", lambda error: "memory" in str(error))


def failing(monkeypatch: pytest.MonkeyPatch, judge: Judge, words: str, *, while_pools: int) -> None:
    """Let measurements fail while the judge keeps so many pools."""
    measure = Trials.measure

    def full(self: Trials, built: Any, pool: Any) -> Verdict:
        if len(judge._pools) >= while_pools:
            raise Full(words)
        return measure(self, built, pool)

    monkeypatch.setattr(Trials, "measure", full)


@pytest.mark.slow
def test_other_tasks_inputs_go_and_come_again(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> None:
    failing(monkeypatch, judge, "out of memory", while_pools=2)
    found = judge.evaluate_many([(task, ANSWER) for task in TASKS for _ in range(2)])
    assert [one.status for one in found] == [Status.CORRECT] * 4, [one.message for one in found]
    assert {one.task for one in found} == {"file/a", "file/b"}


@pytest.mark.parametrize("while_pools", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_program_is_rejected_for_memory_only_if_no_other_task_held_some(
    monkeypatch: pytest.MonkeyPatch, judge: Judge, while_pools: int
) -> None:
    measure, asked = Trials.measure, list[int]()

    def crowded(self: Trials, built: Any, pool: Any) -> Verdict:
        asked.append(len(judge._pools))
        if len(judge._pools) >= while_pools:
            return Verdict(failed(built, Seen(), Fault(Status.OUT_OF_MEMORY, "too little")))
        return measure(self, built, pool)

    monkeypatch.setattr(Trials, "measure", crowded)
    monkeypatch.setattr(judge.device, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(judge.device, "pool_bytes", lambda wanted: 1 << 40)
    found = judge.evaluate_many([(task, ANSWER) for task in TASKS])
    wanted = Status.CORRECT if while_pools == 2 else Status.OUT_OF_MEMORY
    assert [one.status for one in found] == [wanted] * 2, [one.message for one in found]
    assert asked[:2] == [2, 1], "with the other task's inputs, then without"


@pytest.mark.slow
def test_each_program_of_a_sweep_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[int, object] = {}
    with Judge(QUICK, own_secrets=True) as judge:
        may_be_full(judge, monkeypatch)
        failing(monkeypatch, judge, "out of memory", while_pools=2)
        judge.evaluate_each([(task, ANSWER) for task in TASKS], told.__setitem__)
    assert all(isinstance(one, Evaluation) and one.correct and one.seed for one in told.values()), told
    assert len(told) == 2


def test_a_task_that_is_too_large_says_so_and_harms_no_other(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> None:
    failing(monkeypatch, judge, "out of memory", while_pools=1)
    told: dict[int, object] = {}
    judge.evaluate_each([(task, ANSWER) for task in TASKS], told.__setitem__)
    assert all(isinstance(one, TaskError) for one in told.values())
    assert "file/a: the GPU has too little memory" in str(told[0])
    assert "--scale" in str(told[0])


def test_other_faults_are_the_machines(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> None:
    failing(monkeypatch, judge, "an illegal address", while_pools=1)
    with pytest.raises(MachineError, match="illegal address"):
        judge.evaluate(TASKS[0], ANSWER)


@pytest.mark.slow
def test_what_opened_a_gpu_when_it_was_imported_is_not_there_while_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, judge: Judge
) -> None:
    monkeypatch.setattr(gpus, "NODES", "/dev/zero")
    monkeypatch.setattr(judge.device, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(judge.device, "pool_bytes", lambda wanted: 1 << 40)
    monkeypatch.setattr(judge.device, "locks", ("gpu-of-this-test",), raising=False)
    build, measure = judge._builder.build, Trials.measure
    built: list[Any] = []
    alive: list[list[bool]] = []

    def noted(*arguments: Any, **named: Any) -> Any:
        built.append(build(*arguments, **named))
        return built[-1]

    def counted(self: Trials, one: Any, pool: Any) -> Verdict:
        alive.append(["opens" in other.case.source for other in built if other.arm is not None])
        return measure(self, one, pool)

    monkeypatch.setattr(judge._builder, "build", noted)
    monkeypatch.setattr(Trials, "measure", counted)
    opens = "opens = open('/dev/zero')\n" + ANSWER
    found = judge.evaluate_many([(TASKS[0], opens), (TASKS[0], ANSWER)])
    assert [one.status for one in found] == [Status.CORRECT] * 2, [one.message for one in found]
    assert alive[0] == [False], "expected the other one, as it was imported"


@pytest.mark.slow
def test_a_task_that_is_refused_is_asked_about_once_in_a_batch(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> None:
    asked: list[str] = []
    new = judge._pools.new

    def counted(case: Any) -> Any:
        asked.append(case.task.id)
        return new(case)

    monkeypatch.setattr(judge._pools, "new", counted)
    broken = Task(id="file/broken", source=program(2).replace("x * 2", "x * y"), name="b", level=1, origin="file")
    told: dict[int, object] = {}
    judge.evaluate_each([(broken, ANSWER), (TASKS[0], ANSWER)], told.__setitem__)
    assert isinstance(told[0], TaskError)
    assert isinstance(told[1], Evaluation)
    jobs = [(broken, ANSWER + f"# {k}\n") for k in range(3)]
    judge.evaluate_each(jobs, told.__setitem__, precision="correct")
    assert asked.count("file/broken") == 2


@pytest.mark.slow
def test_an_oracle_without_memory_next_to_others_is_restarted_alone(
    monkeypatch: pytest.MonkeyPatch, judge: Judge
) -> None:
    new, refused = judge._pools.new, list[str]()

    def crowded(case: Any) -> Pool:
        if case.task.id not in refused:
            refused.append(case.task.id)
            raise TooLargeError(f"{case.task.id}: the reference failed in describe")
        return new(case)

    monkeypatch.setattr(judge._pools, "new", crowded)
    told: dict[int, object] = {}
    judge.evaluate_each([(task, ANSWER) for task in TASKS], told.__setitem__)
    assert all(isinstance(one, Evaluation) and one.correct for one in told.values()), told
    refused.clear()
    judge.retire()
    assert all(one.correct for one in judge.evaluate_many([(task, ANSWER) for task in TASKS]))
    assert sorted(refused) == ["file/a", "file/b"]


@pytest.mark.parametrize("precision", ["training", "correct"])
def test_an_oracle_gets_the_memory_of_idle_tasks(
    monkeypatch: pytest.MonkeyPatch, judge: Judge, precision: Precision
) -> None:
    new = judge._pools.new

    def full(case: Any) -> Pool:
        if judge._pools:
            raise TooLargeError(f"{case.task.id}: the reference failed in describe")
        return new(case)

    monkeypatch.setattr(judge.device, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(judge.device, "pool_bytes", lambda wanted: 1 << 40)
    monkeypatch.setattr(judge._pools, "new", full)
    found = [judge.evaluate(task, ANSWER, precision=precision) for task in TASKS]
    found += judge.evaluate_many([(task, ANSWER) for task in TASKS], precision=precision)
    assert [one.status for one in found] == [Status.CORRECT] * 4, [one.message for one in found]


@pytest.mark.slow
def test_a_reference_without_memory_gets_that_of_other_tasks(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> None:
    opened = Arm.open

    def full(self: Arm, *arguments: Any, **named: Any) -> None:
        if self.wanted == "Model" and len(judge._pools) > 1:
            raise Fault(Status.OUT_OF_MEMORY, "the worker ran out of memory")
        opened(self, *arguments, **named)

    monkeypatch.setattr(Arm, "open", full)
    found = judge.evaluate_many([(task, ANSWER) for task in TASKS])
    assert [one.status for one in found] == [Status.CORRECT] * 2, [one.message for one in found]


@pytest.mark.parametrize("status", [Status.OUT_OF_MEMORY, Status.TIMEOUT, Status.CRASH])
@pytest.mark.parametrize("phase", ["open", "freeze", "thaw"])
def test_what_the_reference_does_is_never_the_candidates_fault(
    monkeypatch: pytest.MonkeyPatch, judge: Judge, phase: str, status: Status
) -> None:
    was = getattr(Arm, phase)

    def failing(self: Arm, *arguments: Any, **named: Any) -> Any:
        if self.wanted == "Model":
            raise Fault(status, "it failed")
        return was(self, *arguments, **named)

    monkeypatch.setattr(Arm, phase, failing)
    with pytest.raises(TaskError, match="the reference failed: it failed") as caught:
        judge.evaluate(TASKS[0], ANSWER)
    assert isinstance(caught.value, TooLargeError) is (status is Status.OUT_OF_MEMORY)


def test_a_task_always_has_half_of_the_memory_for_its_inputs(judge: Judge) -> None:
    first, second, third = (judge._pools.take(judge._case(task, "", "training")) for task in (*TASKS, OTHER))
    for pool, taken in ((first, 0.3), (second, 0.4), (third, 0.0)):
        pool.size_bytes = int(taken * judge.device.pool_bytes(judge.settings.pool_bytes))
    most = judge.device.pool_bytes(judge.settings.pool_bytes)
    judge._pools.allot(third)
    assert first.size_bytes == 0, "the one that was not used for longest gives way"
    assert second.size_bytes == int(0.4 * most)
    assert third.max_bytes == most - second.size_bytes


def test_sets_that_were_given_back_come_again_as_they_were(judge: Judge) -> None:
    pool = judge._pools.take(judge._case(TASKS[0], "", "training"))
    before = [one.inputs.tobytes() for one in pool.sets(0, 4)]
    assert pool.size_bytes > 0
    pool.forget()
    assert pool.size_bytes == 0
    pool.fit(0)
    assert [one.inputs.tobytes() for one in pool.sets(0, 4)] == before
    assert pool.size_bytes == 0, "nothing is kept where nothing is left for making others"


def test_memory_that_a_trial_holds_is_left_free(judge: Judge) -> None:
    max_bytes: list[int] = []
    for held in (0, 10):
        pool = judge._pools.take(judge._case(TASKS[0], "", "training"))
        pool.max_bytes = 1 << 40
        pool.fit(1 << 30, held)
        max_bytes.append(pool.max_bytes - pool.size_bytes)
    one = judge._pools.take(judge._case(TASKS[0], "", "training"))
    assert max_bytes[0] - max_bytes[1] >= 10 * one.io_spec.input_bytes


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "a call of the CUDA driver failed with CUDA_ERROR_OUT_OF_MEMORY",
        "DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_too_little_memory_is_known_by_its_names(text: str) -> None:
    assert wire.says_no_memory(text)
