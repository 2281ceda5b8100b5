"""Export of tasks: a table with KernelBench's columns, or a folder in KernelBench's layout."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from cudal1_data.errors import DataError
from cudal1_data.parquet import write_rows
from cudal1_data.sizes import unsized
from cudal1_data.task import Task

FILE_SUFFIXES = (".jsonl", ".parquet")
NAME_LENGTH = 80
"""Maximum number of characters of a task's name in a file name; KernelBench's names are shorter."""


class ExportRow(TypedDict):
    """KernelBench's four columns, then those that `load_suite` needs to restore the tasks."""

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
        number = _number(task)
        numbers[task.id] = counts[task.level] if number is None else number
    return numbers


def export(tasks: Sequence[Task], out: Path) -> None:
    """Write tasks to `out`: a `.jsonl` or `.parquet` file, or a folder for a name without an ending.

    Both are written to a temporary path and renamed, so a full disk leaves no partial output. In a folder, numbered
    tasks become `level1/12_Name.py` (at any size), others `level1/diag_matmul.py`; other fields are lost.

    Args:
        tasks: Tasks to write.
        out: Path to write; an existing file is replaced, a folder must be empty or new.

    Raises:
        DataError: The folder is not empty, the name ends in another file type, or two tasks would have the same name
            in a folder.
    """
    if names_folder(out):
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


def names_folder(out: Path) -> bool:
    """Return whether an output path is an empty or new folder; otherwise it is a file of a known type.

    Raises:
        DataError: The name ends in another file type, or the folder is not empty.
    """
    if out.suffix in FILE_SUFFIXES:
        return False
    if out.suffix and not out.is_dir():
        raise DataError(
            f"cannot export to {out}: name a file that ends in {' or '.join(FILE_SUFFIXES)}, or a folder "
            "(a new one has no dot in its name)"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"the folder {out} is not empty; name a new or empty one")
    return True


def _number(task: Task) -> int | None:
    last = unsized(task.id).rsplit("/", 1)[-1]
    return int(last) if last.isdecimal() else None


def _export_folder(tasks: Sequence[Task], out: Path) -> None:
    files: dict[tuple[int, int | str], Task] = {}
    for task in tasks:
        number = _number(task)
        place = (task.level, task.id.rsplit("/", 1)[-1] if number is None else number)
        if place in files:
            raise DataError(
                f"the tasks {files[place].id} and {task.id} would have one name in a folder; "
                f"name a file instead ({out}.parquet)"
            )
        files[place] = task
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(out.name + ".part")
    if aside.exists():
        raise DataError(f"{aside} exists already, where {out} is written first; remove it")
    aside.mkdir()
    try:
        for (level, name), task in files.items():
            path = aside / f"level{level}" / (f"{name}.py" if isinstance(name, str) else f"{name}_{_words(task)}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(task.source, encoding="utf-8")
        aside.replace(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _words(task: Task) -> str:
    """Return a task's name as part of a file name, cut to `NAME_LENGTH`."""
    return re.sub(r"[^A-Za-z0-9]+", "_", task.name)[:NAME_LENGTH].strip("_") or "Task"
