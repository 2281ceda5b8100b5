"""The task gate: what an audit found, kept in a file that the environment reads.

A task whose checker accepts a wrong program pays for that program too, so it pays nothing above 1 by default.
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
from cudal1_env.records.results import form_of, read_results

AUDIT_FILE = "audit.json"
"""Name of a suite's own audit, in its folder; beside a table `tasks.jsonl` it is `tasks.audit.json`."""

MOST_OF_MARKED = 1.0
"""Largest speedup that a marked task pays."""


class InputShare(BaseModel):
    """How much of one input tensor matters: elements that were changed one at a time."""

    model_config = ConfigDict(frozen=True)

    tested: int = Field(ge=0)
    """Elements that were changed; 0 where it was not tried (then none of it counts as needed)."""
    mattered: int = Field(ge=0)
    """Those with which the float64 answer changed visibly, for one of several new values."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of the tensor's elements that matter, at least: a lower bound that holds with 99 %."""


class TaskAudit(BaseModel):
    """What the audit of one task found."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Task id."""
    sha256: str
    """Hash of the reference program, at the size that was audited."""
    verdict: Literal["sound", "survivors", "refused"]
    """`sound`: every wrong answer and faulty program was caught, with `error_factor` where that is given;
    `survivors`: some were not; `refused`: the judge refuses the task."""
    survivors: tuple[str, ...] = ()
    """Wrong answers (`cudal1_env.campaigns.audit.mutants`) and faulty programs, with the step at which the fault was
    injected (`cudal1_env.campaigns.audit.programs`), that the checker calls right on every input set."""
    equivalents: tuple[str, ...] = ()
    """Those that are the right answer up to rounding, or give nothing away, on every input set; they say nothing."""
    sets: int = Field(ge=0)
    """Input sets that were needed to catch all that was caught."""
    distributions: tuple[str, ...] = ()
    """Distributions of these sets."""
    reason: str = ""
    """Why the judge refuses the task; where it does not: what only the smaller error factor caught, which faulty
    programs could not be run, why nothing is known of its inputs."""
    error_factor: float | None = Field(default=None, gt=1.0)
    """c of this task, smaller than the judge's setting: what survived that was caught with this one, and honest
    programs pass with half of it. None where the setting will do."""
    inputs: tuple[InputShare, ...] = ()
    """How much of each input tensor matters, in their order; empty where it was not found out."""


class AuditReport(BaseModel):
    """The audit of a suite."""

    model_config = ConfigDict(frozen=True)

    suite: str
    """Name of the suite, or of its file or folder."""
    device: Device
    """Where it was audited."""
    protocol: str = ""
    """Version of the protocol that made it; empty in files from before there was one."""
    most_sets: int = Field(ge=1)
    """Input sets on which a mutant had to survive."""
    tasks: tuple[TaskAudit, ...]
    """The tasks, in the suite's order."""

    def complaint(self, task: Task) -> str | None:
        """Return why a task pays nothing above 1; None where nothing speaks against it.

        Goes by the reference program, so an audit says nothing of the same task at another size.
        """
        sha256 = reference_sha256(task)
        for one in self.tasks:
            if one.sha256 == sha256 and one.verdict == "survivors":
                return (
                    f"{task.id} pays nothing above {MOST_OF_MARKED:g}: its checker accepts wrong programs "
                    f"({', '.join(one.survivors)}); audit=None lifts the limit"
                )
        return None

    def error_factors(self) -> dict[str, float]:
        """Return the error factors of tasks that need a smaller one than the setting, by the hash of the reference."""
        return {one.sha256: one.error_factor for one in self.tasks if one.error_factor is not None}

    def shares(self) -> dict[str, tuple[float, ...]]:
        """Return how much of each input tensor matters at least, by the hash of the reference."""
        return {one.sha256: tuple(entry.share for entry in one.inputs) for one in self.tasks if one.inputs}


class AuditLine(BaseModel):
    """One line of an audit's results file."""

    model_config = ConfigDict(frozen=True)

    protocol: str
    """Version of the protocol that made it."""
    device: Device
    """Where the task was audited."""
    most_sets: int = Field(ge=1)
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
            most_sets=report.most_sets,
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
        conditions=lambda line: (f"protocol {line.protocol}", line.device, f"{line.most_sets} input sets"),
    ),
    document=_of_document,
)
"""Form of an audit's results file."""


def report_of(lines: Sequence[AuditLine]) -> AuditReport:
    """Return what lines of one device and protocol come to: of each task the last one, in the place of the first.

    That a task was too large, which others on the device may have made it, takes no other verdict's place.

    Raises:
        RecordError: There are none, or they are of several devices or protocols.
    """
    if len({AUDIT_FORM.conditions(line) for line in lines}) != 1:
        raise RecordError(f"expected audited tasks of one device and protocol, got {len(lines)} tasks")
    tasks: dict[str, TaskAudit] = {}
    for line in lines:
        if line.task.name not in tasks or TOO_LARGE not in line.task.reason:
            tasks[line.task.name] = line.task
    head = lines[0]
    return AuditReport(
        suite=head.suite,
        device=head.device,
        protocol=head.protocol,
        most_sets=head.most_sets,
        tasks=tuple(tasks.values()),
    )


def reference_sha256(task: Task) -> str:
    """Return the hash of a task's reference, as records have it."""
    return digest(task.source)


def load_audit(path: str | Path) -> AuditReport:
    """Read an audit.

    Raises:
        RecordError: The file holds none.
    """
    try:
        return report_of(read_results(Path(path), AUDIT_FORM))
    except RecordError as error:
        raise RecordError(f"expected in {path} what `cudal1-env audit SUITE --out FILE` writes: {error}") from error


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
