"""Verdicts without a clock: what they check, whom they share a device with, and when they are repeated alone."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cudal1_env.campaigns.replay import replay
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.correct import judge_correct
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.judge.workers import lease as leases
from cudal1_env.judge.workers.lease import core_name, lease
from cudal1_env.records import Evaluation, Status
from cudal1_env.reward import reward_of
from task_programs import ADD, LINEAR, candidate

RIGHT = candidate("return torch.add(x[1], x[0], alpha=2)")
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture
def leases_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at how long they wait: judges in other processes of this run of tests do not count."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def slow(seconds: float) -> str:
    """A right program whose constructor takes its time; it is constructed twice for a verdict."""
    return candidate("return x[0] * 2 + x[1]", top="import time", init=f"time.sleep({seconds})")


def test_an_honest_program_is_correct_and_nothing_is_timed(judge: Judge) -> None:
    one = judge.evaluate(ADD, RIGHT, precision="correct")
    assert one.status is Status.CORRECT, one.message
    assert one.precision == "correct"
    assert (one.speedup, one.rewarded_low, one.reference, one.candidate) == (None,) * 4
    assert one.trials == one.pairs == 0
    assert one.calls == one.full_checks == 5
    assert {error.distribution for error in one.errors} == {"own", "shifted", "heavy", "needle"}
    assert {"pid-namespace", "seccomp"} <= {*one.sandbox, *one.sandbox_missing}
    assert one.seconds.measure_s == 0
    assert reward_of(one) == 0.0
    assert Evaluation.model_validate_json(one.model_dump_json()) == one


def test_the_judges_weights_are_loaded(judge: Judge) -> None:
    init = "self.lin = nn.Linear(128, 64); self.norm = nn.LayerNorm(64)"
    right = judge.evaluate(LINEAR, candidate("return self.norm(self.lin(x[0]))", init=init), precision="correct")
    assert right.status is Status.CORRECT, right.message
    assert right.weights == "loaded"
    kept = f"{init}; self.w = self.lin.weight.detach().clone()"
    forward = "return self.norm(x[0] @ self.w.t() + self.lin.bias)"
    assert judge.evaluate(LINEAR, candidate(forward, init=kept), precision="correct").status is Status.WRONG_OUTPUT


@pytest.mark.parametrize(
    ("forward", "status"),
    [
        ("return x[0] * 2", Status.WRONG_OUTPUT),
        ("return x[0] * 2.0002 + x[1]", Status.WRONG_OUTPUT),
        ("y = x[0] * 2 + x[1]; y[-1, -1] = 0; return y", Status.WRONG_OUTPUT),
        ("self.y = getattr(self, 'y', x[0] * 2 + x[1]); return self.y.clone()", Status.WRONG_OUTPUT),
        ("return (x[0] * 2 + x[1]).double()", Status.WRONG_CONTRACT),
        ("return x[1].add_(x[0], alpha=2)", Status.WRONG_CONTRACT),
        ("x[0].zero_(); return x[0] * 2 + x[1]", Status.WRONG_CONTRACT),
        ("raise ValueError('no')", Status.RUNTIME_ERROR),
        ("return torch.empty(1 << 45)", Status.OUT_OF_MEMORY),
        ("import os; os._exit(0)", Status.CRASH),
    ],
)
def test_incorrect_programs_get_their_status(judge: Judge, forward: str, status: Status) -> None:
    one = judge.evaluate(ADD, candidate(forward), precision="correct")
    assert one.status is status, one.message


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("x = 1", Status.NO_CODE),
        ("class ModelNew(:", Status.SYNTAX_ERROR),
        ("import nothing_of_that_name", Status.BUILD_ERROR),
        ("import os\nos.abort()", Status.CRASH),
    ],
)
def test_programs_that_cannot_be_imported(judge: Judge, source: str, status: Status) -> None:
    assert judge.evaluate(ADD, source, precision="correct").status is status


@pytest.mark.slow
def test_no_secret_is_shared_with_a_timed_verdict_and_one_set_with_no_candidate(judge: Judge) -> None:
    untimed = judge.evaluate_many([(ADD, RIGHT)] * 3, precision="correct")
    timed = judge.evaluate(ADD, RIGHT)
    assert len({one.seed_commitment for one in untimed}) == 1
    assert timed.seed_commitment not in {one.seed_commitment for one in untimed}
    assert len({one.first_set for one in untimed}) == 3


@pytest.mark.slow
def test_a_verdict_without_a_clock_is_repeated_from_its_record(judge: Judge) -> None:
    one = judge.evaluate(ADD, RIGHT, precision="correct")
    assert one.seed_commitment is not None
    seed = judge.retire()[one.seed_commitment]
    again = replay(judge, one.model_copy(update={"seed": seed}))
    assert again.same_status
    assert again.same_tolerances
    assert again.overlap is None
    assert again.repeated.first_set == one.first_set


@TWO_CORES
def test_verdicts_are_made_side_by_side(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    judge.evaluate(ADD, RIGHT, precision="correct")
    both = threading.Barrier(2, timeout=60.0)

    def judged(builder: Builder, built: Built, pool: Pool) -> Evaluation:
        both.wait()  # raises where the other one is not judged meanwhile
        return judge_correct(builder, built, pool)

    monkeypatch.setattr("cudal1_env.judge.lanes.judge_correct", judged)
    found = judge.evaluate_many([(ADD, RIGHT), (ADD, candidate("return x[0]"))], precision="correct")
    assert [evaluation.correct for evaluation in found] == [True, False]


@TWO_CORES
def test_a_slow_program_holds_up_no_other_task() -> None:
    """Two tasks are open at a time, so that the third and the fourth begin while the slow program runs."""
    order: list[int] = []
    jobs = [(ADD, slow(4.0)), *((ADD.model_copy(update={"id": f"add/{k}"}), RIGHT) for k in range(3))]
    with Judge(JudgeSettings(device="cpu", max_pools=2, lanes=2)) as one:
        one.evaluate_each(jobs, lambda place, _: order.append(place), precision="correct")
    assert order == [1, 2, 3, 0]


@TWO_CORES
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("def forward", "def backward", id="refused when its oracle starts"),
        pytest.param("x[0] * 2 + x[1]", "(x[0] + 1e9) - 1e9", id="refused when its errors are estimated"),
    ],
)
def test_tasks_that_cannot_be_judged_and_programs_of_a_task_have_one_outcome_each(old: str, new: str) -> None:
    assert old in ADD.source
    broken = ADD.model_copy(update={"id": "add/broken", "source": ADD.source.replace(old, new)})
    jobs = [(ADD, RIGHT), (broken, RIGHT), (ADD, candidate("return x[0]")), (broken, RIGHT), (LINEAR, RIGHT)] * 2
    found: list[tuple[int, object]] = []
    with Judge(JudgeSettings(device="cpu", max_pools=2, pool_candidates=3)) as one:
        one.evaluate_each(jobs, lambda place, outcome: found.append((place, outcome)), precision="correct")
        assert len(one._pools) <= 2
    assert LINEAR.id == ADD.id, "tasks of one name are different tasks"
    assert sorted(place for place, _ in found) == list(range(10))
    refused = {place for place, outcome in found if isinstance(outcome, TaskError)}
    assert refused == {1, 3, 6, 8}
    correct = {place for place, outcome in found if isinstance(outcome, Evaluation) and outcome.correct}
    assert correct == {0, 5}


def test_a_pool_rests_between_the_requests_of_other_verdicts(judge: Judge) -> None:
    pool = judge._pools.take(judge._case(ADD, RIGHT, "correct"))
    done = threading.Event()

    def rests() -> None:
        while not done.is_set():
            pool.rest()

    thread = threading.Thread(target=rests)
    thread.start()
    try:
        for _ in range(3):
            assert len(pool.untimed_sets()) == 5
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("status", [pytest.param(Status.OUT_OF_MEMORY, marks=pytest.mark.slow), Status.CRASH])
def test_failures_that_others_may_have_caused_are_repeated_alone(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    """Beside others the worker is killed, as the kernel does when memory is short, or falls silent; not alone."""
    asked: list[bool] = []

    def judged(builder: Builder, built: Built, pool: Pool) -> Evaluation:
        alone = built.arm is None  # the worker that failed beside others is dead
        asked.append(alone)
        if built.arm is not None:
            if status is Status.CRASH:
                built.arm.worker.channel.shutdown(socket.SHUT_RDWR)
            else:
                os.kill(built.arm.worker.pid, signal.SIGKILL)
        found = judge_correct(builder, built, pool)
        assert found.status is (Status.CORRECT if alone else status), found.message
        return found

    monkeypatch.setattr("cudal1_env.judge.lanes.judge_correct", judged)
    monkeypatch.setattr("cudal1_env.judge.judge.judge_correct", judged)
    for one in judge.evaluate_many([(ADD, RIGHT)] * 2, precision="correct"):
        assert one.status is Status.CORRECT, one.message
    assert sorted(asked) == [False, False, True, True]


@pytest.mark.slow
def test_a_program_that_is_too_slow_alone_is_a_timeout() -> None:
    with Judge(JudgeSettings(device="cpu", warmup_timeout_s=0.5)) as one:
        began = time.monotonic()
        found = one.evaluate(ADD, slow(60.0), precision="correct")
        assert found.status is Status.TIMEOUT, found.message
        assert time.monotonic() - began > 1.0, "beside others, then alone"


def test_a_program_that_compiles_quickly_starts_one_worker_and_may_say_why_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forked = list[str]()
    fork = Builder.fork

    def noting(self: Builder, case: Case, *args: Any, **named: Any) -> tuple[Arm, Path | None]:
        forked.append(case.precision)
        return fork(self, case, *args, **named)

    monkeypatch.setattr(Builder, "fork", noting)
    fails = candidate("return no_such_name", top="# triton")
    with Judge(JudgeSettings(device="cpu", build_store_bytes=0)) as one:
        [found] = one.evaluate_many([(ADD, fails)], precision="correct")
        assert found.status is Status.RUNTIME_ERROR
        assert found.message.startswith("an untimed call failed: NameError: name 'no_such_name'")
        timed = one.evaluate(ADD, fails)
    assert timed.status is Status.RUNTIME_ERROR
    assert forked == ["correct", "training", "training"], "a timed verdict has a precompilation"


@pytest.mark.usefixtures("leases_of_its_own")
def test_a_shared_verdict_waits_for_an_exclusive_lease(judge: Judge) -> None:
    judge.evaluate(ADD, RIGHT, precision="correct")
    with lease(core_name(judge.core)):
        thread, found = _begun(judge, RIGHT)
        time.sleep(1.0)
        assert not found
    thread.join()
    assert found[0].correct
    assert found[0].seconds.wait_s > 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("leases_of_its_own")
def test_a_shared_verdict_gives_way_to_an_exclusive_lease(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE_S", 0.5)
    judge.evaluate(ADD, RIGHT, precision="correct")
    thread, found = _begun(judge, slow(2.0))
    time.sleep(0.5)
    with lease(core_name(judge.core)) as waited:
        assert 0.3 < waited < 2.0, "it would take 4 s"
        assert not found
    thread.join()
    assert found[0].correct, found[0].message


@pytest.mark.slow
@pytest.mark.usefixtures("leases_of_its_own")
def test_an_exclusive_lease_waits_for_less_than_ten_seconds(judge: Judge) -> None:
    judge.evaluate(ADD, RIGHT, precision="correct")
    thread, found = _begun(judge, slow(6.0))
    time.sleep(1.0)
    with lease(core_name(judge.core)) as waited:
        assert waited < 10.0, "it would take 11 s"
    thread.join()
    assert found[0].correct, found[0].message


COMPILER = """# stands for load_inline and triton: takes its time where it finds no file
import os
import time
import torch
import torch.nn as nn

FILE = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "built")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        if not os.path.exists(FILE):
            time.sleep(3.0)
            os.makedirs(os.path.dirname(FILE), exist_ok=True)
            open(FILE, "w").close()

    def forward(self, *x):
        return x[0] * 2 + x[1]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("leases_of_its_own")
def test_a_precompilation_gives_way_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Judge(JudgeSettings(device="cpu", build_store_bytes=0)) as one:
        monkeypatch.setattr(one.device, "locks", ("gpu-of-this-test",), raising=False)
        monkeypatch.setattr(leases, "PATIENCE_S", 0.5)
        one.evaluate(ADD, RIGHT)  # opens the pool
        found: list[Evaluation] = []
        without_nvcc = COMPILER.replace("load_inline and ", "")  # what names nvcc compiles without a lease
        thread = threading.Thread(target=lambda: found.append(one.evaluate(ADD, without_nvcc)))
        thread.start()
        time.sleep(0.7)
        with lease("gpu-of-this-test") as waited:
            assert 0.2 < waited < 2.0, "it would take 3 s"
        thread.join()
        assert found[0].correct, found[0].message
        assert found[0].seconds.build_s < 3.0, "its own launch compiled"
        assert found[0].seconds.warmup_s > 3.0


@pytest.mark.slow
def test_a_batch_is_judged_without_a_clock_too() -> None:
    found: dict[int, object] = {}
    with Judge(JudgeSettings(device="cpu"), own_secrets=True) as one:
        jobs = [(ADD, RIGHT), (ADD, candidate("return x[0]")), (LINEAR, RIGHT)]
        one.evaluate_each(jobs, found.__setitem__, precision="correct")
        statuses = {index: record.status for index, record in found.items() if isinstance(record, Evaluation)}
        assert statuses[0] is Status.CORRECT
        assert len(statuses) == 3
        assert not {statuses[1], statuses[2]} & {Status.CORRECT}
        record = found[0]
        assert isinstance(record, Evaluation)
        assert record.seed is not None
        assert one.compare(ADD, record) is record


def _begun(judge: Judge, source: str) -> tuple[threading.Thread, list[Evaluation]]:
    found: list[Evaluation] = []
    thread = threading.Thread(target=lambda: found.append(judge.evaluate(ADD, source, precision="correct")))
    thread.start()
    return thread, found
