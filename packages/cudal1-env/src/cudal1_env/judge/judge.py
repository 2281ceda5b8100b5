"""The judge: leads one candidate from its text to its record, through the rooms of this package."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from cudal1_data import Task
from cudal1_worker import protocol as wire
from cudal1_worker.sandbox import Spec

from cudal1_env.calibration import load_spread
from cudal1_env.errors import TaskError
from cudal1_env.judge.arms import Arm, Fault
from cudal1_env.judge.build import BuildFolders
from cudal1_env.judge.extras import Extras, Steps, limits
from cudal1_env.judge.keeper import CoreKeeper
from cudal1_env.judge.lease import away_from, choose_core, core_name, lease
from cudal1_env.judge.oracle import Anatomy
from cudal1_env.judge.place import answers, choose_device
from cudal1_env.judge.pool import SEED_BYTES, InputSet, Pool, WeightsMode
from cudal1_env.judge.rounds import WARM_SETS, LaunchResult, Measurement
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.verdict import Case, printable
from cudal1_env.judge.workers import Zygote
from cudal1_env.records import Evaluation, Precision, Status
from cudal1_env.sandbox import default_spec
from cudal1_env.stats import RULES, Launch, centre, conclude, decide

_SLOWED_LAUNCHES = 5
"""Launches in which the reference must be slowed, and as many beside itself in which it must not, each after one of
the former, before that is called tampering. What is slowed half the time by chance is blamed in 1 of 1024 evaluations.
"""

_WARM_REPEATS = 3
"""Further untimed calls of the reference, which tell how long it takes once all is compiled and allocated."""
_RECHECKED_ABOVE = 3.0
"""Speedups of which this much is certain must be found in two launches (DESIGN.md, protocol 9)."""
_MOST_LAUNCHES_TO_AGREE = 3


@dataclass
class Built:
    """A candidate after its import."""

    case: Case
    arm: Arm | None
    """None when the import failed; `fault` says how."""
    fault: Fault | None
    folder: Path | None
    """Build folder of the host, to be removed; None where it is in the worker's own file system."""
    snapshot: Path | None
    """What a later launch's build folder begins as."""


class Judge:
    """Judges candidates on this machine; the local `Evaluator`.

    Safe to call from several threads; one candidate is measured at a time.

    Args:
        settings: How; the defaults suit a machine of any size.

    Raises:
        SettingsError: The settings ask for what this version or machine cannot do.
        SandboxError: A demanded sandbox layer is missing.
    """

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self.settings = settings or JudgeSettings()
        self.core = choose_core()
        self.device = choose_device(self.settings, self.core)
        default_spec(self.device.name, demanded=self.settings.require_sandbox)
        self.spread = load_spread()
        self._zygote = Zygote()
        self._keeper = CoreKeeper(self.core)
        self._folders = BuildFolders()
        steps = Steps(self._build, self._launches, self._folders.drop)
        self._extras = Extras(self.settings, self.device.name, steps)
        self._pools: OrderedDict[tuple[str, str], Pool] = OrderedDict()
        self._disclosed: dict[str, str] = {}
        self._lock = threading.RLock()

    # --- the protocol ------------------------------------------------------------------------------------------

    def evaluate(
        self, task: Task, source: str, *, precision: Precision = "training", seed: bytes | None = None
    ) -> Evaluation:
        """Judge one candidate.

        Args:
            task: What to compute.
            source: The candidate's program (untrusted).
            precision: How narrow the interval must be.
            seed: 16 bytes to repeat an earlier evaluation's numerics; by default a new secret.

        Raises:
            TaskError: The reference cannot be judged against.
            MachineError: The machine broke.
        """
        with self._lock:
            case = self._case(task, source, precision)
            pool = self._pool(case, seed)
            try:
                return self._measure(self._build(case, pool), pool)
            finally:
                if seed is not None:
                    self._retire((task.id, seed.hex()))

    def evaluate_many(self, jobs: Sequence[tuple[Task, str]], *, precision: Precision = "training") -> list[Evaluation]:
        """Judge many candidates; same order as `jobs`. Builds run side by side, measurements one at a time."""
        # Nothing is measured meanwhile; and each program of a part may want a pool of its own.
        builders = min(len(os.sched_getaffinity(0)), self.settings.max_pools)
        results: dict[int, Evaluation] = {}
        order = sorted(range(len(jobs)), key=lambda index: jobs[index][0].id)  # a task's candidates share its pool
        with self._lock, ThreadPoolExecutor(builders) as executor:
            for start in range(0, len(order), builders):
                part = order[start : start + builders]
                cases = [self._case(*jobs[index], precision) for index in part]
                pools = [self._pool(case, None) for case in cases]
                built = list(executor.map(self._build, cases, pools))
                try:
                    for index, one, pool in zip(part, built, pools, strict=True):
                        results[index] = self._measure(one, pool)
                finally:
                    for one in built:
                        if one.arm is not None:
                            one.arm.close()
        return [results[index] for index in range(len(jobs))]

    def prepare(self, task: Task) -> float:
        """Start a task's oracle now rather than at its first evaluation.

        Returns:
            Seconds that it took: importing the reference, three sets of inputs, two calls.

        Raises:
            TaskError: The reference cannot be judged against.
        """
        with self._lock:
            case = self._case(task, "", "training")
            self._pool(case, None)
            return case.watch.seconds().oracle_s

    def retire(self) -> dict[str, str]:
        """Stop using every seed in use and disclose all seeds so far.

        Returns:
            Seed (hex) by its commitment, for records that hold only the commitment.
        """
        with self._lock:
            for key in list(self._pools):
                self._retire(key)
            return dict(self._disclosed)

    def close(self) -> None:
        """Stop every process and remove every file that this judge made."""
        with self._lock:
            self.retire()
            self._zygote.close()
            self._keeper.close()
            self._folders.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- pools -------------------------------------------------------------------------------------------------

    def _pool(self, case: Case, seed: bytes | None) -> Pool:
        task = case.task
        key = (task.id, seed.hex() if seed is not None else "")
        pool = self._pools.get(key)
        if pool is not None and pool.task.source != task.source:
            self._retire(key)
            pool = None
        if pool is None:
            self._make_room()
            with case.watch.phase("oracle"):
                pool = Pool(
                    task,
                    self._zygote,
                    self._spec(None, core=None),
                    self.device,
                    self.settings,
                    seed or secrets.token_bytes(SEED_BYTES),
                )
            self._pools[key] = pool
        self._pools.move_to_end(key)
        case.commitment = pool.secrets.commitment
        return pool

    def _make_room(self) -> None:
        while self._pools and (
            len(self._pools) >= self.settings.max_pools
            or sum(pool.size_bytes for pool in self._pools.values()) > self.settings.pool_bytes
        ):
            self._retire(next(iter(self._pools)))

    def _retire(self, key: tuple[str, str]) -> None:
        pool = self._pools.pop(key, None)
        if pool is not None:
            pool.close()
            self._disclosed[pool.secrets.commitment] = pool.secrets.seed.hex()

    # --- building ----------------------------------------------------------------------------------------------

    def _case(self, task: Task, source: str, precision: Precision) -> Case:
        self._zygote.start()
        case = Case(task, printable(source), precision)
        case.machine = self.device.machine(self.core, self._zygote.torch, self._zygote.cuda)
        return case

    def _spec(self, folder: Path | None, *, core: int | None) -> Spec:
        return default_spec(
            self.device.name,
            demanded=self.settings.require_sandbox,
            hidden=answers(),
            build_dir=None if folder is None else str(folder),
            core=core,
            tmp_bytes=self.settings.scratch_bytes,
            memory_bytes=self.settings.memory_bytes,
            max_processes=self.settings.max_processes,
        )

    def _build(self, case: Case, pool: Pool, snapshot: Path | None = None) -> Built:
        """Import a candidate in a fresh worker and freeze it. Runs in several threads at once."""
        size = len(case.source.encode())
        if size > self.settings.max_source_bytes:
            fault = Fault(
                Status.NO_CODE, f"expected a program of at most {self.settings.max_source_bytes} bytes, got {size}"
            )
            return Built(case, None, fault, None, None)
        private = "mount-namespace" in self._spec(None, core=None).layers
        begins_as, folder = self._folders.begin(snapshot, private=private)
        with case.watch.phase("start"):
            worker = self._zygote.fork("arm", self._spec(begins_as, core=self.core))
        case.layers, case.missing = worker.layers, worker.missing
        arm = Arm(worker, self.device, self._keeper, pool.anatomy, limits(self.settings, case.role), "ModelNew")
        try:
            with case.watch.phase("build"):
                arm.build(case.source)
            arm.freeze()
            kept = snapshot
            if kept is None and case.precision == "report":
                kept = self._folders.keep(folder, worker.pid)
        except Fault as fault:
            case.stderr = worker.log
            arm.close()
            self._folders.drop(folder)
            return Built(case, None, fault, None, None)
        except BaseException:
            arm.close()
            raise
        return Built(case, arm, None, folder, kept)

    # --- measuring ---------------------------------------------------------------------------------------------

    def _measure(self, built: Built, pool: Pool) -> Evaluation:
        case = built.case
        try:
            if built.fault is not None:
                return case.failed(built.fault)
            with lease(core_name(self.core), *self.device.locks) as waited, away_from(self.core):
                case.watch.add("wait", waited)
                case.strangers = self.device.strangers(self._own_pids(built))
                return self._launches(built, pool)
        except Fault as fault:
            return case.failed(fault)
        finally:
            if built.arm is not None:
                case.stderr = case.stderr or printable(built.arm.worker.log)
                built.arm.close()
            self._folders.drop(built.folder)
            self._folders.drop(built.snapshot)

    def _own_pids(self, built: Built) -> set[int]:
        """Processes of this judge that may hold memory of the device."""
        own = {pool.oracle.worker.pid for pool in self._pools.values()}
        return own if built.arm is None else own | {built.arm.worker.pid}

    def _launches(self, built: Built, pool: Pool) -> Evaluation:
        """Measure launches until the rule is satisfied and, for large speedups, two of them agree."""
        case, rule = built.case, RULES[built.case.precision]
        while decide(case.launches, rule, spread=self.spread, spent=self._spent(case)) != "stop":
            self._one_launch(built, pool)
        speedup = conclude(case.launches, rule, spread=self.spread)
        if speedup.low > _RECHECKED_ABOVE:
            while not confirmed(case.launches):
                if len(case.launches) >= max(_MOST_LAUNCHES_TO_AGREE, rule.min_launches):
                    return case.unstable(speedup)
                self._one_launch(built, pool)
            speedup = conclude(case.launches, rule, spread=self.spread)
        return self._extras.add(built, pool, case.measured(speedup))

    def _one_launch(self, built: Built, pool: Pool) -> None:
        """Add one launch to the case, in new processes; repeat it while the reference is slowed beside the candidate.

        After each that is slowed, a launch of the reference beside itself tells whose fault that is. They take turns,
        because a machine is busy for seconds at a time.

        Raises:
            Fault: The candidate fails, or slows the reference each time.
        """
        case = built.case
        message = ""
        for _ in range(_SLOWED_LAUNCHES):
            if built.arm is None:
                again = self._build(case, pool, built.snapshot)
                self._folders.drop(built.folder)
                built.arm, built.folder = again.arm, again.folder
                if again.fault is not None:
                    raise again.fault
            result = self._launch(built, pool)
            if not result.slowed or self._beside_itself(case, pool).slowed:
                case.launches.append(result.launch)
                case.overheads_ms.append(result.overhead_ms)
                case.harnesses_ms.append(result.harness_ms)
                case.states.append(result.states)
                return
            message = slowed_text(result)
        raise Fault(Status.TAMPERING, message)

    def _beside_itself(self, case: Case, pool: Pool) -> LaunchResult:
        """Measure one launch with the reference in the candidate's place."""
        twin = Case(case.task, f"{case.task.source}\n\nModelNew = Model\n", case.precision)
        built = self._build(twin, pool)
        try:
            if built.fault is not None:
                raise TaskError(f"{case.task.id}: expected the reference to run, got {built.fault.message}")
            return self._launch(built, pool)
        finally:
            if built.arm is not None:
                built.arm.close()
            self._folders.drop(built.folder)
            self._folders.drop(built.snapshot)

    def _launch(self, built: Built, pool: Pool) -> LaunchResult:
        """Measure one fresh pair of workers; both are dead afterwards."""
        case, candidate = built.case, built.arm
        assert candidate is not None
        with case.watch.phase("start"):
            worker = self._zygote.fork("arm", self._spec(None, core=self.core))
            reference = Arm(worker, self.device, self._keeper, pool.anatomy, self.settings, "Model")
        try:
            mode = self._construct(case, pool, reference, candidate)
            reference_s = self._warm_reference(case, pool, mode, reference)
            self._warm_candidate(case, pool, mode, candidate)
            self._keep_compiled(built)
            pairs, calls, burst = self._size(case.precision, reference_s, pool.anatomy)
            with case.watch.phase("warmup"):
                for arm in (reference, candidate):
                    arm.open(burst, pool.sets(mode, WARM_SETS)[-1].inputs)
            random = pool.secrets.generator("order", len(case.launches))
            measurement = Measurement(
                reference,
                candidate,
                lambda count: self._sets(case, pool, mode, count),
                random,
                case.tally,
                most_pairs=pairs,
                calls_per_turn=calls,
                burst=burst,
            )
            case.measuring = (time.perf_counter(), case.watch.phases.get("oracle", 0.0))
            try:
                return measurement.run(lambda launch: self._enough(case, launch))
            finally:
                case.watch.add("measure", case.measuring_s())
                case.measuring = None
        finally:
            case.stderr = printable(candidate.worker.log)
            reference.close()
            candidate.close()
            built.arm = None

    def _keep_compiled(self, built: Built) -> None:
        """Keep what a baseline compiled in its first calls for its later launches: its text is the task's own."""
        case, before = built.case, built.snapshot
        if case.role == "baseline" and not case.launches and built.arm is not None:
            built.snapshot = self._folders.keep(built.folder, built.arm.worker.pid)
            self._folders.drop(before)

    def _sets(self, case: Case, pool: Pool, mode: WeightsMode, count: int) -> list[InputSet]:
        with case.watch.phase("oracle"):
            return pool.sets(mode, count)

    def _construct(self, case: Case, pool: Pool, reference: Arm, candidate: Arm) -> WeightsMode:
        with case.watch.phase("warmup"):
            try:
                reference.build(pool.task.source)
                reference.construct(pool.construct_seed)
            except Fault as fault:
                raise TaskError(f"{pool.task.id}: expected the reference to run, got {fault.message}") from fault
            reference.freeze()
            candidate.thaw()
            same = candidate.construct(pool.construct_seed)
            candidate.freeze()
            reference.thaw()
        if not pool.anatomy.state:
            case.weights = None if same else "seeded"
            return "seeded"
        if not same and pool.anatomy.defaults:
            raise Fault(
                Status.WRONG_CONTRACT,
                f"expected the reference's names and shapes in state_dict(), so that the judge can load weights: "
                f"{', '.join(pool.anatomy.defaults[:4])} hold defaults when made, which a program must not rely on",
            )
        case.weights = "loaded" if same else "seeded"
        return case.weights

    def _warm_reference(self, case: Case, pool: Pool, mode: WeightsMode, reference: Arm) -> float:
        sets = self._sets(case, pool, mode, WARM_SETS)
        with case.watch.phase("warmup"):
            try:
                if mode == "loaded":
                    reference.load(pool.weights())
                elapsed_s = [reference.warm(one, writable=False)[0] for one in [*sets, *sets[-1:] * _WARM_REPEATS]]
            except Fault as fault:
                raise TaskError(f"{pool.task.id}: expected the reference to run, got {fault.message}") from fault
            reference.freeze()
        return min(elapsed_s[1:])

    def _warm_candidate(self, case: Case, pool: Pool, mode: WeightsMode, candidate: Arm) -> None:
        with case.watch.phase("warmup"):
            candidate.thaw()
            if mode == "loaded":
                candidate.load(pool.weights())
            for number, one in enumerate(pool.sets(mode, WARM_SETS)):
                _, comparisons = candidate.warm(one, writable=number == 0)
                case.tally.check(one, comparisons)
            candidate.freeze()

    def _size(self, precision: Precision, reference_s: float, anatomy: Anatomy) -> tuple[int, int, int]:
        """Return how many pairs of turns a launch may have, how many calls a turn, and how many are made in one go."""
        rule, settings = RULES[precision], self.settings
        most = settings.sets_training if precision == "training" else settings.sets_report
        burst = 1
        if self.device.bursts and reference_s < settings.burst_below_us * 1e-6:
            burst = min(
                math.ceil(settings.burst_ms * 1e-3 / reference_s),
                settings.burst_training if precision == "training" else settings.burst_report,
                wire.MAX_DESCRIPTORS // len(anatomy.outputs),
                max(1, settings.burst_bytes // anatomy.input_bytes),
            )
        wanted = round(settings.turn_ms * 1e-3 / max(reference_s * burst, 1e-6))
        calls = max(1, min(wanted, most // (rule.pairs_in_launch * burst)))
        affordable = int(self._budget_s(precision) / (2 * reference_s * burst))
        return max(2 * rule.min_pairs, min(rule.pairs_in_launch, affordable)), calls * burst, burst

    def _budget_s(self, precision: Precision) -> float:
        return self.settings.budget_training_s if precision == "training" else self.settings.budget_report_s

    def _spent(self, case: Case) -> bool:
        return case.watch.phases.get("measure", 0.0) + case.measuring_s() > self._budget_s(case.precision)

    def _enough(self, case: Case, launch: Launch) -> bool:
        rule = RULES[case.precision]
        step = decide([*case.launches, launch], rule, spread=self.spread, spent=self._spent(case))
        return step != "pair"


def slowed_text(result: LaunchResult) -> str:
    """Say by how much the reference was slowed in the last of several launches."""
    beside = float(np.median(result.launch.reference_ms))
    return (
        f"expected the reference to keep its speed beside the candidate, in {_SLOWED_LAUNCHES} launches it was slowed "
        f"by over 5 %, beside itself it was not (last: {beside:.4g} ms beside, {min(result.alone_ms):.4g} ms alone)"
    )


def confirmed(launches: Sequence[Launch]) -> bool:
    """Whether some two launches agree on how fast the candidate is.

    They agree unless their log ratios differ by more than log(1.1), the 10 % of protocol 9 (DESIGN.md), plus two
    standard errors of the difference: what a busy machine blurs is for the interval to say, and rewards follow it.
    """
    centres = [centre(launch) for launch in launches]
    return any(
        abs(one.log_ratio - other.log_ratio) <= math.log(1.1) + 2.0 * math.sqrt(one.variance + other.variance)
        for i, one in enumerate(centres)
        for other in centres[:i]
    )
