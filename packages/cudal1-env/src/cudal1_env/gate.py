"""The task gate: what an audit found, kept in a file that the environment reads.

A task whose checker accepts an incorrect program would pay for it, so by default it pays nothing above 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cudal1_data import Task
from cudal1_data.hashes import digest
from cudal1_data.sources.starter import STARTER_FOLDER
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cudal1_env.errors import TOO_LARGE, RecordError
from cudal1_env.records import PROTOCOL_VERSION, Device
from cudal1_env.records.old_names import also_old
from cudal1_env.records.results import form_of, read_results

AUDIT_FILE = "audit.json"
"""Name of a suite's own audit, in its folder; beside a table `tasks.jsonl` it is `tasks.audit.json`."""

MAX_REWARD_OF_MARKED = 1.0
"""Largest speedup that a marked task pays."""


class InputSensitivity(BaseModel):
    """Input sensitivity of one tensor: how many of its elements influence the output, changed one at a time."""

    model_config = ConfigDict(frozen=True)

    tested: int = Field(ge=0)
    """Elements that were changed; 0 if none was tried, and then no element counts as needed."""
    influential: int = Field(ge=0, validation_alias=also_old("influential"))
    """Elements whose change altered the float64 answer visibly, for one of several new values."""
    share: float = Field(ge=0.0, le=1.0)
    """Lower confidence bound (99 %) on the share of the tensor's elements that influence the output."""


class TaskAudit(BaseModel):
    """What the audit of one task found."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Task id."""
    sha256: str
    """Hash of the reference program, at the size that was audited."""
    verdict: Literal["sound", "survivors", "refused"]
    """`sound`: every incorrect answer and faulty program was caught, with `error_factor` if there is one;
    `survivors`: some were not; `refused`: the judge refuses the task."""
    survivors: tuple[str, ...] = ()
    """Incorrect answers (`cudal1_env.campaigns.audit.mutants`) and faulty programs, with the step of the fault
    (`cudal1_env.campaigns.audit.programs`), that the checker accepts on every input set."""
    equivalents: tuple[str, ...] = ()
    """Mutants and programs that are the correct answer up to rounding, or harmless, on every input set: no evidence."""
    sets: int = Field(ge=0)
    """Input sets that were used until everything was caught."""
    distributions: tuple[str, ...] = ()
    """Distributions of these sets."""
    reason: str = ""
    """Why the judge refuses the task. Of other tasks: what only the smaller error factor caught, which faulty programs
    could not be run, why the input sensitivity is unknown."""
    error_factor: float | None = Field(default=None, gt=1.0)
    """Error factor c of this task, smaller than the judge's setting: it catches what survived the setting, and honest
    programs pass with half of it. None if the setting suffices."""
    inputs: tuple[InputSensitivity, ...] = ()
    """Input sensitivity of each tensor, in their order; empty if it was not measured."""


class AuditReport(BaseModel):
    """The audit of a suite."""

    model_config = ConfigDict(frozen=True)

    suite: str
    """Name of the suite, or of its file or folder."""
    device: Device
    """Where it was audited."""
    protocol: str = ""
    """Version of the protocol that made it; empty in files from before there was one."""
    max_sets: int = Field(ge=1, validation_alias=also_old("max_sets"))
    """Input sets on which a mutant had to survive."""
    tasks: tuple[TaskAudit, ...]
    """The tasks, in the suite's order."""

    def complaint(self, task: Task) -> str | None:
        """Return why a task pays nothing above 1; None if its checker is sound.

        Goes by the reference program, so an audit says nothing of the same task at another size.
        """
        sha256 = reference_sha256(task)
        for one in self.tasks:
            if one.sha256 == sha256 and one.verdict == "survivors":
                return (
                    f"{task.id} pays nothing above {MAX_REWARD_OF_MARKED:g}: its checker accepts incorrect programs "
                    f"({', '.join(one.survivors)}); audit=None lifts the limit"
                )
        return None

    def error_factors(self) -> dict[str, float]:
        """Return the error factors of tasks that need a smaller one than the setting, by the hash of the reference."""
        return {one.sha256: one.error_factor for one in self.tasks if one.error_factor is not None}

    def sound(self) -> set[str]:
        """Return the hashes of the references whose checker is sound under this protocol."""
        if self.protocol != PROTOCOL_VERSION:
            return set()
        return {one.sha256 for one in self.tasks if one.verdict == "sound"}

    def shares(self) -> dict[str, tuple[float, ...]]:
        """Return the minimum share of each input tensor that influences the output, by the hash of the reference."""
        return {one.sha256: tuple(entry.share for entry in one.inputs) for one in self.tasks if one.inputs}


class AuditLine(BaseModel):
    """One line of an audit's results file."""

    model_config = ConfigDict(frozen=True)

    protocol: str
    """Version of the protocol that made it."""
    device: Device
    """Where the task was audited."""
    max_sets: int = Field(ge=1, validation_alias=also_old("max_sets"))
    """Input sets on which a mutant had to survive."""
    suite: str
    """Name of the suite, or of its file or folder."""
    task: TaskAudit
    """What was found."""


def _of_document(data: bytes) -> list[AuditLine] | None:
    """Read an audit that is one JSON document, as audits were written before they had lines."""
    try:
        report = AuditReport.model_validate_json(data)
    except ValidationError:
        return None
    return [
        AuditLine(
            protocol=report.protocol,
            device=report.device,
            max_sets=report.max_sets,
            suite=report.suite,
            task=task,
        )
        for task in report.tasks
    ]


AUDIT_FORM = replace(
    form_of(
        AuditLine,
        "an audit",
        head=f'{{"protocol":"{PROTOCOL_VERSION}","device":"',
        conditions=lambda line: (f"protocol {line.protocol}", line.device, f"{line.max_sets} input sets"),
    ),
    document=_of_document,
)
"""Form of an audit's results file."""


def report_of(lines: Sequence[AuditLine]) -> AuditReport:
    """Return the report on lines of one device and protocol: of each task the last line, in the place of the first.

    A line that says a task was too large replaces no other verdict: other processes may have held the memory.

    Raises:
        RecordError: There are none, or they are of several devices or protocols.
    """
    if len({AUDIT_FORM.conditions(line) for line in lines}) != 1:
        raise RecordError(
            f"the {len(lines)} audited tasks are not of one device and protocol; audit them again with cudal1-env audit"
        )
    tasks: dict[str, TaskAudit] = {}
    for line in lines:
        if line.task.name not in tasks or TOO_LARGE not in line.task.reason:
            tasks[line.task.name] = line.task
    head = lines[0]
    return AuditReport(
        suite=head.suite,
        device=head.device,
        protocol=head.protocol,
        max_sets=head.max_sets,
        tasks=tuple(tasks.values()),
    )


def reference_sha256(task: Task) -> str:
    """Return the hash of a task's reference, as records have it."""
    return digest(task.source)


def most_paid(audit: AuditReport | None, task: Task) -> float:
    """Return the largest speedup that a task pays, and so the largest that prompts show for it."""
    return math.inf if audit is None or audit.complaint(task) is None else MAX_REWARD_OF_MARKED


def load_audit(path: str | Path) -> AuditReport:
    """Read an audit.

    Raises:
        RecordError: The file holds none.
    """
    try:
        return report_of(read_results(Path(path), AUDIT_FORM))
    except RecordError as error:
        raise RecordError(f"{path} is no audit: {error}; write one by `cudal1-env audit SUITE --out FILE`") from error


def find_audit(path: str | Path | None, suite: str, device: Device = "cpu") -> AuditReport | None:
    """Return the audit that goes with a suite, None where there is none.

    Args:
        path: The audit's file; `auto` for the suite's own, where there is one.
        suite: `Suite.name`: the name, folder or file that it was loaded as.
        device: Where its tasks run: a task has another size there. `audit.DEVICE.json` comes before `audit.json`.

    Raises:
        RecordError: The file holds no audit.
    """
    if path is None:
        return None
    if path != "auto":
        return load_audit(path)
    place = STARTER_FOLDER if suite == "starter" else Path(suite)
    if not place.exists():
        return None
    for name in (f"audit.{device}.json", AUDIT_FILE):
        own = place / name if place.is_dir() else place.with_suffix(f".{name}")
        if own.is_file():
            return load_audit(own)
    return None
