"""Task files: one `.py`, a folder of them, or a KernelBench checkout (`KernelBench/level1/12_Name.py`)."""

from __future__ import annotations

import re
from pathlib import Path

from cudal1_data.errors import BrokenTaskError, UnknownSuiteError
from cudal1_data.sources.kernelbench import noted
from cudal1_data.suite import Broken, Suite
from cudal1_data.task import Task, check_reference

LEVEL_FOLDER = re.compile(r"level(?P<level>[1-9]\d*)")
PROBLEM_FILE = re.compile(r"(?P<number>\d+)_(?P<name>.+)")


def load_folder(folder: Path) -> Suite:
    """Load a KernelBench checkout (the repository's root, or its KernelBench folder), or a folder of task files.

    The files are those in folders `level<N>/` if there are any, else those in the folder itself. See `load_file` for
    their ids.

    Args:
        folder: The folder.

    Raises:
        UnknownSuiteError: The folder holds no task file.
    """
    inner = folder / "KernelBench"
    root = inner if inner.is_dir() else folder
    levels = sorted(
        (int(match["level"]), path)
        for path in root.iterdir()
        if path.is_dir() and (match := LEVEL_FOLDER.fullmatch(path.name))
    )
    folders = [level for _, level in levels] or [root]
    paths = [path for one in folders for path in sorted(one.glob("*.py"), key=_order)]
    if not paths:
        raise UnknownSuiteError(
            f"{folder} holds no task: neither NAME.py nor level1/NAME.py; put task files there, or name a .jsonl, "
            ".parquet or .py file"
        )
    tasks: dict[str, Task] = {}
    files: dict[str, Path] = {}
    broken: list[Broken] = []
    for path in paths:
        try:
            task = load_file(path)
            if task.id in tasks:
                raise BrokenTaskError(
                    f"{path}: the task id {task.id} occurs here and in {files[task.id]}, which counts; "
                    "give one of them another number"
                )
        except BrokenTaskError as error:
            broken.append(Broken(path, error))
        else:
            tasks[task.id], files[task.id] = task, path
    return Suite(str(folder), tasks.values(), broken=broken)


def load_file(path: Path) -> Task:
    """Load one task file in KernelBench's form.

    A file `level1/12_Name.py` is `kernelbench/level1/12`, any other is `file/<stem>` (level 1 unless its folder is
    `level<N>`).

    Raises:
        BrokenTaskError: The file is unusable; the message says what is missing.
    """
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenTaskError(f"{path}: cannot read the file as UTF-8: {error}") from error
    check_reference(source, where=str(path))
    parent = LEVEL_FOLDER.fullmatch(path.absolute().parent.name)
    level = int(parent["level"]) if parent else 1
    problem = PROBLEM_FILE.fullmatch(path.stem)
    if parent and problem:
        number = int(problem["number"])
        task = Task(
            id=f"kernelbench/level{level}/{number}",
            source=source,
            name=human_name(path.stem),
            level=level,
            origin="kernelbench",
        )
        return with_notes(task, where=str(path))
    return Task(id=f"file/{path.stem}", source=source, name=human_name(path.stem), level=level, origin="file")


def with_notes(task: Task, *, where: str) -> Task:
    """Return a task with the facts from KernelBench's notes.

    Args:
        task: The task.
        where: File or row to name in the error.

    Raises:
        BrokenTaskError: Its text is nested too deeply to compare it with KernelBench's.
    """
    try:
        return noted(task)
    except (MemoryError, RecursionError) as error:
        raise BrokenTaskError(
            f"{where}: the text cannot be compared with KernelBench's, because it is nested too deeply (a sum of "
            "hundreds of terms, say); write it in several statements"
        ) from error


def human_name(stem: str) -> str:
    """Turn a KernelBench file name into words.

    >>> human_name("12_Matmul_with_diagonal_matrices_")
    'Matmul with diagonal matrices'
    """
    problem = PROBLEM_FILE.fullmatch(stem)
    return " ".join((problem["name"] if problem else stem).replace("_", " ").split())


def _order(path: Path) -> tuple[int, str]:
    problem = PROBLEM_FILE.fullmatch(path.stem)
    return (int(problem["number"]) if problem else 10**9, path.name)
