"""Many programs of many tasks; each verdict is reported as soon as it is known; with a pool each, or shared pools."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from cudal1_data import Task

from cudal1_env.errors import TaskError
from cudal1_env.judge.begun import parts, pool_key
from cudal1_env.judge.judge import Judge, Outcome
from cudal1_env.judge.measure.precompile import compiles
from cudal1_env.judge.oracle.pool import SEED_BYTES, Pool
from cudal1_env.judge.workers.lease import away_from, core_name, lease
from cudal1_env.records import Evaluation, Precision

_TOGETHER = 8
"""Programs of a task that are built side by side and told together."""


class BatchJudge(Judge):
    """A judge for sweeps.

    Unlike with `evaluate_many`, a task that cannot be judged concerns its own programs only, and each verdict is
    reported as soon as it is known. Each program has a pool of its own, which retires at once: memory is freed, and the
    record holds its seed.
    """

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Outcome], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge programs: builds of a batch side by side, measurements one at a time.

        Programs that compile come first, so that those of a batch take about as long; else the order is kept.

        Args:
            jobs: Task and program.
            done: Called with the position of each job and its outcome.
            precision: How narrow intervals must be; at `correct` the programs of a batch are judged side by side.

        Raises:
            MachineError: The machine broke; what `done` was told stands.
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
        """Return a record with speedups against those of this judge's baselines that it lacks.

        Args:
            task: The record's.
            evaluation: Made on this machine; one that is not `CORRECT` is returned as it is.

        Raises:
            RecordError: The record was made on another machine.
            TaskError: The reference cannot be judged against.
            MachineError: The machine broke.
        """
        with self._lock, ExitStack() as held:
            seed = secrets.token_bytes(SEED_BYTES)
            case = self._case(task, evaluation.source, evaluation.precision)

            def pool() -> Pool:
                """Take the lease when the first baseline must be measured."""
                key = pool_key(case, seed)
                if key not in self._pools:
                    self._pools.take(case, seed)
                    held.callback(self._pools.retire, key)
                    held.enter_context(lease(core_name(self.core), *self.device.locks))
                    held.enter_context(away_from(self._seat.kept_free))
                return self._pools[key]

            return self._extras.compare(case, evaluation, pool)


class PooledJudge(BatchJudge):
    """A judge for many programs of few tasks: they share their task's oracle and seed.

    The records hold a commitment to the seed and no seed, because the pool goes on after each of them.
    """

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Outcome], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge programs in parts of one task each, what several parts compile side by side before them.

        See `BatchJudge.evaluate_each`.
        """
        divided = list(parts([task.source for task, _ in jobs], max_jobs=_TOGETHER, max_tasks=1))
        most = self.settings.max_pools  # which are kept
        for window in (divided[start : start + most] for start in range(0, len(divided), most)):
            self.precompile([jobs[index] for part in window for index in part], precision=precision)
            for part in window:
                try:
                    found: Sequence[Outcome] = self.evaluate_many([jobs[index] for index in part], precision=precision)
                except TaskError:  # perhaps beside one of them only
                    found = [self._alone(*jobs[index], precision) for index in part]
                for index, outcome in zip(part, found, strict=True):
                    done(index, outcome)

    def take_disclosed(self) -> dict[str, str]:
        """Return the seeds (hex) of pools that retired since the last call, by their commitments, and forget them."""
        with self._lock:
            seeds, self._pools.disclosed = self._pools.disclosed, {}
            return seeds

    def _alone(self, task: Task, source: str, precision: Precision) -> Outcome:
        try:
            return self.evaluate(task, source, precision=precision)
        except TaskError as error:
            return error
