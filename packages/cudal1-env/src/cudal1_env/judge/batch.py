"""Many programs of many tasks; each verdict is reported as soon as it is known."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from cudal1_data import Task

from cudal1_env.judge.begun import pool_key
from cudal1_env.judge.judge import Judge, Outcome
from cudal1_env.judge.measure.precompile import compiles
from cudal1_env.judge.oracle.pool import SEED_BYTES, Pool
from cudal1_env.judge.workers.lease import away_from, core_name, lease
from cudal1_env.records import Evaluation, Precision


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
                            self._retire(pool_key(*wanted[place]))
                            if isinstance(outcome, Evaluation):
                                outcome = outcome.model_copy(update={"seed": seeds[place].hex()})
                            done(part[place], outcome)
                finally:
                    for case, seed in wanted:
                        self._retire(pool_key(case, seed))

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
                    self._pool(case, seed)
                    held.callback(self._retire, key)
                    held.enter_context(lease(core_name(self.core), *self.device.locks))
                    held.enter_context(away_from(self._seat.kept_free))
                return self._pools[key]

            return self._extras.compare(case, evaluation, pool)
