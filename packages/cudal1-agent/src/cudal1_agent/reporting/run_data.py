"""A run directory in any state: finished, running, cut off or damaged. Reading changes nothing in it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudal1_env.archive_reader import ArchiveReader, Entry
from cudal1_env.errors import RecordError
from cudal1_env.records import Speedup
from cudal1_env.records.values import PROTOCOL_VERSION
from cudal1_env.stats import PairedChange, SpeedupSummary
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cudal1_agent.errors import RunError
from cudal1_agent.evaluation.success import Success
from cudal1_agent.run.folder import ARCHIVE, CONFIG, METRICS, is_finished
from cudal1_agent.run.machine import MACHINE, MachineNote
from cudal1_agent.run.metrics import Record
from cudal1_agent.settings import Settings


class _Shown(BaseModel):
    """What a record must hold to be shown; it may hold more."""

    model_config = ConfigDict(allow_inf_nan=False, strict=True)


class _Step(_Shown):
    stage: str
    step: int


class _Time(_Shown):
    stage: str
    step: int
    generating_s: float = 0.0
    judging_s: float = 0.0
    learning_s: float = 0.0
    waiting_s: float = 0.0
    generated_tokens: float = 0.0
    trained_tokens: float = 0.0
    examples: float = 0.0
    verdicts: float = 0.0
    updates: float = 0.0


class _Seconds(_Time):
    stage: str = ""
    step: int = 0
    phase: str
    wall_s: float
    measured: int = 0


class _Answer(_Shown):
    stage: str
    group: str
    task: str
    status: str
    speedup: Speedup | None = None
    source_sha256: str = ""


class _Figures(_Shown, SpeedupSummary):
    success: Success | None = None


class _Table(_Figures):
    stage: str
    group: str
    unlearnt: _Figures | None = None
    families: dict[str, _Figures] | None = None
    overlaps: dict[str, str] | None = None


class _Change(_Shown, PairedChange):
    stage: str
    before: str
    group: str
    with_failures: PairedChange | None = None


class _Champion(_Shown):
    task: str
    source_sha256: str
    status: str
    chosen: Speedup
    confirmed: Speedup | None = None


class _Batch(_Shown):
    step: int
    statuses: dict[str, int]
    shown: dict[str, list[str]] = Field(default_factory=dict[str, list[str]])
    correct: dict[str, list[str]] = Field(default_factory=dict[str, list[str]])


_FORMS: Mapping[str, type[_Shown]] = {
    "step": _Step,
    "time": _Time,
    "seconds": _Seconds,
    "answer": _Answer,
    "table": _Table,
    "change": _Change,
    "champion": _Champion,
    "batch": _Batch,
}


@dataclass(frozen=True)
class RunData:
    """Contents of a run directory, and notes on what is missing."""

    path: Path
    finished: bool
    records: list[Record]
    """Records of the metrics that can be read."""
    entries: list[Entry] = field(default_factory=list[Entry])
    """Verdicts of this protocol, in order of arrival."""
    reader: ArchiveReader | None = None
    """The archive; None if it cannot be opened."""
    settings: Settings | None = None
    """Settings of the run; None if this version cannot read them."""
    settings_text: str = ""
    """Text of the settings file."""
    machine: str | None = None
    """Hash of the machine that the run was on last; None if it is not noted."""
    notes: list[str] = field(default_factory=list[str])
    """What is missing, damaged or of another protocol, one sentence each."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.resolve().name

    def of_event(self, event: str) -> list[Record]:
        """Return the records of one kind."""
        return [record for record in self.records if record["event"] == event]

    def close(self) -> None:
        """Close the archive."""
        if self.reader is not None:
            self.reader.close()


def read_run(path: Path) -> RunData:
    """Read a run directory.

    Raises:
        RunError: It holds nothing of a run.
    """
    files = (path / CONFIG, path / METRICS, path / ARCHIVE)
    if not any(file.is_file() for file in files):
        raise RunError(
            f"no run in {path} (it has no {CONFIG}, {METRICS} or {ARCHIVE}); name another directory, or begin a run "
            f"there: cudal1-agent train --run-dir {path}"
        )
    notes = [f"{file.name} is missing: what it holds is not shown" for file in files if not file.is_file()]
    settings, text = _settings(path / CONFIG, notes)
    records, torn = parse_metrics((path / METRICS).read_bytes() if (path / METRICS).is_file() else b"", notes)
    if torn:
        notes.append(f"the last line of {METRICS} was cut off and is left out")
    reader, entries = _archive(path / ARCHIVE, notes)
    return RunData(path, is_finished(path), records, entries, reader, settings, text, _machine(path / MACHINE), notes)


def parse_metrics(whole: bytes, notes: list[str]) -> tuple[list[Record], bool]:
    """Return the readable records in a text of metrics, and whether its last line was cut off.

    Args:
        whole: The text.
        notes: Receives what was left out.
    """
    *lines, last = whole.split(b"\n")
    records: list[Record] = []
    broken: list[int] = []
    for number, line in enumerate(lines, start=1):
        record = record_of(line)
        if record is None:
            broken.append(number)
        else:
            records.append(record)
    if broken:
        shown = ", ".join(map(str, broken[:5])) + (", ..." if len(broken) > 5 else "")
        notes.append(
            f"{METRICS}: {len(broken)} of {len(lines)} lines hold no complete record and are left out ({shown})"
        )
    return records, bool(last)


def record_of(line: bytes) -> Record | None:
    """Return the record in a line of metrics, None if there is none that can be shown."""
    try:
        record: Any = json.loads(line, parse_float=_finite, parse_int=_finite_int, parse_constant=_finite)
        if not isinstance(record, dict) or not isinstance(record.get("event"), str):
            return None
        _FORMS.get(record["event"], _Shown).model_validate_json(line)
    except (ValueError, RecursionError):
        return None
    return record


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no finite number")
    return value


def _finite_int(text: str) -> int:
    return int(text) if len(text) < 20 else int(_finite(text))


def _settings(path: Path, notes: list[str]) -> tuple[Settings | None, str]:
    if not path.is_file():
        return None, ""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return Settings.model_validate_json(text), text
    except ValidationError as error:
        notes.append(f"{CONFIG} cannot be read by this version of cudal1 ({error.error_count()} faults)")
        return None, text


def _machine(path: Path) -> str | None:
    try:
        return MachineNote.model_validate_json(path.read_bytes()).machine
    except (OSError, ValidationError):
        return None


def _archive(path: Path, notes: list[str]) -> tuple[ArchiveReader | None, list[Entry]]:
    if not path.is_file():
        return None, []
    try:
        reader = ArchiveReader(path)
    except RecordError as error:
        notes.append(str(error))
        return None, []
    entries, fault = reader.entries()
    if fault is not None:
        notes.append(fault)
    protocols = Counter(entry.protocol for entry in entries)
    for protocol, count in protocols.items():
        if protocol != PROTOCOL_VERSION:
            what = f"of protocol {protocol}" if protocol else "damaged"
            notes.append(
                f"{count} of {len(entries)} verdicts are {what} and are left out: this version of cudal1 shows "
                f"protocol {PROTOCOL_VERSION}, and the two are never compared"
            )
    return reader, [entry for entry in entries if entry.protocol == PROTOCOL_VERSION]
