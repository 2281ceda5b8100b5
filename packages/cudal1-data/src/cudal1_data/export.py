"""Writing tasks out: a table with KernelBench's columns, or a folder of KernelBench's layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from cudal1_data.errors import DataError
from cudal1_data.parquet import write_rows
from cudal1_data.task import Task


class ExportRow(TypedDict):
    """KernelBench's four columns, then what `load_suite` needs to give back the same tasks."""

    code: str
    level: int
    name: str
    problem_id: int
    id: str
    split: str
    category: str
    tags: list[str]
    overlaps: str | None


def rows(tasks: Sequence[Task]) -> list[ExportRow]:
    """Return tasks as rows; a task whose id has no number gets its position within its level."""
    numbers = problem_numbers(tasks)
    return [
        ExportRow(
            code=task.source,
            level=task.level,
            name=task.name,
            problem_id=numbers[task.id],
            id=task.id,
            split=task.split,
            category=task.category,
            tags=list(task.tags),
            overlaps=task.overlaps,
        )
        for task in tasks
    ]


def problem_numbers(tasks: Sequence[Task]) -> dict[str, int]:
    """Return each task's number within its level: the one in its id, else its position, counted from 1."""
    numbers: dict[str, int] = {}
    counts: dict[int, int] = {}
    for task in tasks:
        counts[task.level] = counts.get(task.level, 0) + 1
        last = task.id.rsplit("/", 1)[-1]
        numbers[task.id] = int(last) if last.isdecimal() else counts[task.level]
    return numbers


def export(tasks: Sequence[Task], out: Path) -> None:
    """Write tasks to `out`: a `.jsonl` or `.parquet` file, or a folder for any other name.

    A file is written aside and renamed, so a full disk leaves no half of it. In a folder, numbered tasks become
    `level1/12_Name.py`, others `level1/diag_matmul.py`.

    Args:
        tasks: What to write.
        out: Where to; a file that is there is replaced, a folder must be empty or new.

    Raises:
        DataError: The folder holds something, or the name ends in another file type.
    """
    if out.suffix not in ("", ".jsonl", ".parquet"):
        raise DataError(f"expected a name that ends in .jsonl or .parquet, or a folder, got {out}")
    if not out.suffix:
        _export_folder(tasks, out)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(out.name + ".part")
    try:
        if out.suffix == ".jsonl":
            aside.write_text("".join(json.dumps(row) + "\n" for row in rows(tasks)), encoding="utf-8")
        else:
            write_rows(rows(tasks), aside)
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)


def _export_folder(tasks: Sequence[Task], out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"expected a new or empty folder, got {out}, which holds something; name another")
    for task in tasks:
        last = task.id.rsplit("/", 1)[-1]
        stem = f"{last}_{task.name.replace(' ', '_').replace('/', '_')}" if last.isdecimal() else last
        path = out / f"level{task.level}" / f"{stem}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(task.source, encoding="utf-8")
