"""Every mutant through the task's checker, as the judge compares: the sample first, then the whole output."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
from cudal1_data import Task
from scipy.special import betaincinv  # pyright: ignore[reportMissingTypeStubs]

from cudal1_env.audit.mutants import Subject, is_equivalent, left_by_worker, makers, subjects
from cudal1_env.errors import TOO_LARGE, RecordError, TaskError
from cudal1_env.gate import AuditReport, InputShare, TaskAudit, reference_sha256
from cudal1_env.judge.audit import AuditJudge, KnownSet, Values
from cudal1_env.judge.oracle.numerics import Answer, compare
from cudal1_env.records import PROTOCOL_VERSION, Device

MOST_SETS = 12
"""Input sets on which a mutant must survive: nine of the task's own distribution and one of each other."""

_DOUBT = 0.01
"""Probability that a bound on a share lies above it."""

_KEPT_EVERY_S = 10.0
"""What was found so far is kept this often."""

_SEED = 1
"""Of the places that mutants change: an audit gives the same answer each time."""


class _Survivors:
    """The mutants that no input set has caught so far."""

    def __init__(self) -> None:
        self.alive: dict[str, bool] | None = None
        """By name: whether the mutant was the right answer, up to rounding, on every set. None before the first set."""

    def meet(self, one: KnownSet, other: KnownSet, random: np.random.Generator) -> None:
        """Drop what is caught on a set. A mutant that does not apply to it is dropped too."""
        outputs = list(zip(subjects(one, other, random), one.answers, strict=True))
        makes = {
            name if len(outputs) == 1 else f"{name} (output {position})": (make, subject, answer)
            for position, (subject, answer) in enumerate(outputs)
            for name, make in makers(subject).items()
        }
        before = dict.fromkeys(makes, True) if self.alive is None else self.alive
        self.alive = {}
        for name, equivalent in before.items():
            make, subject, answer = makes[name]
            mutant = make()
            if mutant is None:
                continue
            left = left_by_worker(mutant, subject.expected)
            if passes(left, answer, subject):
                self.alive[name] = equivalent and is_equivalent(left, subject)


def passes(left: Values, answer: Answer, subject: Subject) -> bool:
    """Whether the judge would call an output right on a set whose whole output it compares."""
    sample = compare(left[answer.positions], answer, subject.expected, whole=False)
    return sample.right and compare(left, answer, subject.expected, whole=True).right


def audit_task(judge: AuditJudge, task: Task, *, matter: bool = True) -> TaskAudit:
    """Try a task's checker. Input sets are made until every mutant is caught, at most `MOST_SETS`.

    Args:
        judge: Makes inputs and answers.
        task: The task.
        matter: On a GPU, find out how much of each input matters, too, for the floor; it takes three times as long as
            all mutants. A task for which that takes too much memory is told with the reason.

    Raises:
        MachineError: The machine broke.
    """
    survivors, random = _Survivors(), np.random.default_rng(_SEED)
    distributions: list[str] = []
    try:
        with closing(judge.known_sets(task, MOST_SETS + 1)) as sets:
            for one, other in pairwise(sets):
                survivors.meet(one, other, random)
                distributions.append(one.distribution)
                if not survivors.alive:
                    break
    except TaskError as error:
        return TaskAudit(
            name=task.id,
            sha256=reference_sha256(task),
            verdict="refused",
            sets=len(distributions),
            reason=str(error).removeprefix(f"{task.id}: "),
        )
    left = survivors.alive or {}
    found: list[tuple[int, int, float]] = []
    reason = ""
    if matter and judge.device.name == "cuda":
        try:
            found = judge.inputs_that_matter(task)
        except TaskError as error:
            reason = str(error).removeprefix(f"{task.id}: ")
    wrong = tuple(name for name, equivalent in left.items() if not equivalent)
    return TaskAudit(
        name=task.id,
        sha256=reference_sha256(task),
        verdict="survivors" if wrong else "sound",
        survivors=wrong,
        equivalents=tuple(name for name, equivalent in left.items() if equivalent),
        sets=len(distributions),
        distributions=tuple(dict.fromkeys(distributions)),
        inputs=tuple(share_that_matters(*one) for one in found),
        reason=reason,
    )


def share_that_matters(tested: int, mattered: int, most: float) -> InputShare:
    """Return what a count of elements says about the whole tensor.

    The bound is Clopper and Pearson's (1934), one-sided: the p at which as many or more of `tested` draws matter in 1 %
    of cases, the `_DOUBT` quantile of Beta(mattered, tested - mattered + 1).

    Args:
        tested: Elements that were changed, chosen at random.
        mattered: Those with which the answer changed.
        most: The largest share that can matter.
    """
    share = float(betaincinv(mattered, tested - mattered + 1, _DOUBT)) if mattered else 0.0
    return InputShare(tested=tested, mattered=mattered, share=min(share, most))


def audit_tasks(
    begin: Callable[[], AuditJudge],
    device: Device,
    suite: str,
    tasks: Sequence[Task],
    log: Callable[[str], None],
    *,
    matter: bool = True,
    known: Sequence[AuditReport] = (),
    keep: Callable[[AuditReport], None] = lambda report: None,
) -> AuditReport:
    """Audit tasks, except those that are known already.

    Args:
        begin: Makes the judge, if one is needed.
        device: Where it judges.
        suite: Name of their suite.
        tasks: The tasks.
        log: Told each task's verdict.
        matter: As for `audit_task`.
        known: What was found before: what is of this device and protocol is taken over, by the reference's hash, but
            not that a task was too large, which others on the device may have made it.
        keep: Given what was found so far, every `_KEPT_EVERY_S` seconds.

    Raises:
        MachineError: The machine broke.
    """
    before = {
        one.sha256: one
        for report in known
        if (report.device, report.protocol, report.most_sets) == (device, PROTOCOL_VERSION, MOST_SETS)
        for one in report.tasks
        if TOO_LARGE not in one.reason
    }
    found = {
        number: one for number, task in enumerate(tasks) if (one := before.get(reference_sha256(task))) is not None
    }

    def so_far() -> AuditReport:
        return AuditReport(
            suite=suite,
            device=device,
            protocol=PROTOCOL_VERSION,
            most_sets=MOST_SETS,
            tasks=tuple(found[number].model_copy(update={"name": tasks[number].id}) for number in sorted(found)),
        )

    judge: AuditJudge | None = None
    kept = time.monotonic()
    for number, task in enumerate(tasks):
        if number in found:
            continue
        judge = judge or begin()
        one = found[number] = audit_task(judge, task, matter=matter)
        text = ", ".join([*one.survivors, *(f"{name} (equivalent)" for name in one.equivalents)]) or one.reason
        log(f"[{number + 1}/{len(tasks)}] {task.id}: {one.verdict}" + (f": {text}" if text else ""))
        if time.monotonic() - kept > _KEPT_EVERY_S:
            keep(so_far())
            kept = time.monotonic()
    return so_far()


def check_same(report: AuditReport, device: Device, path: Path) -> None:
    """Check that a file of verdicts can take in those of an audit on a device.

    Raises:
        RecordError: It is of another device or version, whose verdicts do not stand beside these.
    """
    found, asked = (report.device, report.protocol, report.most_sets), (device, PROTOCOL_VERSION, MOST_SETS)
    if found != asked:
        raise RecordError(
            f"expected verdicts of {device}, protocol {PROTOCOL_VERSION}, {MOST_SETS} input sets in {path}, got "
            f"{report.device}, protocol {report.protocol or 'unknown'}, {report.most_sets} input sets; give another "
            "--out, or remove the file"
        )


def with_others(report: AuditReport, before: AuditReport | None) -> AuditReport:
    """Return an audit with what a file held of other tasks: those come where they were, new ones behind them.

    Args:
        report: What was found of some tasks: takes the place of what the file held under these names.
        before: What the file held; None where there was none.
    """
    if before is None:
        return report
    found = {one.name: one for one in report.tasks}
    held = {one.name for one in before.tasks}
    tasks = [found.get(one.name, one) for one in before.tasks]
    tasks += [one for one in report.tasks if one.name not in held]
    return report.model_copy(update={"suite": before.suite, "tasks": tuple(tasks)})
