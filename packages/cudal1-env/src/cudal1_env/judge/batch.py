"""Judges for many programs: each verdict is reported at once; a pool for each program, or one shared by a task's."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from cudal1_data import Task

from cudal1_env.errors import TaskError
from cudal1_env.judge.judge import Judge, Outcome
from cudal1_env.judge.measure.precompile import compiles
from cudal1_env.judge.oracle.pool import SEED_BYTES, Pool
from cudal1_env.judge.pools import parts, pool_key
from cudal1_env.judge.workers.lease import away_from, core_name, lease
from cudal1_env.records import Evaluation, Precision

_TOGETHER = 8
"""Programs of a task that are built in parallel and reported together."""


class BatchJudge(Judge):
    """A judge for sweeps.

    Unlike `evaluate_many`, it goes on when a task cannot be judged, and reports each verdict at once. Each program has
    its own pool, which is retired after the verdict: memory is freed, and the record may hold the seed.
    """

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Outcome], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge programs: the builds of a batch in parallel, measurements one at a time.

        Programs that compile come first, so that the builds of a batch take similar time; otherwise the order is kept.

        Args:
            jobs: Task and program.
            done: Called with the position of each job and its outcome.
            precision: How narrow intervals must be; at `correct` the programs of a batch are judged in parallel.

        Raises:
            MachineError: The machine failed; outcomes already passed to `done` are valid.
        """
        batch = min(len(os.sched_getaffinity(0)), self.settings.max_pools)
        order = sorted(range(len(jobs)), key=lambda index: not compiles(jobs[index][1]))
        with self._lock, ThreadPoolExecutor(batch) as executor, self._precompilations() as precompilations:
            for start in range(0, len(jobs), batch):
                part = order[start : start + batch]
                seeds = [secrets.token_bytes(SEED_BYTES) for _ in part]
                wanted = [(self._case(*jobs[index], precision), seed) for index, seed in zip(part, seeds, strict=True)]
                try:
                    with closing(self._together(executor, wanted, precompilations)) as told:
                        for place, outcome in told:
                            self._pools.retire(pool_key(*wanted[place]))
                            if isinstance(outcome, Evaluation):
                                outcome = outcome.model_copy(update={"seed": seeds[place].hex()})
                            done(part[place], outcome)
                finally:
                    for case, seed in wanted:
                        self._pools.retire(pool_key(case, seed))

    def compare(self, task: Task, evaluation: Evaluation) -> Evaluation:
        """Return a record with its missing speedups against this judge's baselines added.

        Args:
            task: The record's task.
            evaluation: A record made on this machine; returned unchanged if it is not `CORRECT`.

        Raises:
            RecordError: The record was made on another machine.
            TaskError: The task's reference is unusable.
            MachineError: The machine failed.
        """
        with self._lock, ExitStack() as held:
            seed = secrets.token_bytes(SEED_BYTES)
            case = self._case(task, evaluation.source, evaluation.precision)

            def pool() -> Pool:
                """Open the pool and take the lease when the first baseline must be measured."""
                key = pool_key(case, seed)
                if key not in self._pools:
                    self._pools.take(case, seed)
                    held.callback(self._pools.retire, key)
                    held.enter_context(lease(core_name(self.core), *self.device.locks))
                    held.enter_context(away_from(self._seat.kept_free))
                return self._pools[key]

            return self._extras.compare(case, evaluation, pool)


class PooledJudge(BatchJudge):
    """A judge for many programs of few tasks, which share their task's oracle and seed.

    Records hold a commitment to the seed instead of the seed, because the pool stays in use.
    """

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Outcome], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge programs in parts of one task each; the programs of several parts are precompiled in parallel first.

        See `BatchJudge.evaluate_each`.
        """
        divided = list(parts([task.source for task, _ in jobs], max_jobs=_TOGETHER, max_tasks=1))
        most = self.settings.max_pools
        for window in (divided[start : start + most] for start in range(0, len(divided), most)):
            self.precompile([jobs[index] for part in window for index in part], precision=precision)
            for part in window:
                try:
                    found: Sequence[Outcome] = self.evaluate_many([jobs[index] for index in part], precision=precision)
                except TaskError:  # perhaps only one program's fault
                    found = [self._alone(*jobs[index], precision) for index in part]
                for index, outcome in zip(part, found, strict=True):
                    done(index, outcome)

    def take_disclosed(self) -> dict[str, str]:
        """Return and forget the seeds (hex) of pools retired since the last call, by commitment."""
        with self._lock:
            seeds, self._pools.disclosed = self._pools.disclosed, {}
            return seeds

    def _alone(self, task: Task, source: str, precision: Precision) -> Outcome:
        try:
            return self.evaluate(task, source, precision=precision)
        except TaskError as error:
            return error
