"""Tables of tasks: `.jsonl` or `.parquet` with KernelBench's columns or those of CUDA-L1's release."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cudal1_data.errors import BrokenTaskError
from cudal1_data.parquet import read_rows
from cudal1_data.sources.folder import human_name, with_notes
from cudal1_data.sources.kernelbench import described
from cudal1_data.suite import Broken, Suite
from cudal1_data.task import Split, Task, check_reference

PROGRAM_SUFFIX = "_code"
SCORE_PREFIX = "score_"

Rows = Sequence[dict[str, Any] | BrokenTaskError]
"""Rows of a table, with an error in place of each invalid row."""


def _none_is_empty(value: object) -> object:
    return () if value is None else value


class KernelBenchRow(BaseModel):
    """KernelBench's columns, and those that `cudal1-data export` adds; others are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    code: str
    """Reference program."""
    level: int = Field(ge=1)
    """KernelBench's level."""
    name: str
    """File name without its ending, or a human name."""
    problem_id: int
    """Number within the level."""
    id: str | None = None
    """Task id, if not `kernelbench/level<level>/<problem_id>`."""
    split: Split | None = None
    """The task's split; None means `test`."""
    category: str | None = None
    """Kind of operation."""
    tags: Annotated[tuple[str, ...], BeforeValidator(_none_is_empty)] = ()
    """Free tags."""
    overlaps: str | None = None
    """KernelBench task with the same operator graph."""

    def task(self) -> Task:
        """Return the row as a task."""
        task_id = self.id or f"kernelbench/level{self.level}/{self.problem_id}"
        return Task(
            id=task_id,
            source=self.code,
            name=human_name(self.name),
            level=self.level,
            origin=task_id.split("/", 1)[0],
            split=self.split or "test",
            category=self.category or "",
            tags=self.tags,
            overlaps=self.overlaps,
        )


class ReleaseRow(BaseModel):
    """The columns of CUDA-L1's release; `*_code` go to `Suite.programs`, `score_*` to `Suite.scores`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ref_code: str
    """Reference program."""
    level_id: int = Field(ge=1)
    """KernelBench's level."""
    task_id: int
    """Number within the level."""

    def task(self) -> Task:
        """Return the row as a task."""
        return Task(
            id=f"cuda-l1/level{self.level_id}/{self.task_id}",
            source=self.ref_code,
            name=described(self.ref_code) or f"KernelBench level {self.level_id} problem {self.task_id}",
            level=self.level_id,
            origin="cuda-l1",
            overlaps=f"kernelbench/level{self.level_id}/{self.task_id}",
        )


def load_table(path: Path) -> Suite:
    """Load a `.jsonl` or `.parquet` file.

    Raises:
        BrokenTaskError: The file is no table. A single bad row goes to `Suite.broken`.
    """
    return suite_of_rows(str(path), [(path, rows_of(path))])


def rows_of(path: Path) -> Rows:
    """Return the rows of a table, with an error in place of a line that is no JSON object.

    Raises:
        BrokenTaskError: The file is unreadable or empty.
    """
    try:
        rows: Rows = read_rows(path) if path.suffix == ".parquet" else list(_jsonl(path))
    except OSError as error:
        raise BrokenTaskError(f"{path}: cannot read the table: {error}") from error
    if not rows:
        raise BrokenTaskError(f"{path}: the table has no rows")
    return rows


def suite_of_rows(name: str, tables: Iterable[tuple[Path, Rows]]) -> Suite:
    """Return a suite made from rows.

    Args:
        name: The suite's name.
        tables: Rows with their file.
    """
    tasks: list[Task] = []
    broken: list[Broken] = []
    programs: dict[str, dict[str, str]] = {}
    scores: dict[str, dict[str, float]] = {}
    places: dict[str, str] = {}
    for path, rows in tables:
        for number, row in enumerate(rows, start=1):
            try:
                if isinstance(row, BrokenTaskError):
                    raise row
                where = f"{path}, row {number}"
                task = _task(row, where=where)
                if task.id in places:
                    raise BrokenTaskError(
                        f"{where}: the task id {task.id} occurs here and in {places[task.id]}, which counts"
                    )
                places[task.id] = where
            except BrokenTaskError as error:
                broken.append(Broken(path, error, _id_of(row)))
                continue
            tasks.append(task)
            if columns := _programs(row):
                programs[task.id] = columns
            if figures := _scores(row):
                scores[task.id] = figures
    return Suite(name, tasks, broken=broken, programs=programs, scores=scores)


def _task(row: dict[str, Any], *, where: str) -> Task:
    form = ReleaseRow if "ref_code" in row else KernelBenchRow
    try:
        task = form.model_validate(row).task()
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise BrokenTaskError(
            f"{where}: {details}; a row needs the columns {', '.join(_required(KernelBenchRow))} (KernelBench) "
            f"or {', '.join(_required(ReleaseRow))} (CUDA-L1)"
        ) from error
    check_reference(task.source, where=f"{where} ({task.id})")
    return with_notes(task, where=where)


def _id_of(row: dict[str, Any] | BrokenTaskError) -> str | None:
    """Return the task id of a bad row, if its columns have one."""
    if isinstance(row, BrokenTaskError):
        return None
    if isinstance(row.get("id"), str):
        return row["id"]
    released = "level_id" in row
    level, number = (row.get("level_id"), row.get("task_id")) if released else (row.get("level"), row.get("problem_id"))
    if level is None or number is None:
        return None
    return f"{'cuda-l1' if released else 'kernelbench'}/level{level}/{number}"


def _required(form: type[BaseModel]) -> list[str]:
    return [name for name, field in form.model_fields.items() if field.is_required()]


def _programs(row: dict[str, Any]) -> dict[str, str]:
    return {
        column: text
        for column, text in row.items()
        if column.endswith(PROGRAM_SUFFIX) and column != "ref_code" and isinstance(text, str)
    }


def _scores(row: dict[str, Any]) -> dict[str, float]:
    return {
        column: float(value)
        for column, value in row.items()
        if column.startswith(SCORE_PREFIX) and isinstance(value, int | float) and math.isfinite(value)
    }


def _jsonl(path: Path) -> Iterator[dict[str, Any] | BrokenTaskError]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row: object = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                yield BrokenTaskError(f"{path}, line {number}: the line is no JSON object: {error}")
                continue
            if isinstance(row, dict):
                yield cast("dict[str, Any]", row)
            else:
                yield BrokenTaskError(
                    f"{path}, line {number}: the line holds a {type(row).__name__}; write one JSON object a line"
                )
