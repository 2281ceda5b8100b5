"""Programs at `correct` precision, judged side by side: each as soon as its task's pool is open and a lane is free."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from cudal1_env.errors import TaskError, TooLargeError
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.correct import UNDECIDED, judge_correct
from cudal1_env.judge.measure.precompile import is_precompiled
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.judge.pools import Pools
from cudal1_env.judge.workers.lease import sharing
from cudal1_env.records import Evaluation

Told = tuple[Case, Evaluation | TaskError | Built]
"""A program with its verdict, the error of its task, or itself if it must be judged alone."""


class Lanes:
    """Judges programs under a shared lease, several at a time."""

    def __init__(self, builder: Builder, pools: Pools) -> None:
        self._builder, self._pools = builder, pools

    def judge(self, case: Case, pool: Pool) -> Evaluation | Built:
        """Return the verdict on a program, or the program if it must be judged alone. Several threads may call this."""
        device = self._builder.device
        if pool.closed:  # retired to make room for another task, or its oracle died
            return Built(case)
        self._builder.precompilations.keep(case, pool)
        with sharing(*self._builder.leases) as (hold, waited), case.watch.phase("lease"):
            case.watch.add("wait", waited)
            built = self._builder.build(case, pool, hold=hold)
            evaluation: Evaluation | None = None
            try:
                evaluation = judge_correct(self._builder, built, pool)
            except (TooLargeError, *device.faults):
                pass  # other candidates may hold the memory: judge again, alone
            except BaseException:
                self._builder.drop(built)
                raise
            pool.make_way()
        if evaluation is not None and evaluation.status not in UNDECIDED and not hold.gave_way:
            self._builder.drop(built)
            return evaluation.model_copy(update={"seconds": case.watch.seconds()})
        built.fault = None
        return built

    def judge_all(self, groups: Iterator[Sequence[Case]]) -> Generator[Told]:
        """Yield each program as soon as it is judged.

        Args:
            groups: Programs that share a pool, not more than a pool may serve; asked for one group ahead.
        """
        cores = len(os.sched_getaffinity(0))
        lanes = ThreadPoolExecutor(min(cores, self._builder.settings.lanes))
        compilers = ThreadPoolExecutor(max(1, cores // 2))  # a build runs two compilers
        with lanes, compilers:
            yield from _Batch(self._builder, self._pools, self.judge, lanes, compilers).told(groups)


class _Batch:
    """The programs of one call. Only the calling thread changes it."""

    def __init__(
        self,
        builder: Builder,
        pools: Pools,
        judge: Callable[[Case, Pool], Evaluation | Built],
        lanes: ThreadPoolExecutor,
        compilers: ThreadPoolExecutor,
    ) -> None:
        self._builder, self._pools, self._judge = builder, pools, judge
        self._lanes, self._compilers = lanes, compilers
        self._then: dict[Future[Any], Callable[[Future[Any]], Iterator[Told]]] = {}
        """What runs, with what follows it."""
        self._open: Counter[tuple[str, str]] = Counter()
        """Number of unfinished programs by pool."""

    def told(self, groups: Iterator[Sequence[Case]]) -> Generator[Told]:
        group = next(groups, None)
        try:
            while group or self._then:
                while group and self._has_room(group):
                    yield from self._begin(group)
                    group = next(groups, None)
                if self._then:
                    for one in wait(self._then, return_when=FIRST_COMPLETED).done:
                        yield from self._then.pop(one)(one)
        finally:
            for one in self._then:
                one.cancel()
            wait(self._then)

    def _has_room(self, group: Sequence[Case]) -> bool:
        """Whether a group may begin beside those that have."""
        first = group[0]
        if not self._open:
            return True
        if first.key in self._open or len(self._open) >= self._builder.settings.max_pools:
            return False
        if self._pools.kept(first) is not None:
            return True
        self._pools.make_room(self._open)
        return not self._pools.is_crowded

    def _begin(self, group: Sequence[Case]) -> Iterator[Told]:
        first = group[0]
        self._open[first.key] = len(group)
        self._pools.renew(first.key, len(group))
        if self._pools.kept(first) is not None:
            yield from self._submit(group)
        else:
            opening = self._lanes.submit(self._pools.new, first)
            self._then[opening] = functools.partial(self._opened, group)

    def _opened(self, group: Sequence[Case], opening: Future[Pool]) -> Iterator[Told]:
        key = group[0].key
        try:
            pool = opening.result()
        except TaskError as error:
            for one in group:
                yield from self._refuse(one, error)
            return
        self._pools.make_room(self._open)
        self._pools[key] = pool
        yield from self._submit(group)

    def _submit(self, group: Sequence[Case]) -> Iterator[Told]:
        """Judge a group whose pool is open; compile first what takes long."""
        ready: list[tuple[Case, Pool]] = []
        for one in group:
            try:  # opens the pool again if its oracle died
                ready.append((one, self._pools.take(one, self._open)))
            except TaskError as error:
                yield from self._refuse(one, error)
        for one, pool in ready:
            if is_precompiled(one):
                compiling = self._compilers.submit(self._builder.precompilations.keep, one, pool)
                self._then[compiling] = functools.partial(self._compiled, one, pool)
            else:
                self._enter(one, pool)

    def _compiled(self, one: Case, pool: Pool, compiling: Future[None]) -> Iterator[Told]:
        compiling.result()
        self._enter(one, pool)
        return iter(())

    def _enter(self, one: Case, pool: Pool) -> None:
        judging = self._lanes.submit(self._judge, one, pool)
        self._then[judging] = functools.partial(self._judged, one)

    def _judged(self, one: Case, judging: Future[Evaluation | Built]) -> Iterator[Told]:
        try:
            outcome = judging.result()
        except TaskError as error:  # an oracle answers only when the first program needs its sets
            yield from self._refuse(one, error)
        else:
            yield from self._end(one, outcome)

    def _refuse(self, one: Case, error: TaskError) -> Iterator[Told]:
        """That an oracle lacks memory is no error of the task: others were open."""
        yield from self._end(one, Built(one) if isinstance(error, TooLargeError) else error)

    def _end(self, one: Case, outcome: Evaluation | TaskError | Built) -> Iterator[Told]:
        self._open[one.key] -= 1
        if not self._open[one.key]:
            del self._open[one.key]
        yield one, outcome
