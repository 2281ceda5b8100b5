"""The audit of a task: mutants and faulty programs go through its checker, the sample first, then the whole output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cudal1_data import Task
from cudal1_data.variants import usable_variants
from scipy.special import betaincinv  # pyright: ignore[reportMissingTypeStubs]

from cudal1_env.campaigns.audit.judge import AuditJudge, KnownSet
from cudal1_env.campaigns.audit.mutants import Subject, is_equivalent, left_by_worker, makers, passes, subjects
from cudal1_env.campaigns.audit.programs import Programs, passes_in_sequence
from cudal1_env.errors import TOO_LARGE, TaskError
from cudal1_env.gate import AUDIT_FORM, AuditLine, AuditReport, InputSensitivity, TaskAudit, reference_sha256
from cudal1_env.records import PROTOCOL_VERSION, Device, Status
from cudal1_env.records.results import ResultsFile

MAX_SETS = 12
"""Number of input sets on which a mutant must survive: nine of the task's own distribution and one of each other."""

FACTORS = (16.0, 8.0, 4.0)
"""Smaller error factors that are tried if the checker accepts an incorrect answer at the settings' factor."""

_DOUBT = 0.01
"""Probability that the true share lies above a bound."""

_SEED = 1
"""Seed of the positions that mutants change; fixed, so that an audit gives the same result each time."""


class _Mutants:
    """The mutants of answers that the checker has accepted on every input set so far.

    Args:
        only: Names of the mutants to try; None for all.
    """

    def __init__(self, only: Collection[str] | None = None) -> None:
        self._only = only
        self.alive: dict[str, bool] | None = None
        """By name: whether the mutant equalled the correct answer, up to rounding, on every set. None before the first
        set.
        """

    def meet(self, one: KnownSet, outputs: Sequence[Subject]) -> None:
        """Drop the mutants that are caught on a set, and those that do not apply to it."""
        makes = {
            name if len(outputs) == 1 else f"{name} (output {position})": (make, subject, answer)
            for position, (subject, answer) in enumerate(zip(outputs, one.answers, strict=True))
            for name, make in makers(subject).items()
        }
        if self.alive is None:
            self.alive = {name: True for name in makes if self._only is None or name in self._only}
        before, self.alive = self.alive, {}
        for name, equivalent in before.items():
            make, subject, answer = makes[name]
            mutant = make()
            if mutant is None:
                continue
            left = left_by_worker(mutant, subject.expected)
            if passes(left, answer, subject):
                self.alive[name] = equivalent and is_equivalent(left, subject)


@dataclass(frozen=True)
class _Found:
    """Mutants and programs that a task's checker accepted."""

    left: dict[str, bool]
    """By name of mutant or program: whether it is equivalent to the correct answer."""
    distributions: tuple[str, ...]
    """Distributions of the input sets, in order."""
    failed: dict[str, str]
    """By name of program, the reason why it could not be run."""

    @property
    def survivors(self) -> tuple[str, ...]:
        """Return the incorrect answers and programs that the checker accepted."""
        return tuple(name for name, equivalent in self.left.items() if not equivalent)


def _hunt(judge: AuditJudge, task: Task, only: Collection[str] | None = None) -> _Found:
    """Try mutants and faulty programs until each has been caught, on at most `MAX_SETS` input sets."""
    mutants, programs, random = _Mutants(only), Programs(judge, task, only), np.random.default_rng(_SEED)
    distributions: list[str] = []
    with closing(judge.known_sets(task, MAX_SETS + 1)) as sets:
        other = next(sets)
        for one in sets:
            outputs = subjects(one, other, random)
            mutants.meet(one, outputs)
            programs.meet(one, outputs)
            distributions.append(one.distribution)
            other = one
            if not mutants.alive and not programs.alive:
                break
    left = {**(mutants.alive or {}), **{one.name: harmless for one, harmless in (programs.alive or {}).items()}}
    return _Found(left, tuple(distributions), programs.failed)


def _tightened(judge: AuditJudge, task: Task, survivors: tuple[str, ...]) -> float | None:
    """Return the largest error factor at which no mutant survives and honest programs pass; None if there is none.

    Honest programs are the reference with sums term by term, and the task's variants that this machine can run.
    They must pass at half the factor.
    """
    for factor in FACTORS:
        judge.use_factor(task, factor)
        survivors = _hunt(judge, task, survivors).survivors
        if not survivors:
            judge.use_factor(task, factor / 2)
            return factor if _honest_pass(judge, task) else None
    return None


def _honest_pass(judge: AuditJudge, task: Task) -> bool:
    random = np.random.default_rng(_SEED)
    with closing(judge.known_sets(task, MAX_SETS)) as sets:
        for one in sets:
            if not passes_in_sequence(judge, task, one, subjects(one, one, random)):
                return False
    variants = usable_variants(task, judge.device.name, frozenset())
    return all(judge.evaluate(task, one.source).status is not Status.WRONG_OUTPUT for one in variants)


def audit_task(judge: AuditJudge, task: Task, *, sensitivity: bool = True) -> TaskAudit:
    """Test a task's checker, and find the error factor that it needs if the default accepts a fault.

    Args:
        judge: Makes inputs and answers, and runs faulty programs.
        task: The task.
        sensitivity: On a GPU, also measure the input sensitivity for the roofline, which takes three times as long as
            all mutants. If memory does not suffice, the reason is recorded.

    Raises:
        MachineError: The machine broke.
    """
    try:
        judge.use_factor(task, None)
        found = _hunt(judge, task)
        factor = _tightened(judge, task, found.survivors) if found.survivors else None
        judge.use_factor(task, factor)
        known = tuple(judge.known_parts(task))
    except TaskError as error:
        judge.use_factor(task, None)
        return TaskAudit(
            name=task.id,
            sha256=reference_sha256(task),
            verdict="refused",
            sets=0,
            reason=str(error).removeprefix(f"{task.id}: "),
        )
    reasons = [f"not tried: {name} ({text})" for name, text in found.failed.items()]
    if factor is not None:
        reasons.insert(0, f"passed at the error factor {judge.settings.error_factor:g}: {', '.join(found.survivors)}")
    inputs: list[tuple[int, int, float]] = []
    if sensitivity and judge.device.name == "cuda":
        try:
            inputs = judge.input_sensitivity(task)
        except TaskError as error:
            reasons.append(str(error).removeprefix(f"{task.id}: "))
    survivors = (found.survivors if factor is None else ()) + known
    return TaskAudit(
        name=task.id,
        sha256=reference_sha256(task),
        verdict="survivors" if survivors else "sound",
        survivors=survivors,
        equivalents=tuple(name for name, equivalent in found.left.items() if equivalent),
        sets=len(found.distributions),
        distributions=tuple(dict.fromkeys(found.distributions)),
        inputs=tuple(sensitivity_of(*one) for one in inputs),
        error_factor=factor,
        reason="; ".join(reasons),
    )


def sensitivity_of(tested: int, influential: int, max_share: float) -> InputSensitivity:
    """Return the input sensitivity of a whole tensor, from a sample of its elements.

    The bound is Clopper and Pearson's (1934), one-sided: the p at which as many or more of `tested` draws are
    influential in 1 % of cases, the `_DOUBT` quantile of Beta(influential, tested - influential + 1).

    Args:
        tested: Number of elements that were changed, chosen at random.
        influential: Number of these elements whose change altered the answer.
        max_share: The maximum share that can be influential.
    """
    share = float(betaincinv(influential, tested - influential + 1, _DOUBT)) if influential else 0.0
    return InputSensitivity(tested=tested, influential=influential, share=min(share, max_share))


def audit_file(
    path: Path | None, device: Device, *, known: Sequence[Path] = (), join: Sequence[Path] = ()
) -> ResultsFile[AuditLine]:
    """Open the results file of an audit.

    Raises:
        RecordError: A file holds something else, or verdicts of another device or version.
    """
    asked = (f"protocol {PROTOCOL_VERSION}", device, f"{MAX_SETS} input sets")
    return ResultsFile(path, AUDIT_FORM, asked, known=known, join=join)


def audit_tasks(
    begin: Callable[[], AuditJudge],
    device: Device,
    suite: str,
    tasks: Sequence[Task],
    file: ResultsFile[AuditLine],
    log: Callable[[str], None],
    *,
    sensitivity: bool = True,
) -> AuditReport:
    """Audit the tasks that have no result yet.

    Args:
        begin: Return a new judge; called if one is needed.
        device: Device of that judge.
        suite: Name of the tasks' suite.
        tasks: The tasks.
        file: Results file; it gets a line for each task that is audited now. Earlier results are reused by the
            reference's hash, except that a task was too large: other processes may have held the memory.
        log: Called with each task's verdict.
        sensitivity: As for `audit_task`.

    Raises:
        MachineError: The machine broke; results so far are in the file.
    """
    before = {line.task.sha256: line.task for line in file.known if TOO_LARGE not in line.task.reason}
    judge: AuditJudge | None = None
    found: list[TaskAudit] = []
    for number, task in enumerate(tasks, start=1):
        known = before.get(reference_sha256(task))
        if known is not None:
            found.append(known.model_copy(update={"name": task.id}))
            continue
        judge = judge or begin()
        one = audit_task(judge, task, sensitivity=sensitivity)
        found.append(one)
        file.add(AuditLine(protocol=PROTOCOL_VERSION, device=device, max_sets=MAX_SETS, suite=suite, task=one))
        text = ", ".join([*one.survivors, *(f"{name} (equivalent)" for name in one.equivalents)]) or one.reason
        log(f"[{number}/{len(tasks)}] {task.id}: {one.verdict}" + (f": {text}" if text else ""))
    return AuditReport(suite=suite, device=device, protocol=PROTOCOL_VERSION, max_sets=MAX_SETS, tasks=tuple(found))
