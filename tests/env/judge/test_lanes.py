"""Programs that are judged side by side: each has one outcome, and no pool is retired while a program uses it."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cudal1_env.errors import MachineError, TaskError, TooLargeError
from cudal1_env.judge.lanes import _Batch
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.judge.pools import Pools
from cudal1_env.judge.settings import JudgeSettings
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from task_programs import ADD

MAX_POOLS, POOL_CANDIDATES, TASKS = 3, 4, 5


class FakePool:
    """A pool without an oracle; it knows how many programs use it."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.task, self.size_bytes, self.max_bytes = case.task, size_bytes, 0
        self.closed, self.candidates, self.users = False, 0, 0
        self.secrets = SimpleNamespace(commitment=str(id(self)), seed=b"")
        self.oracle = SimpleNamespace(worker=SimpleNamespace(interrupt=lambda: None))

    @property
    def is_spent(self) -> bool:
        return self.candidates >= POOL_CANDIDATES

    def forget(self) -> None:
        pass

    def close(self) -> None:
        assert not self.users, "a program uses it"
        self.closed = True


class FakePools(Pools):
    """Pools whose oracles start at once, or fail in a given way, at the start or at the first program."""

    failing: dict[str, Exception]
    late: bool
    size_bytes: int

    def new(self, case: Case) -> Pool:
        if case.task.id in self.failing and not self.late:
            raise self.failing[case.task.id]
        return cast("Pool", FakePool(case, self.size_bytes))


def batch(pools: FakePools, broken: Container[int]) -> tuple[Any, list[int]]:
    """Return what judges programs, and the largest number of tasks that were judged at a time."""
    most = [0]

    def judge(case: Case, pool: Any) -> Built:
        if pool.closed:
            return Built(case)
        pool.users += 1
        most[0] = max(most[0], len([one for one in pools.values() if cast("Any", one).users]))
        time.sleep(0.001)
        pool.users -= 1
        if int(case.source) in broken:
            raise MachineError("broken")
        if case.task.id in pools.failing:
            raise pools.failing[case.task.id]
        return Built(case, note="judged")

    return judge, most


def told(groups: Sequence[Sequence[int]], pools: FakePools, broken: Container[int] = ()) -> dict[int, object]:
    judge, most = batch(pools, broken)
    wanted = [
        [Case(task, str(place), "correct", place=place) for place in group]
        for task, group in ((ADD.model_copy(update={"id": f"task/{k % TASKS}"}), one) for k, one in enumerate(groups))
        if group
    ]
    builder = cast("Any", SimpleNamespace(settings=pools._settings, precompilations=None))
    with ThreadPoolExecutor(4) as lanes, ThreadPoolExecutor(1) as compilers:
        found = list(_Batch(builder, pools, judge, lanes, compilers).told(iter(wanted)))
    assert most[0] <= MAX_POOLS
    places = [one.place for one, _ in found]
    assert len(places) == len(set(places)), "each has one outcome"
    return {one.place: outcome for one, outcome in found}


def made(size_bytes: int, failing: dict[str, Exception], *, late: bool = False) -> FakePools:
    settings = JudgeSettings(max_pools=MAX_POOLS, pool_candidates=POOL_CANDIDATES)
    device = SimpleNamespace(pool_bytes=lambda wanted: 100, free_bytes=lambda: None)
    pools = FakePools(cast("Any", SimpleNamespace(settings=settings, device=device)))
    pools.failing, pools.size_bytes, pools.late = failing, size_bytes, late
    return pools


@profile(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(min_value=1, max_value=POOL_CANDIDATES), max_size=8),
    refused=st.sets(st.integers(min_value=0, max_value=TASKS - 1)),
    large=st.sets(st.integers(min_value=0, max_value=TASKS - 1)),
    size_bytes=st.sampled_from([0, 20, 60]),
    late=st.booleans(),
)
def test_each_program_has_a_verdict_or_its_tasks_error(
    counts: list[int], refused: set[int], large: set[int], size_bytes: int, late: bool
) -> None:
    failing: dict[str, Exception] = {f"task/{k}": TooLargeError("large") for k in large}
    failing |= {f"task/{k}": TaskError("refused") for k in refused}
    pools, groups, place = made(size_bytes, failing, late=late), list[list[int]](), 0
    for count in counts:
        groups.append(list(range(place, place + count)))
        place += count
    for _ in range(2):  # the second time some pools are open, and some are spent
        outcomes = told(groups, pools)
        for k, group in enumerate(groups):
            for one in group:
                outcome = outcomes[one]
                if k % TASKS in refused:
                    assert isinstance(outcome, TaskError)
                else:
                    assert isinstance(outcome, Built)
                    assert outcome.note == ("" if k % TASKS in large else "judged")
        assert len(pools) <= MAX_POOLS


def test_a_broken_machine_ends_the_batch_when_what_runs_has_ended() -> None:
    pools = made(0, {})
    with pytest.raises(MachineError, match="broken"):
        told([[0, 1, 2], [3, 4], [5]], pools, broken={1})
    assert not any(cast("Any", pool).users for pool in pools.values())
