"""The results file of a sweep: one line for each program that was judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cudal1_env.campaigns.sweep.programs import Key
from cudal1_env.errors import TOO_LARGE
from cudal1_env.records import PROTOCOL_VERSION, Device, Evaluation, Precision
from cudal1_env.records.results import ResultsFile, form_of


class SweepLine(BaseModel):
    """The result of one program."""

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
    """Precision of the interval."""
    evaluation: Evaluation | None = None
    """The verdict; None where the judge refuses the task."""
    refused: str | None = None
    """Why the judge refuses the task."""

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if (self.evaluation is None) == (self.refused is None):
            raise ValueError("a line needs either an evaluation or the reason of a refusal")
        return self

    @property
    def key(self) -> Key:
        """Identity of the program."""
        return self.task, self.task_sha256, self.source_sha256

    @property
    def too_large(self) -> bool:
        """Whether the task was refused for lack of memory, which others may have held."""
        return self.refused is not None and TOO_LARGE in self.refused

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


_FORM = form_of(
    SweepLine,
    "a sweep",
    head=f'{{"protocol":"{PROTOCOL_VERSION}","task":"',
    conditions=lambda line: (f"protocol {line.protocol}", line.device, line.precision),
)


def _write_without_texts(line: SweepLine) -> bytes:
    return _FORM.write(line.without_texts())


_WITHOUT_TEXTS = replace(_FORM, write=_write_without_texts)


class SweepFile(ResultsFile[SweepLine]):
    """The lines of a sweep on the disk.

    Args:
        path: The file; made with its folder when the first line comes.
        device: Where this sweep judges.
        precision: How narrow its intervals are.
        texts: Whether texts of programs and tasks are written; such lines read back hold empty ones.
        known: Files whose verdicts are known, too.
        join: Files whose lines are copied to the file.

    Raises:
        RecordError: A file holds something else, or a sweep on another device or at another precision.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: Device,
        precision: Precision,
        texts: bool = True,
        known: Sequence[Path] = (),
        join: Sequence[Path] = (),
    ) -> None:
        form = _FORM if texts else _WITHOUT_TEXTS
        self.programs: dict[Key, SweepLine] = {}
        """What is known of each program: its last line, but no lack of memory where there is a verdict."""
        super().__init__(path, form, (f"protocol {PROTOCOL_VERSION}", device, precision), known=known, join=join)
        for line in self.known:
            self._hold(line)

    def add(self, line: SweepLine) -> SweepLine:
        """Append a line; it is on the disk when this returns."""
        self._hold(line)
        return super().add(line)

    def _hold(self, line: SweepLine) -> None:
        if not line.too_large or line.key not in self.programs:
            self.programs[line.key] = line
