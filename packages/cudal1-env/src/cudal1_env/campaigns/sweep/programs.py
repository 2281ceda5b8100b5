"""The programs of a file: a table with a column of programs (CUDA-L1's release), or evaluation records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cudal1_data import Device, Task, UnknownTaskError, load_suite
from cudal1_data.errors import BrokenTaskError
from cudal1_data.hashes import digest
from pydantic import TypeAdapter, ValidationError

from cudal1_env.errors import RecordError
from cudal1_env.records import Evaluation

PUBLISHED_COLUMN = "custom_code"
"""The column to which the `score_*` columns of CUDA-L1's release refer."""

_LEVEL = re.compile(r"/level(\d+)/")
_ROW: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

Key = tuple[str, str, str]
"""Task id, hash of the reference, hash of the program."""


@dataclass(frozen=True)
class Program:
    """One program to judge."""

    task: Task
    source: str
    """Program text (untrusted)."""
    level: int | None
    """KernelBench's level; None for a record whose task id does not contain it."""
    published: dict[str, float] = field(default_factory=dict[str, float])
    """Published figures by column name."""

    @cached_property
    def key(self) -> Key:
        """Return the identity of the program."""
        return self.task.id, digest(self.task.source), digest(self.source)


@dataclass(frozen=True)
class Programs:
    """The contents of a file of programs."""

    programs: tuple[Program, ...]
    """Each program once, in the file's order."""
    without: int
    """Number of tasks, or record lines, that hold no program."""
    broken: tuple[str, ...] = ()
    """Parts of the file that could not be read, with the reason."""


def read_programs(path: Path, *, column: str, only: str, device: Device, scale: int = 1) -> Programs:
    """Read the programs of a file.

    Args:
        path: A .jsonl or .parquet table, or a .jsonl file of records (of `evaluate`, or of a sweep).
        column: The table's column with the programs.
        only: Selection, separated by commas: levels (`level1`), ids or their ends (`level1/12`). Empty for all.
        device: Device for which task sizes are chosen.
        scale: Divisor of the batch sizes of a table's tasks; records keep their own task.

    Raises:
        DataError: The file holds no such table, or an item of `only` selects nothing.
        RecordError: A record in the file cannot be read.
    """
    found = _records(path) if _holds_records(path) else _table(path, column, device, scale)
    items = [item.strip() for item in only.split(",") if item.strip()]
    for item in items:
        if not any(_selected(program, [item]) for program in found.programs):
            raise UnknownTaskError(
                f"--only has {item!r}, and no program of {path} is that; name levels (level1) or tasks (level1/12)"
            )
    chosen: dict[Key, Program] = {}
    for program in found.programs:
        if not items or _selected(program, items):
            chosen.setdefault(program.key, program)
    return Programs(tuple(chosen.values()), found.without, found.broken)


def _selected(program: Program, items: Sequence[str]) -> bool:
    names = {program.task.id, program.task.id.partition("@")[0]}
    return any(
        item == f"level{program.level}" or item in names or any(name.endswith(f"/{item}") for name in names)
        for item in items
    )


def _table(path: Path, column: str, device: Device, scale: int) -> Programs:
    suite = load_suite(path, device=device, scale=scale)
    programs = tuple(
        Program(
            task,
            suite.programs[task.id][column],
            task.level,
            dict(suite.scores.get(task.id, {})) if column == PUBLISHED_COLUMN else {},
        )
        for task in suite
        if column in suite.programs.get(task.id, {})
    )
    if not programs:
        columns = sorted({name for columns in suite.programs.values() for name in columns})
        raise BrokenTaskError(
            f"{path}: there are no programs in the column {column}; "
            + (f"--column takes {', '.join(columns)}" if columns else "no column ends in _code")
        )
    broken = tuple(str(one.error) for one in suite.broken)
    return Programs(programs, len(suite) - len(programs), broken)


def _holds_records(path: Path) -> bool:
    """Return whether the first line of a file is a record or a line of a sweep."""
    if path.suffix != ".jsonl":
        return False
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"")
    try:
        row = _ROW.validate_json(first)
    except ValidationError:
        return False
    return "task_source" in row or "evaluation" in row


def _records(path: Path) -> Programs:
    programs: list[Program] = []
    without = 0
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _ROW.validate_json(line)
            if row.get("evaluation", row) is None:  # line of a refused task
                without += 1
                continue
            record = Evaluation.model_validate(row.get("evaluation", row))
        except ValidationError as error:
            raise RecordError(f"{path}, line {number}: no record as JSON ({error}); remove the line") from error
        if record.source:
            programs.append(_of_record(record, row.get("published", {})))
        else:
            without += 1
    return Programs(tuple(programs), without)


def _of_record(record: Evaluation, published: dict[str, float]) -> Program:
    level = _LEVEL.search(record.task)
    number = int(level[1]) if level else None
    task = Task(id=record.task, source=record.task_source, name=record.task, level=number or 1, origin="record")
    return Program(task, record.source, number, published)
