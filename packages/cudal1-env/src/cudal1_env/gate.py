"""The task gate: an audit's findings, in a file that judges load.

A task whose checker accepts incorrect programs would reward them. A judge with its audit pays nothing above 1 for it.
"""

from __future__ import annotations

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
"""Name of a suite's own audit, in the suite's folder; for a table `tasks.jsonl` it is `tasks.audit.json`."""


class InputSensitivity(BaseModel):
    """Input sensitivity of one tensor: how many of its elements influence the output, changed one at a time."""

    model_config = ConfigDict(frozen=True)

    tested: int = Field(ge=0)
    """Elements that were changed; if 0, no element counts as needed."""
    influential: int = Field(ge=0, validation_alias=also_old("influential"))
    """Elements for which at least one of several new values altered the float64 answer visibly."""
    share: float = Field(ge=0.0, le=1.0)
    """Lower confidence bound (99 %) on the share of the tensor's elements that influence the output."""


class TaskAudit(BaseModel):
    """Findings of the audit of one task."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Task id."""
    sha256: str
    """Hash of the reference program, at the audited size."""
    verdict: Literal["sound", "survivors", "refused"]
    """`sound`: every incorrect answer and faulty program was caught, with `error_factor` if there is one;
    `survivors`: some were not; `refused`: the judge refuses the task."""
    survivors: tuple[str, ...] = ()
    """Incorrect answers (`cudal1_env.campaigns.audit.mutants`) and faulty programs, with the step of the fault
    (`cudal1_env.campaigns.audit.programs`), that the checker accepts on every input set."""
    equivalents: tuple[str, ...] = ()
    """Mutants and programs that are correct up to rounding, or harmless, on every input set; they are no evidence."""
    sets: int = Field(ge=0)
    """Number of input sets used until everything was caught."""
    distributions: tuple[str, ...] = ()
    """Distributions of these sets."""
    reason: str = ""
    """Why the judge refuses the task. For other tasks: what only the smaller error factor caught, which faulty programs
    could not be run, why the input sensitivity is unknown."""
    error_factor: float | None = Field(default=None, gt=1.0)
    """Error factor c of this task, smaller than the judge's setting: it catches what survived the setting, and honest
    programs pass with half of it. None if the setting suffices."""
    inputs: tuple[InputSensitivity, ...] = ()
    """Input sensitivity of each input tensor, in order; empty if it was not measured."""


class AuditReport(BaseModel):
    """Audit of a suite."""

    model_config = ConfigDict(frozen=True)

    suite: str
    """Name of the suite, or of its file or folder."""
    device: Device
    """Where it was audited."""
    protocol: str = ""
    """Protocol version of the audit; empty in older files."""
    max_sets: int = Field(ge=1, validation_alias=also_old("max_sets"))
    """Input sets on which a mutant had to survive."""
    tasks: tuple[TaskAudit, ...]
    """The tasks, in the suite's order."""

    def doubts(self) -> dict[str, tuple[str, ...]]:
        """Return what is doubted of each task, by the hash of the reference, so not of the same task at another size.

        A marked task has one doubt, a sound task none. A task that was sound under another protocol is left out.
        """
        text = "an audit found incorrect programs that are accepted: {}"
        sound = [one for one in self.tasks if one.verdict == "sound" and self.protocol == PROTOCOL_VERSION]
        marked = [one for one in self.tasks if one.verdict == "survivors"]
        return {one.sha256: () for one in sound} | {
            one.sha256: (text.format(", ".join(one.survivors)),) for one in marked
        }

    def error_factors(self) -> dict[str, float]:
        """Return the error factors that are smaller than the setting, by the hash of the reference."""
        return {one.sha256: one.error_factor for one in self.tasks if one.error_factor is not None}

    def shares(self) -> dict[str, tuple[float, ...]]:
        """Return the minimum influential share of each input tensor, by the hash of the reference."""
        return {one.sha256: tuple(entry.share for entry in one.inputs) for one in self.tasks if one.inputs}


class AuditLine(BaseModel):
    """One line of an audit's results file."""

    model_config = ConfigDict(frozen=True)

    protocol: str
    """Protocol version of the audit."""
    device: Device
    """Where the task was audited."""
    max_sets: int = Field(ge=1, validation_alias=also_old("max_sets"))
    """Input sets on which a mutant had to survive."""
    suite: str
    """Name of the suite, or of its file or folder."""
    task: TaskAudit
    """The findings."""


def _of_document(data: bytes) -> list[AuditLine] | None:
    """Read an audit of the older form, which is one JSON document."""
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
    """Return the report on lines with the same conditions: each task's last line, at the position of its first.

    A line that says a task was too large does not replace a verdict: other processes may have held the memory.

    Raises:
        RecordError: There are no lines, or their devices, protocols or numbers of input sets differ.
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
    """Return the hash of a task's reference, as in records."""
    return digest(task.source)


def load_audit(path: str | Path) -> AuditReport:
    """Read an audit.

    Raises:
        RecordError: The file contains no audit.
    """
    try:
        return report_of(read_results(Path(path), AUDIT_FORM))
    except RecordError as error:
        raise RecordError(f"{error}; `cudal1-env audit SUITE --out FILE` writes an audit") from error


def find_audit(path: str | Path | None, suite: str, device: Device = "cpu") -> AuditReport | None:
    """Return the audit of a suite, or None.

    Args:
        path: The audit's file; `auto` for the suite's own, if there is one; None for no audit.
        suite: `Suite.name`: the name, folder or file from which it was loaded.
        device: Where its tasks run, because sizes differ by device. `audit.DEVICE.json` goes before `audit.json`.

    Raises:
        RecordError: The file contains no audit.
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
