"""Trials that disagree: the judge measures a program once more, and pays no more than either measurement says."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from cudal1_env import Archive, CudaOptEnv
from cudal1_env.judge import Judge
from cudal1_env.judge.measure.case import Built
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.record import Seen, Verdict
from cudal1_env.judge.measure.timing import trials
from cudal1_env.judge.measure.timing.interference import Alone
from cudal1_env.judge.measure.timing.overhead import Overhead
from cudal1_env.judge.measure.timing.trial import TrialResult
from cudal1_env.judge.measure.timing.trials import Trials, confirmed
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.local import LocalEvaluator
from cudal1_env.records import Evaluation, Precision, Speedup, Status
from cudal1_env.reward import reward_of
from cudal1_env.stats import TrialSamples, centre
from task_programs import LINEAR, candidate, reference

ROWS = reference("return torch.stack([row.sum() for row in x[0]])", "[torch.randn(1024, 256)]")
SUM = "return x[0].sum(1)"
UNEVEN = """y = x[0].sum(1)
        until = time.perf_counter() + self.wasted_s
        while time.perf_counter() < until:
            pass
        return y"""
TRIAL_S = 30.0
"""Longer than any budget, so that a measurement ends as soon as it may."""


class Script:
    """Trials with prepared speedups, and what each of them found; everything else is the judge's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *speedups: float | Status) -> None:
        self.left = list(speedups)
        self.workers: list[int] = []
        self.first_sets: list[int] = []
        self.commitments: set[str] = set()

        def trial(_: Trials, built: Built, pool: Pool, seen: Seen) -> None:
            assert built.arm is not None
            self.workers.append(built.arm.worker.pid)
            self.first_sets.append(seen.first_set)
            self.commitments.add(pool.secrets.commitment)
            pool.spend(pool.fresh + 8)
            seen.measured_s += TRIAL_S
            built.case.watch.add("measure", TRIAL_S)
            value = self.left.pop(0)
            if isinstance(value, Status):
                raise Fault(value, "as prepared")
            seen.trials.append(prepared(value))

        monkeypatch.setattr(Trials, "_trial", trial)


def prepared(speedup: float) -> TrialResult:
    """Return a trial of calls that are long enough for any reward."""
    samples = TrialSamples((400.0,) * 26, (400.0 / speedup,) * 26)
    return TrialResult(samples, Overhead(0.1, 0.1, 0.0), (400.0, 400.0), Alone((0.0, 0.0), (0.0, 0.0)), 1.0)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[Evaluation]:
    """Return a list that receives the record of each measurement."""
    measure, records = Trials.measure, list[Evaluation]()

    def spy(self: Trials, built: Built, pool: Pool) -> Verdict:
        verdict = measure(self, built, pool)
        records.append(verdict.evaluation)
        return verdict

    monkeypatch.setattr(Trials, "measure", spy)
    return records


def alone(judge: Judge, precision: Precision = "training") -> Evaluation:
    return judge.evaluate(ROWS, candidate(SUM), precision=precision)


def in_a_batch(judge: Judge, precision: Precision = "training") -> Evaluation:
    return judge.evaluate_many([(ROWS, candidate(SUM))], precision=precision)[0]


@pytest.mark.parametrize(
    ("way", "precision", "second", "count"),
    [
        pytest.param(alone, "training", 16.0, 2, id="first is lower"),
        pytest.param(alone, "training", 3.2, 2, id="second is lower"),
        pytest.param(alone, "training", 0.9, 1, id="second is no gain"),
        pytest.param(in_a_batch, "training", 16.0, 2, id="in a batch"),
        pytest.param(in_a_batch, "report", 16.0, 3, id="at report precision"),
    ],
)
def test_an_unstable_program_that_is_stable_afterwards_earns_the_lower_result(
    monkeypatch: pytest.MonkeyPatch,
    judge: Judge,
    way: Callable[[Judge, Precision], Evaluation],
    precision: Precision,
    second: float,
    count: int,
) -> None:
    first = (16.0, 4.0, 8.0)
    Script(monkeypatch, *[second] * count)
    stable = way(judge, precision)
    assert stable.status is Status.CORRECT
    assert stable.speedup is not None

    script, records = Script(monkeypatch, *first, *[second] * count), spied(monkeypatch)
    found = way(judge, precision)
    assert [one.status for one in records] == [Status.UNSTABLE, Status.CORRECT]
    assert found.id == records[1].id
    assert found.status is Status.CORRECT
    unstable = records[0].speedup
    assert unstable is not None
    assert unstable.low < 1.1 * min(first), "the evidence is of all trials, not of the first"
    assert found.speedup == Speedup(
        low=min(unstable.low, stable.speedup.low),
        point=min(unstable.point, stable.speedup.point),
        high=min(unstable.high, stable.speedup.high),
    )
    assert reward_of(found) <= min(reward_of(stable), unstable.low)
    assert (reward_of(found) > 1.0) == (reward_of(stable) > 1.0)
    assert "lower result of two measurements" in found.message
    assert "two measurements" not in stable.message
    # As for a further candidate: a new worker and new input sets, of the same pool, and a whole budget.
    assert script.workers[0] != script.workers[3]
    assert script.first_sets[3] == found.first_set >= script.first_sets[0] + 3 * 8
    assert len(script.commitments) == 1
    assert found.seconds.measure_s == TRIAL_S * (3 + count)
    assert found.seconds.total_s > records[0].seconds.total_s
    assert found.trials == count


@pytest.mark.parametrize("way", [alone, in_a_batch])
@pytest.mark.parametrize(
    ("second", "status"), [((8.0, 16.0, 4.0), Status.UNSTABLE), ((16.0, Status.WRONG_OUTPUT), Status.WRONG_OUTPUT)]
)
def test_a_second_measurement_that_fails_is_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
    judge: Judge,
    way: Callable[[Judge], Evaluation],
    second: tuple[float | Status, ...],
    status: Status,
) -> None:
    script = Script(monkeypatch, 16.0, 4.0, 8.0, *second)
    found = way(judge)
    assert (found.status, reward_of(found), found.rewarded_low) == (status, 0.0, None)
    assert script.left == [], "measured twice, not three times"


def test_the_lower_result_counts_when_memory_was_scarce_meanwhile(
    monkeypatch: pytest.MonkeyPatch, judge: Judge
) -> None:
    judge.evaluate(LINEAR.model_copy(update={"id": "file/other"}), "", precision="training")
    monkeypatch.setattr(judge.device, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(judge.device, "pool_bytes", lambda wanted: 1 << 30)
    Script(monkeypatch, 16.0, 4.0, 8.0, Status.OUT_OF_MEMORY, 16.0, 16.0)
    records = spied(monkeypatch)
    found = alone(judge)
    assert [one.status for one in records] == [Status.UNSTABLE, Status.OUT_OF_MEMORY, Status.CORRECT]
    assert found.speedup is not None
    assert records[0].speedup is not None
    assert found.speedup.low == records[0].speedup.low
    assert found.seconds.measure_s == 6 * TRIAL_S


def test_the_archive_holds_the_record_that_is_paid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    file = tmp_path / "rows.py"
    file.write_text(ROWS.source)
    Script(monkeypatch, 16.0, 4.0, 8.0, 16.0, 16.0)
    env = CudaOptEnv(suite=str(file), split=None, evaluator=LocalEvaluator("cpu"), archive=path)
    with contextlib.closing(env):
        env.reset(seed=0)
        _, paid, *_ = env.step(candidate(SUM))
    with Archive(path) as archive:
        [kept] = archive.evaluations()
    assert kept.correct
    assert kept.speedup is not None
    assert 1.0 < reward_of(kept) == paid <= kept.speedup.low < 4.0


def test_a_program_that_is_uneven_on_purpose_is_not_paid_its_fast_processes(
    monkeypatch: pytest.MonkeyPatch, judge: Judge
) -> None:
    """Each process draws how much time it wastes. Whether trials agree depends on noise, so here the first never do."""
    records = spied(monkeypatch)
    monkeypatch.setattr(trials, "_RECHECKED_ABOVE", 0.0)
    monkeypatch.setattr(trials, "confirmed", lambda some: bool(records) and confirmed(some))
    uneven = candidate(UNEVEN, init="self.wasted_s = 1e-4 * 2 ** (os.urandom(1)[0] % 6)", top="import os, time")
    for _ in range(2):
        records.clear()
        found = judge.evaluate(ROWS, uneven)
        first, second = records
        assert first.status is Status.UNSTABLE
        assert (found.id, found.status) == (second.id, second.status)
        assert found.first_set > first.first_set
        assert first.speedup is not None
        slowest = min(centre(TrialSamples(*one)).log_ratio for one in first.samples_ms)
        assert first.speedup.low <= math.exp(slowest)
        if found.correct:
            assert found.speedup is not None
            assert found.speedup.low <= first.speedup.low
            assert reward_of(found) <= max(1.0, first.speedup.low)
        else:
            assert reward_of(found) == 0.0
