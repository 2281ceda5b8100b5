"""The judge: takes a candidate from source text to record."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import TracebackType
from typing import Self, get_args

from cudal1_data import Task

from cudal1_env.calibration import load_spread
from cudal1_env.errors import MachineError, NoRoomError, TaskError, TooLargeError, check_choice, printable
from cudal1_env.evaluator import ByEach
from cudal1_env.gate import AuditReport, find_audit, reference_sha256
from cudal1_env.hardware import resolve_device
from cudal1_env.judge.add_ons.add_ons import Extras
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.lanes import Lanes
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.correct import judge_correct
from cudal1_env.judge.measure.precompile import is_precompiled
from cudal1_env.judge.measure.record import Verdict, limited
from cudal1_env.judge.measure.timing.trials import Trials
from cudal1_env.judge.oracle.pool import SEED_BYTES, WARM_SETS, Pool
from cudal1_env.judge.pools import Pools, parts
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.lease import away_from, lease, sharing, take_seat
from cudal1_env.records import Evaluation, Precision, Status
from cudal1_env.sandbox import default_spec

Begun = dict[tuple[str, str], Future[None]]
"""Running precompilations, by the sources of task and program."""
Outcome = Evaluation | TaskError
"""The verdict on a program, or why its task cannot be judged."""


class Judge(ByEach):
    """Judges candidates on this machine; the local `Evaluator`.

    Several threads may call it; one candidate is timed at a time. Many candidates are built in parallel; at `correct`
    precision they are also judged in parallel. Those of a task share its oracle and seed.

    Args:
        settings: The defaults suit a machine of any size.
        own_secrets: Whether each program of `evaluate_each` has a pool of its own, which is retired after the verdict.
            So memory is freed, and the record may hold the seed: for sweeps.

    Raises:
        SettingsError: This version or machine does not support a setting.
        SandboxError: A required sandbox layer is missing.
    """

    def __init__(self, settings: JudgeSettings | None = None, *, own_secrets: bool = False) -> None:
        self.settings = settings or JudgeSettings()
        self._own_secrets = own_secrets
        self._seat = take_seat(resolve_device(self.settings.device))
        self.core = self._seat.core
        try:
            self.device = choose_device(self.settings, self.core)
            default_spec(self.device.name, demanded=self.settings.require_sandbox)
            self._builder = Builder(self.settings, self.device, self.core)
            self._trials = Trials(self._builder, load_spread(self.device.name, self.device.identity))
            self._extras = Extras(self.settings, self._builder, self._trials)
        except BaseException:
            self._seat.close()
            raise
        self._pools = Pools(self._builder)
        self._lanes = Lanes(self._builder, self._pools)
        self._shares: dict[str, tuple[float, ...]] = {}
        if (audit := find_audit("auto", "starter", self.device.name)) is not None:
            self.learn(audit)
        self._lock = threading.RLock()

    def learn(self, audit: AuditReport) -> None:
        """Load an audit: input sensitivity by task, error factors of tightened tasks, which tasks are sound or marked.

        The constructor loads the starter suite's audit.
        """
        super().learn(audit)
        self._shares.update(audit.shares())
        self._pools.factors.update(audit.error_factors())

    # --- the protocol ------------------------------------------------------------------------------------------

    def evaluate(
        self,
        task: Task,
        source: str,
        *,
        precision: Precision = "training",
        seed: bytes | None = None,
        first_set: int | None = None,
    ) -> Evaluation:
        """Judge one candidate.

        Args:
            task: The task.
            source: The candidate's program (untrusted).
            precision: How narrow the interval must be; `correct` times nothing.
            seed: 16 bytes that repeat an earlier evaluation's numerics; by default a new secret.
            first_set: `first_set` of the record that `seed` is from.

        Raises:
            TaskError: The task's reference is unusable.
            MachineError: The machine failed.
        """
        with self._lock:
            case = self._case(task, source, precision, seed)
            pool = self._pools.take(case)
            if seed is not None and first_set is not None:
                pool.spend(first_set)
            try:
                # In this thread, so that an interrupt ends it at once: a batch waits for its builds.
                begin = self._lanes.judge if precision == "correct" else self._builder.build
                return self._limited(case, self._ended(begin(case, pool), pool))
            finally:
                if seed is not None:
                    self._pools.retire(case.key)

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Outcome], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge candidates and report each outcome; see `EachEvaluator`.

        Unless programs have secrets of their own, records hold a commitment to the seed instead of the seed, because
        the task's pool stays in use.
        """
        with self._lock:
            if precision == "correct":
                self._judge_side_by_side(jobs, done)
                return
            at_once = self._built_at_once
            # A part is built completely before any of it is timed.
            for part in parts(self._names(jobs), max_jobs=at_once, max_tasks=at_once):
                wanted = self._wanted(jobs, part, precision)
                try:
                    with contextlib.closing(self._together(wanted)) as told:
                        for one, outcome in told:
                            self._tell(one, outcome, done)
                finally:
                    self._pools.retire(*(one.key for one in wanted if one.seed is not None))

    def _names(self, jobs: Sequence[tuple[Task, str]]) -> list[str]:
        """Return a name for each job, equal where jobs share a pool."""
        return [str(index) if self._own_secrets else f"{task.id} {task.source}" for index, (task, _) in enumerate(jobs)]

    def _wanted(self, jobs: Sequence[tuple[Task, str]], places: Sequence[int], precision: Precision) -> list[Case]:
        """Return the programs at some places, with seeds if each has secrets of its own."""
        seeds = [secrets.token_bytes(SEED_BYTES) if self._own_secrets else None for _ in places]
        pairs = zip(places, seeds, strict=True)
        return [replace(self._case(*jobs[place], precision, seed), place=place) for place, seed in pairs]

    def _tell(self, one: Case, outcome: Outcome, done: Callable[[int, Outcome], None]) -> None:
        """Report an outcome; a pool that was for this program only is retired."""
        if one.seed is not None:
            self._pools.retire(one.key)
            if isinstance(outcome, Evaluation):
                outcome = outcome.model_copy(update={"seed": one.seed.hex()})
        done(one.place, outcome)

    def _judge_side_by_side(self, jobs: Sequence[tuple[Task, str]], done: Callable[[int, Outcome], None]) -> None:
        """Judge programs without timing, then those alone that others may have disturbed."""
        groups = parts(self._names(jobs), max_jobs=self.settings.pool_candidates, max_tasks=1)
        begun: list[Case] = []

        def begins() -> Iterator[list[Case]]:
            for group in groups:
                wanted = self._wanted(jobs, group, "correct")
                begun.extend(wanted)
                yield wanted

        alone: list[tuple[Case, Built]] = []
        try:
            with contextlib.closing(self._lanes.judge_all(begins())) as told:
                for one, outcome in told:
                    if isinstance(outcome, Built):
                        alone.append((one, outcome))
                    else:
                        self._tell(one, outcome, done)
            for one, built in alone:
                try:
                    again: Outcome = self._ended(built, self._pools.take(one)).evaluation
                except TaskError as error:
                    again = error
                self._tell(one, again, done)
        finally:
            self._pools.retire(*(one.key for one in begun if one.seed is not None))

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
        with self._lock, contextlib.ExitStack() as held:
            seed = secrets.token_bytes(SEED_BYTES)
            case = self._case(task, evaluation.source, evaluation.precision, seed)

            def pool() -> Pool:
                """Open the pool and take the lease when the first baseline must be measured."""
                if case.key not in self._pools:
                    self._pools.take(case)
                    held.callback(self._pools.retire, case.key)
                    held.enter_context(lease(*self._builder.leases))
                    held.enter_context(away_from(self._seat.kept_free))
                return self._pools[case.key]

            return self._extras.compare(case, evaluation, pool)

    def _together(self, wanted: Sequence[Case]) -> Generator[tuple[Case, Outcome]]:
        """Build candidates in parallel, then time one after the other; yield each with its outcome.

        Closing the generator kills candidates that were built and not judged.
        """
        with ThreadPoolExecutor(self._built_at_once) as executor:
            refused = self._pools.open(executor, wanted)
            ready: list[tuple[Case, Pool]] = []
            for one in wanted:
                if one.key not in refused:
                    try:  # opens the pool again if it was retired to make room
                        ready.append((one, self._pools.take(one)))
                        continue
                    except TaskError as error:
                        refused[one.key] = error
                yield one, refused[one.key]
            # A build runs two compilers.
            with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as compilers:
                yield from self._timed(executor, compilers, ready)

    def _timed(
        self, executor: ThreadPoolExecutor, compilers: ThreadPoolExecutor, ready: Sequence[tuple[Case, Pool]]
    ) -> Generator[tuple[Case, Outcome]]:
        """Do the same for candidates whose pools are open."""
        precompiled: Begun = {}
        begun, ahead = list[Future[Built]](), list[Future[None]]()
        try:
            for one, pool in ready:
                self._precompile(compilers, precompiled, one, pool)
            for compiled in precompiled.values():
                compiled.result()
            begun += [executor.submit(self._builder.build, one, pool) for one, pool in ready]
            if self.device.prepares_ahead:
                timed = {pool.task.source: pool for _, pool in ready}
                ahead += [executor.submit(self._prepare, pool) for pool in timed.values()]
            wait(begun)  # builds would disturb measurements
            for prepared in ahead:
                prepared.result()
            waiting: list[tuple[Case, Verdict]] = []
            for (one, pool), built in zip(ready, begun, strict=True):
                try:
                    verdict = self._ended(built.result(), pool)
                except TaskError as error:
                    yield one, error
                    continue
                if verdict.reference_ms is None:
                    yield one, verdict.evaluation
                else:
                    waiting.append((one, verdict))
            self._search(executor, [one for one, _ in waiting])
            for one, verdict in waiting:
                try:
                    outcome: Outcome = self._limited(one, verdict)
                except TaskError as error:
                    outcome = error
                yield one, outcome
        finally:
            wait([*precompiled.values(), *ahead])
            wait(begun)
            for built in begun:
                if built.exception() is None and (arm := built.result().arm) is not None:
                    arm.close()

    @property
    def _built_at_once(self) -> int:
        """How many candidates are built at a time before they are timed."""
        return min(len(os.sched_getaffinity(0)), self.settings.max_pools)

    def _precompile(self, executor: ThreadPoolExecutor, begun: Begun, case: Case, pool: Pool) -> None:
        """Start precompiling a program and its task's baselines, except those in `begun`."""
        for one in [case, *self._extras.unknown(case)]:
            key = (one.task.source, one.source)
            if is_precompiled(one) and key not in begun:
                begun[key] = executor.submit(self._builder.precompilations.keep, one, pool)

    def retire(self) -> dict[str, str]:
        """Retire every pool and disclose all seeds so far.

        Returns:
            Seed (hex) by commitment, for records that hold only the commitment.
        """
        with self._lock:
            self._pools.retire(*self._pools)
            return dict(self._pools.disclosed)

    def take_disclosed(self) -> dict[str, str]:
        """Return and forget the seeds (hex) of pools retired since the last call, by commitment."""
        with self._lock:
            seeds, self._pools.disclosed = self._pools.disclosed, {}
            return seeds

    def close(self) -> None:
        """Stop every process and remove every file that this judge made."""
        with self._lock:
            self.retire()
            self._builder.close()
            self._seat.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- building ----------------------------------------------------------------------------------------------

    def _case(self, task: Task, source: str, precision: Precision, seed: bytes | None = None) -> Case:
        check_choice("precision", precision, get_args(Precision))
        self._builder.zygote.start()
        machine = self.device.machine(self.core, self._builder.zygote.torch, self._builder.zygote.cuda)
        sha256 = reference_sha256(task)
        return Case(
            task,
            printable(source),
            precision,
            machine=machine,
            sensitivity=self._shares.get(sha256, ()),
            doubts=self._doubts.get(sha256),
            seed=seed,
        )

    def _prepare(self, pool: Pool) -> None:
        """Make a task's first input sets beside builds; otherwise its first candidate's exclusive lease does.

        What fails here, such as for lack of memory, is done again there.
        """
        if pool.closed:  # retired to make room for another task, or its oracle died
            return
        with sharing(*self._builder.leases), contextlib.suppress(TaskError, *self.device.faults):
            pool.sets(0, WARM_SETS)
            pool.make_way()

    # --- measuring ---------------------------------------------------------------------------------------------

    def _ended(self, built: Built | Evaluation, pool: Pool) -> Verdict:
        """Return the verdict on a candidate that was built or, without timing, already judged.

        An `UNSTABLE` candidate is built and measured once more, as a further candidate of its task; the verdict is the
        second one, with the first one's speedup where that is lower.
        """
        if isinstance(built, Evaluation):
            return Verdict(built)
        verdict = self._fitted(built, pool)
        if verdict.evaluation.status is not Status.UNSTABLE:
            return verdict
        case = replace(built.case, unstable=verdict.evaluation.speedup)
        pool = self._pools.take(case)
        return self._fitted(self._builder.build(case, pool), pool)

    def _fitted(self, built: Built, pool: Pool) -> Verdict:
        """Measure a candidate.

        If GPU memory is too small for the program or the judge, retire the other pools and measure once more.
        """
        case = built.case
        if pool.closed:
            pool = self._pools.take(case)
        self._pools.allot(pool)  # the others may have grown
        others = len(self._pools) > 1
        try:
            verdict = self._measure(built, pool)
            status = verdict.evaluation.status
            if status is not Status.OUT_OF_MEMORY or not others or self.device.free_bytes() is None:
                return verdict
        except (NoRoomError, TooLargeError) as error:
            if not others:
                raise too_large(case, error) from error
        try:
            pool = self._alone(case, pool)
            alone = Built(case) if case.precision == "correct" else self._builder.build(case, pool)
            return self._measure(alone, pool)
        except (NoRoomError, TooLargeError) as error:
            raise too_large(case, error) from error

    def _alone(self, case: Case, pool: Pool) -> Pool:
        """Retire all pools but one, and return that; another one for the task if its oracle was killed."""
        self._pools.retire_others(pool)
        return self._pools.take(case) if pool.closed else pool

    def _measure(self, built: Built, pool: Pool) -> Verdict:
        try:
            if built.fault is not None:
                return self._trials.measure(built, pool)
            with self.device.faults_named():
                return self._under_lease(built, pool)
        finally:
            self._builder.drop(built)

    def _under_lease(self, built: Built, pool: Pool) -> Verdict:
        case = built.case
        with lease(*self._builder.leases) as waited, away_from(self._seat.kept_free), case.watch.phase("lease"):
            case.watch.add("wait", waited)
            foreign = self.device.foreign_processes(self._own_pids(built))
            if case.precision == "correct":
                verdict = Verdict(judge_correct(self._builder, built, pool))
            else:
                verdict = self._trials.measure(built, pool)
                verdict = replace(verdict, evaluation=self._extras.add(built, pool, verdict.evaluation))
            self._builder.drop(built)
            pool.rest()
            if not self.device.computes():
                raise MachineError("the GPU gave an incorrect sum after a candidate was judged; do not use this GPU")
        update = {"seconds": case.watch.seconds(), "foreign_gpu_processes": foreign}
        return replace(verdict, evaluation=verdict.evaluation.model_copy(update=update))

    # --- what a program could keep or omit -----------------------------------------------------------------------

    def _limited(self, case: Case, verdict: Verdict) -> Evaluation:
        """Return the record, with a reward above 1 limited by what a program could keep or omit undetected.

        If GPU memory is too small for the search, retire the other pools and search once more.
        """
        if verdict.reference_ms is None:
            return verdict.evaluation
        pool = self._pools.kept(case) or self._pools.take(case)
        try:
            try:
                constant_bytes, doubts = self._searched(case, pool)
            except (NoRoomError, TooLargeError):
                pool = self._alone(case, pool)
                constant_bytes, doubts = self._searched(case, pool)
        except (NoRoomError, TooLargeError) as error:
            raise too_large(case, error) from error
        evaluation = limited(verdict, constant_bytes * verdict.byte_ms, doubts)
        return evaluation.model_copy(update={"seconds": case.watch.seconds()})

    def _search(self, executor: ThreadPoolExecutor, wanted: Sequence[Case]) -> None:
        """Search several tasks in parallel; what fails, such as for lack of memory, `_limited` does again.

        A search keeps a core busy for seconds and the GPU much less, so parallel ones take hardly longer than one.
        """

        def search(case: Case, pool: Pool) -> None:
            with contextlib.suppress(TaskError, *self.device.faults):
                self._searched(case, pool)

        opened = {one.task.source: (one, self._pools.get(one.key)) for one in wanted}
        begun = [executor.submit(search, case, pool) for case, pool in opened.values() if pool is not None]
        for one in begun:
            one.result()

    def _searched(self, case: Case, pool: Pool) -> tuple[int, Sequence[str]]:
        """Return the bytes of a task's recurring output parts and what a program could keep or omit undetected."""

        def found() -> tuple[int, Sequence[str]]:
            return pool.recurrence()[0], pool.doubts() if case.doubts is None else case.doubts

        if pool.is_searched(doubts=case.doubts is None):
            return found()
        with sharing(*self._builder.leases) as (_, waited), case.watch.phase("lease"), self.device.faults_named():
            case.watch.add("wait", waited)
            pool.sets(0, 1)  # a pool that was opened again knows neither weights nor errors yet
            searched = found()
            pool.rest()
        return searched

    def _own_pids(self, built: Built) -> set[int]:
        """Return the processes of this judge that may hold device memory."""
        own = {pool.oracle.worker.pid for pool in self._pools.values()}
        return own if built.arm is None else own | {built.arm.worker.pid}


def choose_device(settings: JudgeSettings, core: int | None) -> Device:
    """Return the device that the settings request.

    Raises:
        MachineError: The settings request a GPU, and there is no usable one.
    """
    if resolve_device(settings.device) == "cpu":
        return CpuDevice(core)
    from cudal1_env.judge.device.cuda.device import CudaDevice  # starts torch and the GPU

    return CudaDevice(tf32=settings.arithmetic == "tf32")


def too_large(case: Case, error: NoRoomError | TooLargeError) -> TooLargeError:
    """Return the error for a task that is too large for this GPU even with no other pool open."""
    if isinstance(error, TooLargeError):
        return error
    return TooLargeError(
        f"{case.task.id}: the GPU has too little memory for its inputs, answers and both programs, although the judge "
        f"keeps nothing else ({error})"
    )
