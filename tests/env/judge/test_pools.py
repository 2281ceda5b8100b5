"""Pools of secrets: a few candidates or some minutes, then another seed."""

from __future__ import annotations

import os
import signal

import pytest
from cudal1_data import Task
from cudal1_env.errors import TaskError, TooLargeError
from cudal1_env.judge import Judge
from cudal1_env.judge.measure.case import Case
from doubles.judges import QUICK
from task_programs import program

TASK = Task(id="file/pool", source=program(2), name="pool", level=1, origin="file")


def case() -> Case:
    return Case(TASK, "", "training")


def test_a_pool_retires_after_its_number_of_candidates() -> None:
    with Judge(QUICK.model_copy(update={"pool_candidates": 2})) as judge:
        pools = [judge._pools.take(case()) for _ in range(5)]
        seeds = [pool.secrets.seed for pool in pools]
    assert [seeds.index(seed) for seed in seeds] == [0, 0, 2, 2, 4]


def test_a_pool_retires_after_its_time() -> None:
    with Judge(QUICK.model_copy(update={"pool_s": 3600.0})) as judge:
        first = judge._pools.take(case())
        assert judge._pools.take(case()) is first
        first._began -= 3601.0
        assert judge._pools.take(case()) is not first


def test_a_batch_that_would_spend_a_pool_begins_with_another() -> None:
    with Judge(QUICK.model_copy(update={"pool_candidates": 4})) as judge:
        first = judge._pools.take(case())
        judge._pools.renew(case().key, 3)
        assert judge._pools.take(case()) is first
        judge._pools.renew(case().key, 3)
        assert judge._pools.take(case()) is not first


@pytest.mark.parametrize(("fate", "error"), [(signal.SIGSTOP, TaskError), (signal.SIGKILL, TooLargeError)])
def test_a_late_or_dead_oracle_costs_no_later_program_its_verdict(fate: signal.Signals, error: type[Exception]) -> None:
    with Judge(QUICK.model_copy(update={"oracle_timeout_s": 5.0})) as judge:
        first = judge._pools.take(case())
        os.kill(first.oracle.worker.pid, fate)
        with pytest.raises(error):
            first.private_inputs()
        assert judge._pools.take(case()).private_inputs().size
