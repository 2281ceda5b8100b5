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
    """KernelBench's level; None if unknown."""
    task_sha256: str
    """Hash of the reference."""
    source_sha256: str
    """Hash of the program."""
    published: dict[str, float] = Field(default_factory=dict[str, float])
    """Published figures of the program, by column name."""
    device: Device
    """Kind of device that judged it."""
    precision: Precision
    """Precision of the interval."""
    evaluation: Evaluation | None = None
    """The verdict; None if the judge refuses the task."""
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
        """Return whether the task was refused for lack of memory, which other processes may have held."""
        return self.refused is not None and TOO_LARGE in self.refused

    def with_texts(self, task_source: str, source: str) -> Self:
        """Return this line with these texts in its record."""
        return self._with(task_source=task_source, source=source)

    def without_texts(self) -> Self:
        """Return this line without the program texts in its record, and without stderr, where compilers quote them."""
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
        path: The file; it and its folder are made with the first line.
        device: Device of this sweep.
        precision: Precision of its intervals.
        texts: Whether to write the texts of programs and tasks; otherwise lines are read back with empty texts.
        known: Further files whose verdicts count as known.
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
        """The last line of each program; a refusal for lack of memory does not replace a verdict."""
        super().__init__(path, form, (f"protocol {PROTOCOL_VERSION}", device, precision), known=known, join=join)
        for line in self.known:
            self._hold(line)

    def add(self, line: SweepLine) -> SweepLine:
        """Append a line and return it after it has reached the disk."""
        self._hold(super().add(line))
        return line

    def _hold(self, line: SweepLine) -> None:
        if not line.too_large or line.key not in self.programs:
            self.programs[line.key] = line
