"""The file of a sweep: one line for each program that was judged, so that a sweep that was cut off goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cudal1_env.errors import RecordError
from cudal1_env.records import PROTOCOL_VERSION, Device, Evaluation, Precision
from cudal1_env.sweep.programs import Key


class SweepLine(BaseModel):
    """What came of one program."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    protocol: str = PROTOCOL_VERSION
    """Version of the protocol that made this line."""
    task: str
    """Task id."""
    level: int | None
    """KernelBench's level; None where it is not known."""
    task_sha256: str
    """Hash of the reference."""
    source_sha256: str
    """Hash of the program."""
    published: dict[str, float] = Field(default_factory=dict[str, float])
    """What was published of the program, by column name."""
    device: Device
    """Where it was judged."""
    precision: Precision
    """How narrow the interval had to be."""
    evaluation: Evaluation | None = None
    """The verdict; None where the judge refuses the task."""
    refused: str | None = None
    """Why the judge refuses the task."""

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if (self.evaluation is None) == (self.refused is None):
            raise ValueError("expected either an evaluation or the reason of a refusal")
        return self

    @property
    def key(self) -> Key:
        """What tells the program from others."""
        return self.task, self.task_sha256, self.source_sha256

    def with_texts(self, task_source: str, source: str) -> Self:
        """Return this line with these texts in its record."""
        return self._with(task_source=task_source, source=source)

    def without_texts(self) -> Self:
        """Return this line without the texts of others in its record: compilers quote them, too."""
        return self._with(task_source="", source="", stderr="")

    def _with(self, **texts: str) -> Self:
        one = self.evaluation
        if one is None or all(getattr(one, name) == text for name, text in texts.items()):
            return self
        return self.model_copy(update={"evaluation": one.model_copy(update=texts)})


class SweepFile:
    """The lines of a sweep on the disk, by program.

    Args:
        path: The file; made with its folder when the first line comes.
        device: Where this sweep judges.
        precision: How narrow its intervals are.
        texts: Whether texts of programs and tasks are written; such lines read back hold empty ones.

    Raises:
        RecordError: The file holds something else, or a sweep on another device or at another precision.
    """

    def __init__(self, path: Path, *, device: Device, precision: Precision, texts: bool = True) -> None:
        self.path = path
        self.texts = texts
        self.lines: dict[Key, SweepLine] = {}
        if not path.exists():
            return
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        found = data[:whole].split(b"\n")[:-1]
        rest = data[whole:]
        cut_off = rest != b"" and _is_beginning(rest)
        if rest and not cut_off:  # a last line that lacks nothing but its end, or something else
            found.append(rest)
        for number, text in enumerate(found, start=1):
            line = self._read(text, number)
            asked = (PROTOCOL_VERSION, device, precision)
            if (line.protocol, line.device, line.precision) != asked:
                raise RecordError(
                    f"expected verdicts of protocol {PROTOCOL_VERSION}, {device}, {precision} in {path}, got "
                    f"{line.protocol}, {line.device}, {line.precision} in line {number}; give another --out"
                )
            self.lines[line.key] = line
        # Nothing is changed before every line is known to be ours.
        if cut_off:  # a kill did that: the program is judged again
            os.truncate(path, whole)
        elif rest:
            with path.open("ab") as file:
                file.write(b"\n")

    def add(self, line: SweepLine) -> None:
        """Append a line; it is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            # ASCII, because texts of the program's own may hold what some readers take for the end of a line.
            written = line if self.texts else line.without_texts()
            file.write(written.model_dump_json(ensure_ascii=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines[line.key] = line

    def _read(self, text: bytes, number: int) -> SweepLine:
        try:
            return SweepLine.model_validate_json(text)
        except ValidationError as error:
            raise RecordError(
                f"expected {self.path} to be new or the file of a sweep, line {number} is not one of its lines; "
                f"give another --out ({error.error_count()} faults, the first: {error.errors()[0]['msg']})"
            ) from error


_HEAD = f'{{"protocol":"{PROTOCOL_VERSION}","task":"'.encode()
"""How every line of this protocol begins."""


def _is_beginning(text: bytes) -> bool:
    """Whether a text begins like a line and lacks its end."""
    if not text.startswith(_HEAD[: len(text)]):
        return False
    try:
        json.loads(text)
    except ValueError:
        return True
    return False
