"""The judge for sweeps."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from cudal1_data import Task

from cudal1_env.judge.judge import Judge, Outcome
from cudal1_env.judge.measure.precompile import compiles
from cudal1_env.judge.oracle.pool import SEED_BYTES
from cudal1_env.judge.pools import pool_key
from cudal1_env.records import Evaluation, Precision


class BatchJudge(Judge):
    """A judge for sweeps: each program has its own pool, which is retired after the verdict.

    So memory is freed, and the record may hold the seed.
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
