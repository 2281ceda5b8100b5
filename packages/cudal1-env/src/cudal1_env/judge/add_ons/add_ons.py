"""Additions to a record: speedups against baselines, a profile, KernelBench's verdict. None changes the verdict.

All are measured under the lease of the program that they belong to, with the judge's own steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from cudal1_data.hashes import digest
from cudal1_worker import protocol as wire

from cudal1_env.baselines import BaselineEntry, BaselineKey, BaselineName, BaselineStore, measured, program, resolve
from cudal1_env.baselines.compare import check_machine, strongest_of
from cudal1_env.errors import MachineError
from cudal1_env.judge.add_ons.kernelbench import kernelbench_verdict
from cudal1_env.judge.add_ons.profile import OddProfileError, run_profile
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.timing.trials import Trials
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.lease import Hold
from cudal1_env.judge.workers.worker import Dead, Late
from cudal1_env.records import BaselineFault, Device, Evaluation, KernelBench, Profile, Status
from cudal1_env.stats import against

_MESSAGE_CHARS = 500


class Extras:
    """Adds the requested additions to records.

    Raises:
        SettingsError: The settings request a baseline that this machine does not support.
    """

    def __init__(self, settings: JudgeSettings, builder: Builder, trials: Trials) -> None:
        self.settings = settings
        self.device: Device = builder.device.name
        self.names = measured(resolve(settings.baselines, self.device))
        self.store = BaselineStore()
        self._builder, self._trials = builder, trials

    def add(self, built: Built, pool: Pool, evaluation: Evaluation) -> Evaluation:
        """Return the record of a program that was just judged, with all additions that the settings request."""
        case = built.case
        if self.settings.policy == "kernelbench":
            with case.watch.phase("kernelbench"):
                evaluation = evaluation.model_copy(update={"kernelbench": self._kernelbench(built, pool)})
        if not evaluation.correct:
            return evaluation
        evaluation = self.compare(case, evaluation, lambda: pool)
        if self.settings.profile == "always" or (self.settings.profile == case.precision == "report"):
            with case.watch.phase("profile"):
                found = self._profile(built, pool)
            named = "profile" if isinstance(found, Profile) else "profile_note"
            evaluation = evaluation.model_copy(update={named: found})
        return evaluation

    # --- baselines ---------------------------------------------------------------------------------------------

    def compare(self, case: Case, evaluation: Evaluation, pool: Callable[[], Pool]) -> Evaluation:
        """Return a record with its missing speedups against baselines added."""
        there = {*evaluation.speedups, *evaluation.baselines_failed}
        timed = evaluation.correct and evaluation.precision != "correct"
        whole = evaluation.strongest is not None and there.issuperset(self.names)
        if whole or not timed or not self.settings.baselines:
            return evaluation
        assert evaluation.speedup is not None, "right programs have one"
        check_machine(evaluation.machine, case.machine)
        speedups, failed = dict(evaluation.speedups), dict(evaluation.baselines_failed)
        for name in self.names:
            if name in speedups or name in failed:
                continue
            entry = self._entry(case, name, pool)
            if entry.speedup is not None:
                speedups[name] = against(evaluation.speedup, entry.speedup)
            else:
                failed[name] = BaselineFault(status=entry.status, message=entry.message)
        strongest = strongest_of(evaluation.speedup, speedups)
        update = {"speedups": speedups, "baselines_failed": failed, "strongest": strongest}
        return evaluation.model_copy(update=update)

    def unknown(self, case: Case) -> list[Case]:
        """Return the baselines of a case's task that `add` would have to measure."""
        if case.precision == "correct":
            return []
        return [
            self._twin(case, name)
            for name in self.names
            if self.store.find(self._key(case, name), case.precision, self.settings.baseline_warmup_timeout_s) is None
        ]

    def _key(self, case: Case, name: BaselineName) -> BaselineKey:
        machine = case.machine
        assert machine is not None, "a case begins with its machine"
        return BaselineKey(
            baseline=name,
            task_sha256=digest(case.task.source),
            source_sha256=digest(program(name, case.task.source)),
            device=machine.device,
            machine=machine.name,
            driver=machine.driver,
            torch=machine.torch,
            arithmetic=self.settings.arithmetic,
        )

    def _twin(self, case: Case, name: BaselineName) -> Case:
        """Return a baseline's program as a case, at the candidate's precision."""
        source = program(name, case.task.source)
        return Case(case.task, source, case.precision, "baseline", case.machine, case.sensitivity)

    def _entry(self, case: Case, name: BaselineName, pool: Callable[[], Pool]) -> BaselineEntry:
        """Return the stored result of a baseline; measure it if there is none."""
        key, limit_s = self._key(case, name), self.settings.baseline_warmup_timeout_s
        entry = self.store.find(key, case.precision, limit_s)
        if entry is None:
            with case.watch.phase("baselines"):
                outcome = self._judge(self._twin(case, name), pool())
            entry = BaselineEntry(
                key=key,
                created_at=outcome.created_at,
                precision=case.precision,
                status=outcome.status,
                message=outcome.message[:_MESSAGE_CHARS],
                speedup=outcome.speedup if outcome.status is Status.CORRECT else None,
                warmup_timeout_s=limit_s,
            )
            self.store.keep(entry)
        return entry

    def _judge(self, twin: Case, pool: Pool) -> Evaluation:
        """Judge a baseline's program like any other."""
        self._builder.precompilations.keep(twin, pool, Hold())
        built = self._builder.build(twin, pool, hold=Hold())
        try:
            return self._trials.measure(built, pool).evaluation
        finally:
            self._builder.drop(built)

    # --- another worker of the program, after measuring ----------------------------------------------------------

    @contextlib.contextmanager
    def _another(self, built: Built, pool: Pool) -> Generator[Arm]:
        """Import a program in another worker and yield its arm."""
        case = Case(built.case.task, built.case.source, "training")
        twin = self._builder.build(case, pool, built.snapshot, hold=Hold())
        try:
            if twin.fault is not None:
                raise twin.fault
            assert twin.arm is not None, "what was imported without a fault has an arm"
            yield twin.arm
        finally:
            twin.snapshot = None  # belongs to the candidate
            self._builder.drop(twin)

    def _kernelbench(self, built: Built, pool: Pool) -> KernelBench:
        """Judge a program by KernelBench's rules."""
        reference = self._builder.reference(built.case, pool)
        try:
            with self._another(built, pool) as arm:
                return kernelbench_verdict(reference, arm, pool, digest(built.case.source))
        except Fault as fault:
            return KernelBench(status=fault.status, message=fault.message, passed=0)
        finally:
            reference.close()

    def _profile(self, built: Built, pool: Pool) -> Profile | str:
        """Return the profile of a program, or why there is none."""
        try:
            with self._another(built, pool) as arm:
                return run_profile(arm, pool, built.case.source, self.device)
        except Fault as fault:
            return f"no profile, the worker failed: {fault.status}: {fault.message}"[:_MESSAGE_CHARS]
        except Dead as error:
            how = ", ".join(f"{name} {value}" for name, value in error.how.items())
            return f"no profile, the worker died: {how}"
        except (OddProfileError, Late, wire.BadMessage, MachineError) as error:
            return f"no profile: {error}"[:_MESSAGE_CHARS]
