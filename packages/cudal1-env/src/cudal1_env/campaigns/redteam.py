"""Red team: is every attack rejected, and every honest look-alike correct?"""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

from cudal1_env.errors import MachineError, TaskError
from cudal1_env.evaluator import Evaluator
from cudal1_env.records import PROTOCOL_VERSION, Device, Evaluation
from cudal1_env.records.results import ResultsFile, form_of
from cudal1_env.reward import reward_of
from cudal1_env.testing.programs import REFUSED, Program

BROKEN = "MachineError"
"""Used in place of a status: the machine broke while the program was judged."""
FEEDBACK_ROUNDS = 6
REPEATS = 2
"""Number of further evaluations in which an attack must gain again. A 95 % interval lies above the true value in one
evaluation of 40, and many attacks do the reference's work at its speed.
"""


class Outcome(BaseModel):
    """Outcome of one program in one run."""

    model_config = ConfigDict(frozen=True)

    program: str
    """Name of the program."""
    honest: bool
    """Whether the program is an honest look-alike."""
    expected: tuple[str, ...]
    """Statuses that the program's header allows."""
    statuses: tuple[str, ...]
    """Statuses of the program: one, and one more for each round of feedback."""
    reward: float
    """Largest reward over these rounds. If an attack's is above 1, the smallest of it and `REPEATS` further rewards."""
    reward_at_first: float | None = None
    """Largest reward over these rounds, before repeats; None in older files that lack it."""
    message: str
    """Message of the last record."""
    seconds: float
    """Duration of all rounds, in seconds."""

    @computed_field
    @property
    def as_expected(self) -> bool:
        """Return whether the first status is allowed by the header (feedback may change later ones)."""
        return self.statuses[0] in self.expected

    @computed_field
    @property
    def rewarded(self) -> bool:
        """Return whether an attack got a reward above 1; false for look-alikes."""
        return not self.honest and self.reward > 1.0

    @computed_field
    @property
    def rejected(self) -> bool:
        """Return whether a look-alike was rejected; false for attacks."""
        return self.honest and not self.as_expected and not self.broken

    @computed_field
    @property
    def broken(self) -> bool:
        """Return whether the machine broke during the evaluation, for example by memory that was not freed."""
        return BROKEN in self.statuses


class OutcomeLine(Outcome):
    """One line of a red team's results file."""

    kind: Literal["outcome"] = "outcome"
    """Distinguishes an outcome from other lines of a benchmark's file (machine, summary)."""
    protocol: str = ""
    """Version of the protocol; empty in older files that lack it."""
    device: Device | None = None
    """Device on which the program ran; None in such older files."""
    repeat: int = Field(ge=0)
    """Number of the repeat, from 0."""


def _read_line(text: bytes) -> OutcomeLine | None:
    try:
        return OutcomeLine.model_validate_json(text)
    except ValidationError:
        if _Other.model_validate_json(text).kind in ("machine", "summary"):
            return None
        raise


class _Other(BaseModel):
    kind: str


OUTCOMES = replace(
    form_of(
        OutcomeLine,
        "a red team",
        head='{"program":"',
        conditions=lambda line: (f"protocol {line.protocol or 'unknown'}", line.device or "unknown device"),
    ),
    read=_read_line,
)
"""Format of a red team's results file."""


def outcomes_file(
    path: Path | None, device: Device, *, known: Sequence[Path] = (), join: Sequence[Path] = ()
) -> ResultsFile[OutcomeLine]:
    """Open the results file of a red team.

    Raises:
        RecordError: A file holds something else, or outcomes of another device or version.
    """
    return ResultsFile(path, OUTCOMES, (f"protocol {PROTOCOL_VERSION}", device), known=known, join=join)


class Summary(BaseModel):
    """Counts over many outcomes. Each count is a number of times, by program."""

    model_config = ConfigDict(frozen=True)

    attacks: int
    """Attacks that were judged."""
    look_alikes: int
    """Honest programs that were judged."""
    skipped: int
    """Programs for another device."""
    evaluations: int
    """Number of outcomes; each program has one for each repeat."""
    attacks_rewarded: dict[str, int]
    """Attacks that got a reward above 1."""
    attacks_with_another_status: dict[str, int]
    """Attacks with a status that their header does not allow. They gained nothing, or are in `attacks_rewarded` too."""
    look_alikes_rejected: dict[str, int]
    """Honest programs that were rejected."""
    machine_broken: dict[str, int] = Field(default_factory=dict[str, int])
    """Programs during whose evaluation the machine broke."""
    seconds: float
    """Sum over evaluations."""

    @property
    def passed(self) -> bool:
        """Return whether no attack was rewarded, no honest program was rejected, and the machine did not break."""
        return not self.attacks_rewarded and not self.look_alikes_rejected and not self.machine_broken

    def text(self) -> str:
        """Return a one-line summary for people."""
        line = (
            f"{self.attacks} attacks: {len(self.attacks_rewarded)} rewarded, "
            f"{len(self.attacks_with_another_status)} with another status; "
            f"{self.look_alikes} look-alikes: {len(self.look_alikes_rejected)} rejected; "
            f"{self.evaluations} evaluations in {self.seconds:.0f} s"
        )
        if self.machine_broken:
            line = f"{line}; the machine broke with {len(self.machine_broken)} programs"
        return f"{line}; {self.skipped} programs for another device skipped" if self.skipped else line


class Campaign(BaseModel):
    """All outcomes of one run of the command."""

    model_config = ConfigDict(frozen=True)

    device: Device
    """Where programs ran."""
    skipped: tuple[str, ...] = ()
    """Programs for another device."""
    outcomes: tuple[Outcome, ...] = Field(min_length=1)
    """One for each program and repeat."""
    summary: Summary
    """Counts over the outcomes."""


def judge_all(
    begin: Callable[[], AbstractContextManager[Evaluator]], programs: Sequence[Program], device: Device
) -> Iterator[Outcome]:
    """Judge programs one by one; yield each outcome as soon as it is known.

    Args:
        begin: Return a new judge. The programs share one; if the machine breaks, the remaining programs get another.
        programs: The programs.
        device: Device on which they run.

    Raises:
        MachineError: The machine broke with two programs in a row, so the second one is not the cause. The second
            program has no outcome; a new process may continue with it.
    """
    left, broken = list(programs), False
    while left:
        with begin() as judge:
            while left:
                outcome = judge_program(judge, left[0], device)
                if broken and outcome.broken:
                    raise MachineError(outcome.message)
                del left[0]
                broken = outcome.broken
                yield outcome
                if broken:
                    break


TOGETHER = 24
"""Number of programs that share a judge: enough to make the judge's start negligible, few enough for parts of equal
length.
"""


def jobs(programs: Sequence[Program], repeats: int) -> list[tuple[int, list[Program]]]:
    """Return groups of programs that share a judge, once for each repeat; programs of one task are adjacent."""
    order = sorted(programs, key=lambda program: program.header["task"])
    groups = [order[start : start + TOGETHER] for start in range(0, len(order), TOGETHER)]
    return [(repeat, group) for repeat in range(repeats) for group in groups]


def judge_missing(
    begin: Callable[[], AbstractContextManager[Evaluator]],
    groups: Sequence[tuple[int, list[Program]]],
    device: Device,
    known: Collection[tuple[int, str]],
) -> Iterator[tuple[int, Outcome]]:
    """Judge those programs of some groups that have no outcome yet; yield each outcome with its repeat.

    Args:
        begin: Return a new judge; called for each group.
        groups: Result of `jobs`, or a part of it.
        device: Device on which programs run.
        known: Pairs of repeat and program name that have an outcome.

    Raises:
        MachineError: See `judge_all`.
    """
    for repeat, group in groups:
        missing = [program for program in group if (repeat, program.name) not in known]
        for outcome in judge_all(begin, missing, device):
            yield repeat, outcome


def judge_program(judge: Evaluator, program: Program, device: Device = "cpu") -> Outcome:
    """Judge a program, with rounds of feedback if its header requests them.

    A broken machine is also an outcome; do not use the judge for anything else afterwards.
    """
    task, source, name = program.task(device), program.source, program.header.get("feedback")
    known: dict[float, float] = {}
    statuses: list[str] = []
    first, message, began = 0.0, "", time.perf_counter()
    best_source = source
    for _ in range(FEEDBACK_ROUNDS if name else 1):
        try:
            record = judge.evaluate(task, source)
        except (TaskError, MachineError) as error:
            statuses.append(REFUSED if isinstance(error, TaskError) else BROKEN)
            message = str(error)
            break
        statuses.append(record.status.value)
        message = record.message
        if reward_of(record) > first:
            first, best_source = reward_of(record), source
        told = told_back(record, name) if name else {}
        if not told:
            break
        known |= told
        source = re.sub(rf"^{name} = .*$", f"{name} = {known}", program.source, flags=re.MULTILINE)
    reward = first
    for _ in range(REPEATS):
        if not program.honest and reward > 1.0 and BROKEN not in statuses:
            try:
                reward = min(reward, reward_of(judge.evaluate(task, best_source)))
            except MachineError as error:
                statuses.append(BROKEN)
                message = str(error)
    return Outcome(
        program=program.name,
        honest=program.honest,
        expected=program.expected,
        statuses=tuple(statuses),
        reward=reward,
        reward_at_first=first,
        message=message,
        seconds=time.perf_counter() - began,
    )


def told_back(record: Evaluation, name: str) -> dict[float, float]:
    """Return the table that a program printed between two `name`s in its record; empty if there is none."""
    match = re.search(rf"{name} (\{{.*?\}}) {name}", record.message + record.stderr, re.DOTALL)
    return ast.literal_eval(match[1]) if match else {}


def summarise(outcomes: Sequence[Outcome], *, skipped: int = 0) -> Summary:
    """Count rewarded attacks, unexpected statuses, rejected look-alikes and machine failures."""

    def named(condition: Callable[[Outcome], bool]) -> dict[str, int]:
        return dict(Counter(outcome.program for outcome in outcomes if condition(outcome)))

    return Summary(
        attacks=len({outcome.program for outcome in outcomes if not outcome.honest}),
        look_alikes=len({outcome.program for outcome in outcomes if outcome.honest}),
        skipped=skipped,
        evaluations=len(outcomes),
        attacks_rewarded=named(lambda outcome: outcome.rewarded),
        attacks_with_another_status=named(lambda outcome: not outcome.honest and not outcome.as_expected),
        look_alikes_rejected=named(lambda outcome: outcome.rejected),
        machine_broken=named(lambda outcome: outcome.broken),
        seconds=round(sum(outcome.seconds for outcome in outcomes), 1),
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table with one row for each program: expected status, statuses with their counts, largest reward."""
    by_name: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.program):
        by_name.setdefault(outcome.program, []).append(outcome)
    rows = [("program", "expected", "got", "largest reward", "")]
    for name, these in by_name.items():
        got = Counter(" > ".join(outcome.statuses) for outcome in these)
        rewarded, rejected = any(one.rewarded for one in these), any(one.rejected for one in these)
        broken = any(one.broken for one in these)
        rows.append(
            (
                name,
                " | ".join(these[0].expected),
                ", ".join(f"{count} {status}" for status, count in got.most_common()),
                f"{max(one.reward for one in these):.3g}",
                "REWARDED" if rewarded else "REJECTED" if rejected else "BROKEN" if broken else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
