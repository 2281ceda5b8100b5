"""The judge: takes a candidate from source text to record."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import TracebackType
from typing import Self

from cudal1_data import Task

from cudal1_env.calibration import load_spread
from cudal1_env.errors import MachineError, NoRoomError, TaskError, TooLargeError
from cudal1_env.evaluator import ByEach
from cudal1_env.gate import AuditReport, find_audit, reference_sha256
from cudal1_env.hardware import resolve_device
from cudal1_env.judge.add_ons.add_ons import Extras
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.measure.builder import Builder, Built
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.measure.correct import UNDECIDED, judge_correct
from cudal1_env.judge.measure.precompile import is_precompiled
from cudal1_env.judge.measure.record import Verdict, limited, printable
from cudal1_env.judge.measure.timing.trials import Trials
from cudal1_env.judge.oracle.pool import SEED_BYTES, WARM_SETS, Pool
from cudal1_env.judge.pools import Pools, parts, pool_key
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.lease import away_from, core_name, lease, sharing, take_seat
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
        self._shares: dict[str, tuple[float, ...]] = {}
        self._sound: set[str] = set()
        """Hashes of the references of tasks whose checker an audit calls sound."""
        if (audit := find_audit("auto", "starter", self.device.name)) is not None:
            self.learn(audit)
        self._lock = threading.RLock()

    def learn(self, audit: AuditReport) -> None:
        """Load an audit: input sensitivity by task, error factors of tightened tasks, and which tasks are sound.

        The constructor loads the starter suite's audit.
        """
        self._shares.update(audit.shares())
        self._pools.factors.update(audit.error_factors())
        self._sound |= audit.sound()

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
            case = self._case(task, source, precision)
            pool = self._pools.take(case, seed)
            if seed is not None and first_set is not None:
                pool.spend(first_set)
            try:
                # In this thread, so that an interrupt ends it at once: a batch waits for its builds.
                return self._limited(case, self._ended(self._begun(case, pool, {}), pool, seed), seed)
            finally:
                if seed is not None:
                    self._pools.retire(pool_key(case, seed))

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
        # A part is built completely before any of it is timed, so timed parts are small. The oracles of a part start
        # before its programs, so lanes would be idle in the last round of both if tasks did not divide by them.
        at_once, max_pools = self._side_by_side(precision), self.settings.max_pools
        many = precision == "correct" and not self._own_secrets
        most = self.settings.pool_candidates if many else at_once
        tasks = [str(index) if self._own_secrets else task.id for index, (task, _) in enumerate(jobs)]
        with self._lock:
            for part in parts(tasks, max_jobs=most, max_tasks=max_pools // at_once * at_once or max_pools):
                cases = [self._case(*jobs[index], precision) for index in part]
                seeds = [secrets.token_bytes(SEED_BYTES) if self._own_secrets else None for _ in part]
                wanted = list(zip(cases, seeds, strict=True))
                if precision == "correct" and not self._own_secrets:
                    self._pools.renew(cases)
                try:
                    with contextlib.closing(self._together(wanted)) as told:
                        for place, outcome in told:
                            if (seed := seeds[place]) is not None:
                                self._pools.retire(pool_key(*wanted[place]))
                                if isinstance(outcome, Evaluation):
                                    outcome = outcome.model_copy(update={"seed": seed.hex()})
                            done(part[place], outcome)
                finally:
                    self._pools.retire(*(pool_key(*one) for one in wanted if one[1] is not None))

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

    def _together(self, wanted: Sequence[tuple[Case, bytes | None]]) -> Generator[tuple[int, Outcome]]:
        """Build candidates in parallel, then judge one at a time; yield the position of each with its outcome.

        All have the same precision. Closing the generator kills candidates that were built and not judged.
        """
        with ThreadPoolExecutor(self._side_by_side(wanted[0][0].precision)) as executor:
            refused = self._pools.open(executor, wanted)
            ready: list[tuple[int, Case, bytes | None, Pool]] = []
            for place, (case, seed) in enumerate(wanted):
                if (key := pool_key(case, seed)) not in refused:
                    try:  # opens the pool again if it was retired to make room
                        ready.append((place, case, seed, self._pools.take(case, seed)))
                        continue
                    except TaskError as error:
                        refused[key] = error
                yield place, refused[key]
            with self._precompilations() as compilers:
                yield from self._judged(executor, compilers, ready)

    def _judged(
        self,
        executor: ThreadPoolExecutor,
        compilers: ThreadPoolExecutor,
        ready: Sequence[tuple[int, Case, bytes | None, Pool]],
    ) -> Generator[tuple[int, Outcome]]:
        """Do the same for candidates whose pools are open."""
        precompiled: Begun = {}
        begun, ahead = list[Future[Built | Evaluation]](), list[Future[None]]()
        try:
            for _, case, _, pool in ready:
                self._precompile(compilers, precompiled, case, pool)
            if any(case.precision != "correct" for _, case, _, _ in ready):
                for one in precompiled.values():
                    one.result()
            begun += [executor.submit(self._begun, case, pool, precompiled) for _, case, _, pool in ready]
            if self.device.prepares_ahead:
                timed = {pool.task.source: pool for _, case, _, pool in ready if case.precision != "correct"}
                ahead += [executor.submit(self._prepare, pool) for pool in timed.values()]
            wait(begun)  # builds would disturb measurements
            for one in ahead:
                one.result()
            waiting: list[tuple[int, Case, bytes | None, Verdict]] = []
            for (place, case, seed, pool), one in zip(ready, begun, strict=True):
                try:
                    verdict = self._ended(one.result(), pool, seed)
                except TaskError as error:
                    yield place, error
                    continue
                if verdict.reference_ms is None:
                    yield place, verdict.evaluation
                else:
                    waiting.append((place, case, seed, verdict))
            self._search(executor, [(case, seed) for _, case, seed, _ in waiting])
            for place, case, seed, verdict in waiting:
                try:
                    outcome: Outcome = self._limited(case, verdict, seed)
                except TaskError as error:
                    outcome = error
                yield place, outcome
        finally:
            wait([*precompiled.values(), *ahead])
            wait(begun)
            for one in begun:
                if one.exception() is None and isinstance(built := one.result(), Built) and built.arm is not None:
                    built.arm.close()

    def _side_by_side(self, precision: Precision) -> int:
        """Return how many candidates are built at a time."""
        most = self.settings.lanes if precision == "correct" else self.settings.max_pools
        return min(len(os.sched_getaffinity(0)), most)

    def _precompilations(self) -> ThreadPoolExecutor:
        """Return an executor with one thread for every two cores, because a build runs two compilers."""
        return ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2))

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

    def _case(self, task: Task, source: str, precision: Precision) -> Case:
        self._builder.zygote.start()
        machine = self.device.machine(self.core, self._builder.zygote.torch, self._builder.zygote.cuda)
        sha256 = reference_sha256(task)
        return Case(
            task,
            printable(source),
            precision,
            machine=machine,
            sensitivity=self._shares.get(sha256, ()),
            is_sound=sha256 in self._sound,
        )

    def _begun(self, case: Case, pool: Pool, precompiled: Begun) -> Built | Evaluation:
        """Build a candidate; at `correct` precision, also judge it while others run. Several threads may call this.

        The candidate's own precompilation is waited for, if it was begun.

        Returns:
            A verdict, or a candidate that needs the device alone; `_ended` takes either.
        """
        if case.precision != "correct":
            return self._builder.build(case, pool)
        if pool.closed:  # retired to make room for another task, or its oracle died
            return Built(case)
        if (case.task.source, case.source) in precompiled:
            precompiled[case.task.source, case.source].result()
        self._builder.precompilations.keep(case, pool)
        with sharing(core_name(self.core), *self.device.locks) as (hold, waited), case.watch.phase("lease"):
            case.watch.add("wait", waited)
            built = self._builder.build(case, pool, hold=hold)
            evaluation: Evaluation | None = None
            try:
                evaluation = judge_correct(self._builder, built, pool)
            except (TooLargeError, *self.device.faults):
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

    def _prepare(self, pool: Pool) -> None:
        """Make a task's first input sets beside builds; otherwise its first candidate's exclusive lease does.

        What fails here, such as for lack of memory, is done again there.
        """
        if pool.closed:  # retired to make room for another task, or its oracle died
            return
        with sharing(core_name(self.core), *self.device.locks), contextlib.suppress(TaskError, *self.device.faults):
            pool.sets(0, WARM_SETS)
            pool.make_way()

    # --- measuring ---------------------------------------------------------------------------------------------

    def _ended(self, built: Built | Evaluation, pool: Pool, seed: bytes | None) -> Verdict:
        """Return the verdict on a candidate from `_begun`.

        If GPU memory is too small for the program or the judge, retire the other pools and measure once more.
        """
        if isinstance(built, Evaluation):
            return Verdict(built)
        case = built.case
        if pool.closed:
            pool = self._pools.take(case, seed)
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
        self._pools.retire_others(pool)
        again = self._case(case.task, case.source, case.precision)
        try:
            alone = Built(again)
            return self._measure(alone if again.precision == "correct" else self._builder.build(again, pool), pool)
        except (NoRoomError, TooLargeError) as error:
            raise too_large(case, error) from error

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
        leased = lease(core_name(self.core), *self.device.locks)
        with leased as waited, away_from(self._seat.kept_free), case.watch.phase("lease"):
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

    def _limited(self, case: Case, verdict: Verdict, seed: bytes | None) -> Evaluation:
        """Return the record, with a reward above 1 limited by what a program could keep or omit undetected.

        If GPU memory is too small for the search, retire the other pools and search once more.
        """
        if verdict.reference_ms is None:
            return verdict.evaluation
        pool = self._pools.kept(case, seed) or self._pools.take(case, seed)
        try:
            try:
                constant_bytes, doubts = self._searched(case, pool)
            except (NoRoomError, TooLargeError):
                self._pools.retire_others(pool)
                constant_bytes, doubts = self._searched(case, pool)
        except (NoRoomError, TooLargeError) as error:
            raise too_large(case, error) from error
        evaluation = limited(verdict, constant_bytes * verdict.byte_ms, doubts)
        return evaluation.model_copy(update={"seconds": case.watch.seconds()})

    def _search(self, executor: ThreadPoolExecutor, wanted: Sequence[tuple[Case, bytes | None]]) -> None:
        """Search several tasks in parallel; what fails, such as for lack of memory, `_limited` does again.

        A search keeps a core busy for seconds and the GPU much less, so parallel ones take hardly longer than one.
        """

        def search(case: Case, pool: Pool) -> None:
            with contextlib.suppress(TaskError, *self.device.faults):
                self._searched(case, pool)

        opened = {case.task.source: (case, self._pools.get(pool_key(case, seed))) for case, seed in wanted}
        begun = [executor.submit(search, case, pool) for case, pool in opened.values() if pool is not None]
        for one in begun:
            one.result()

    def _searched(self, case: Case, pool: Pool) -> tuple[int, list[str]]:
        """Return the bytes of a task's recurring output parts and what a program could keep or omit undetected."""
        if pool.is_searched(doubts=not case.is_sound):
            return pool.recurrence()[0], [] if case.is_sound else pool.doubts()
        leased = sharing(core_name(self.core), *self.device.locks)
        with leased as (_, waited), case.watch.phase("lease"), self.device.faults_named():
            case.watch.add("wait", waited)
            pool.sets(0, 1)  # a pool that was opened again knows neither weights nor errors yet
            found = pool.recurrence()[0], [] if case.is_sound else pool.doubts()
            pool.rest()
        return found

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
