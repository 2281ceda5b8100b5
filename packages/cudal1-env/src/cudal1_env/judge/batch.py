"""Many programs of many tasks, each verdict told as soon as it is known."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass

from cudal1_data import Task

from cudal1_env.errors import TaskError
from cudal1_env.judge.begun import close_arms
from cudal1_env.judge.judge import Begun, Judge
from cudal1_env.judge.measure.builder import Built
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.measure.precompile import compiles
from cudal1_env.judge.oracle.pool import SEED_BYTES, Pool
from cudal1_env.judge.workers.lease import away_from, core_name, lease
from cudal1_env.records import Evaluation, Precision

Outcome = Evaluation | TaskError
"""The verdict on a program, or why its task cannot be judged."""


@dataclass
class _Job:
    index: int
    seed: str
    pool: Pool
    built: Future[Built | Evaluation]


class BatchJudge(Judge):
    """A judge for sweeps.

    Unlike with `evaluate_many`, a task that cannot be judged concerns its own programs only, a verdict is told when it
    is there, and each program has a pool of its own, which retires at once: memory is given back, and the record holds
    its seed.
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
            done: Told the position of each job and what came of it.
            precision: How narrow intervals must be; at `correct` the programs of a batch are judged side by side.

        Raises:
            MachineError: The machine broke; what `done` was told stands.
        """
        batch = min(len(os.sched_getaffinity(0)), self.settings.max_pools)
        order = sorted(range(len(jobs)), key=lambda index: not compiles(jobs[index][1]))
        with self._lock, ThreadPoolExecutor(batch) as executor, self._precompilations() as precompilations:
            for start in range(0, len(jobs), batch):
                part = [(index, *jobs[index]) for index in order[start : start + batch]]
                self._batch(part, done, precision, executor, precompilations)

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
                if (task.id, seed.hex()) not in self._pools:
                    self._pool(case, seed)
                    held.callback(self._retire, (task.id, seed.hex()))
                    held.enter_context(lease(core_name(self.core), *self.device.locks))
                    held.enter_context(away_from(self._seat.kept_free))
                return self._pools[task.id, seed.hex()]

            return self._extras.compare(case, evaluation, pool)

    def _batch(
        self,
        part: Sequence[tuple[int, Task, str]],
        done: Callable[[int, Outcome], None],
        precision: Precision,
        executor: ThreadPoolExecutor,
        precompilations: ThreadPoolExecutor,
    ) -> None:
        begun: list[_Job] = []
        cases: list[tuple[int, str, Case, Pool]] = []
        precompiled: Begun = {}
        try:
            wanted = [
                (index, secrets.token_bytes(SEED_BYTES), self._case(task, source, precision))
                for index, task, source in part
            ]
            refused = self._begin_pools(executor, [(case, seed) for _, seed, case in wanted])
            for index, seed, case in wanted:
                if (error := refused.get((case.task.id, seed.hex()))) is not None:
                    done(index, error)
                    continue
                try:
                    pool = self._pool(case, seed)  # once more, if it had to make room since
                except TaskError as error:
                    done(index, error)
                    continue
                self._precompile(precompilations, precompiled, case, pool)
                cases.append((index, seed.hex(), case, pool))
            for one in precompiled.values():
                one.result()
            begun = [
                _Job(index, seed, pool, executor.submit(self._begun, case, pool)) for index, seed, case, pool in cases
            ]
            wait([job.built for job in begun])  # nothing is built while something is measured
            self._thin_out([job.built.result() for job in begun if job.built.exception() is None])
            for job in begun:
                done(job.index, self._outcome(job))
        finally:
            wait(precompiled.values())
            close_arms([job.built for job in begun])
            for _, seed, case, _ in cases:
                self._retire((case.task.id, seed))

    def _outcome(self, job: _Job) -> Outcome:
        try:
            evaluation = self._ended(job.built.result(), job.pool, bytes.fromhex(job.seed))
        except TaskError as error:
            return error
        finally:
            self._retire((job.pool.task.id, job.seed))
        return evaluation.model_copy(update={"seed": job.seed})
