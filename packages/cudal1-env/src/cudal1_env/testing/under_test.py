"""The suite for any evaluator: attacks that it rewards, incorrect programs that it accepts, honest ones it rejects.

An adapter has one method (`EvaluatorUnderTest`). Attacks may end or harm the process that runs them, so use
`child.ChildEvaluator` for an evaluator that runs candidates in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cudal1_data import Task
from cudal1_data.hashes import digest
from pydantic import BaseModel, ConfigDict

from cudal1_env.errors import TaskError
from cudal1_env.evaluator import Evaluator
from cudal1_env.mutants.programs import MUTANTS
from cudal1_env.records import Device
from cudal1_env.reward import reward_of
from cudal1_env.testing.programs import REFUSED, exploits_folder, programs
from cudal1_env.testing.templates import TEMPLATES

MARGIN = 0.05
"""A claim of up to 1.05 is not a reward, because point estimates of the same code scatter by some percent."""


class Claim(BaseModel):
    """The verdict of an evaluator on one candidate."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    correct: bool
    """Whether it calls the candidate correct."""
    speedup: float | None = None
    """Rewarded speedup, reference latency / candidate latency; None if the evaluator gives none."""
    message: str = ""
    """Its reason, as text."""
    refused: bool = False
    """Whether it refuses the task."""


class EvaluatorUnderTest(Protocol):
    """An adapter of an evaluator."""

    def judge(self, task: str, candidate: str, /) -> Claim:
        """Judge a candidate (text that defines `ModelNew`) for a task (text in KernelBench's form)."""
        ...


class JudgeUnderTest:
    """Adapter of cudal1's judge, or of another `Evaluator`."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Adapt an evaluator, which the caller closes."""
        self._evaluator = evaluator

    def judge(self, task: str, candidate: str, /) -> Claim:
        """Judge a candidate; the claim's speedup is the reward."""
        name = f"file/{digest(task)[:16]}"
        try:
            record = self._evaluator.evaluate(Task(id=name, source=task, name=name, level=1, origin="file"), candidate)
        except TaskError as error:
            return Claim(correct=False, message=str(error), refused=True)
        speedup = reward_of(record) if record.correct else None
        return Claim(correct=record.correct, speedup=speedup, message=f"{record.status}: {record.message}")


@dataclass(frozen=True)
class Case:
    """One program of the suite."""

    name: str
    task: str
    """Reference program, in KernelBench's form."""
    candidate: str
    """Program that defines `ModelNew`."""
    idea: str
    """One sentence."""
    honest: bool
    """Whether it must be called correct."""
    answers_correct: bool
    """Whether it may be called correct; a program that is not honest must not be rewarded even then."""
    may_be_refused: bool = False
    """Whether an evaluator may refuse the task instead."""


class Finding(BaseModel):
    """A case and the evaluator's claim."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    case: str
    """Name of the case."""
    idea: str
    """What the program does."""
    claim: Claim
    """The evaluator's verdict."""

    def text(self) -> str:
        """Return the finding as one line of text."""
        speedup = "" if self.claim.speedup is None else f" at {self.claim.speedup:.3g}"
        said = f"correct{speedup}" if self.claim.correct else f"not correct ({' '.join(self.claim.message.split())})"
        return f"{self.case}: {said}: {self.idea}"


class Report(BaseModel):
    """Mistakes of an evaluator."""

    model_config = ConfigDict(frozen=True)

    cases: int
    """Number of programs judged."""
    rewarded: tuple[Finding, ...] = ()
    """Attacks that it calls correct and faster."""
    accepted: tuple[Finding, ...] = ()
    """Incorrect programs that it calls correct, at any speed."""
    rejected: tuple[Finding, ...] = ()
    """Honest programs that it calls incorrect."""
    refused: tuple[str, ...] = ()
    """Cases whose task it refuses."""

    @property
    def sound(self) -> bool:
        """Whether it made no mistake."""
        return not (self.rewarded or self.accepted or self.rejected)

    def text(self) -> str:
        """Return the report as text, with a summary in the last line."""
        lines = [f"REWARDED {finding.text()}" for finding in self.rewarded]
        lines += [f"ACCEPTED {finding.text()}" for finding in self.accepted]
        lines += [f"REJECTED {finding.text()}" for finding in self.rejected]
        counts = f"{len(self.rewarded)} attacks rewarded, {len(self.accepted)} incorrect programs accepted"
        lines.append(f"{self.cases} programs: {counts}, {len(self.rejected)} honest ones rejected")
        return "\n".join(lines)


def examine(
    evaluator: EvaluatorUnderTest,
    cases: Iterable[Case],
    *,
    margin: float = MARGIN,
    log: Callable[[str], None] | None = None,
) -> Report:
    """Run a suite on an evaluator.

    Args:
        evaluator: The adapter.
        cases: Programs; see `suite`.
        margin: An attack counts as rewarded if its claimed speedup exceeds 1 by more than this.
        log: Called with a line for each program.
    """
    seen: list[tuple[Case, Claim]] = []
    for case in cases:
        claim = evaluator.judge(case.task, case.candidate)
        seen.append((case, claim))
        if log is not None:
            log(Finding(case=case.name, idea=case.idea, claim=claim).text())

    def where(condition: Callable[[Case, Claim], bool]) -> tuple[Finding, ...]:
        return tuple(
            Finding(case=case.name, idea=case.idea, claim=claim) for case, claim in seen if condition(case, claim)
        )

    return Report(
        cases=len(seen),
        rewarded=where(lambda case, claim: not case.honest and claims_more(claim, margin)),
        accepted=where(lambda case, claim: not case.answers_correct and claim.correct),
        rejected=where(
            lambda case, claim: case.honest and not claim.correct and not (case.may_be_refused and claim.refused)
        ),
        refused=tuple(case.name for case, claim in seen if claim.refused),
    )


def claims_more(claim: Claim, margin: float) -> bool:
    """Return whether a claim says correct and faster than 1 + `margin`; NaN counts as faster.

    >>> claims_more(Claim(correct=True, speedup=1.5), 0.05), claims_more(Claim(correct=True), 0.05)
    (True, False)
    """
    return claim.correct and claim.speedup is not None and not claim.speedup <= 1.0 + margin


def suite(device: Device, *, only: Sequence[str] = (), harmful: bool = False) -> list[Case]:
    """Return the whole suite: programs of tests/exploits, then mutants and templates of one correct program.

    Args:
        device: Where programs run.
        only: Prefixes of names; by default all.
        harmful: Whether to include programs that harm a machine without a sandbox (daemons, full disks, planted files).

    Raises:
        ValueError: No program's name begins so, or `only` is one text.
    """
    if isinstance(only, str):
        raise ValueError(f"only is the text {only!r}; pass a list of beginnings of names")
    task = (exploits_folder() / "tasks" / "dense.py").read_text()
    cases = exploit_cases(device, harmful=harmful) + mutant_cases(task, f"{task}\n\nModelNew = Model\n")
    if unknown := [begin for begin in only if not any(case.name.startswith(begin) for case in cases)]:
        raise ValueError(f"no program's name begins with {unknown[0]!r}; names look like {cases[0].name!r}")
    return [case for case in cases if not only or case.name.startswith(tuple(only))]


def exploit_cases(device: Device, *, harmful: bool = False) -> list[Case]:
    """Return the programs of tests/exploits for a device; see `suite`. Rounds of feedback are left out."""
    return [
        Case(
            name=program.name,
            task=program.task(device).source,
            candidate=program.source,
            idea=program.header["idea"],
            honest=program.honest,
            answers_correct="CORRECT" in program.expected,
            may_be_refused=REFUSED in program.expected,
        )
        for program in programs()
        if program.runs_on(device) and (harmful or "harm" not in program.header)
    ]


def mutant_cases(task: str, program: str) -> list[Case]:
    """Return a correct program, its mutants, and the templates around it.

    Args:
        task: Reference program, in KernelBench's form.
        program: A correct program for it; its outputs must not be constant, and their first two rows must differ.
    """
    cases = [Case("correct", task, program, "The correct program itself.", honest=True, answers_correct=True)]
    for kind, mutations in (("mutant", MUTANTS), ("template", TEMPLATES)):
        cases += [
            Case(f"{kind}/{name}", task, one.on(program), one.idea, honest=False, answers_correct=one.answers_correct)
            for name, one in mutations.items()
        ]
    return cases
