"""Specifications of suites and tasks.

| form | meaning |
| --- | --- |
| `starter` | the bundled suite at its default sizes |
| `kernelbench` | KernelBench from the Hugging Face hub |
| `generated` | generated tasks of all families (`cudal1_data.generator`) |
| `generated:softmax+scan?n=200&seed=7` | generated tasks of some families, with options |
| `generated?n=200:level1` | generated tasks of one level |
| `generated/softmax-7-12` | one generated task, by its id |
| `path/to/folder` | a folder of task files, or a KernelBench checkout |
| `path/to/file.jsonl`, `.parquet` | a table with KernelBench's or CUDA-L1's columns |
| `path/to/file.py` | one task file |
| `FORM:level1`, `FORM:level1,level2` | its tasks of these levels |
| `FORM:level1/12`, `starter:diag_matmul` | one of its tasks |
| `starter/diag_matmul`, `kernelbench/level1/12` | the same, as a task id |
| `starter/diag_matmul@N=384,M=3000` | a task at another size |
| `FILE.parquet:level1/12@M=64` | the task whose id ends so, else `level1/12` at that size |
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from cudal1_data.errors import DataError, UnknownSuiteError, UnknownTaskError
from cudal1_data.sizes import ENTRY, SIZE, ends_in, parse_size, unsized
from cudal1_data.sources.folder import PROBLEM_FILE, load_file, load_folder
from cudal1_data.sources.generator import load_generated, load_named
from cudal1_data.sources.hub import check_names, load_hub
from cudal1_data.sources.scale import scaled_suite
from cudal1_data.sources.starter import load_starter
from cudal1_data.sources.table import load_table
from cudal1_data.suggest import did_you_mean, nearest
from cudal1_data.suite import Broken, Suite
from cudal1_data.task import Device, Task

NAMED_SUITES = ("starter", "kernelbench", "generated")
TABLE_SUFFIXES = (".jsonl", ".parquet")
GENERATED = re.compile(r"(?P<request>generated(?:(?=\?)|:(?!level\d|\w+-\d)[^:?]*)(?:\?[^:]*)?)(?::(?P<selection>.*))?")
"""Families and options, followed by a selection; `generated:level1` has only a selection."""
LEVEL = re.compile(r"level([1-9]\d*)")
BETWEEN = re.compile(rf",(?!{ENTRY}(?:,|$))")
"""The commas between items of a selection; other commas separate the constants of a size."""


def load_suite(
    spec: str | Path,
    *,
    device: Device = "cpu",
    levels: Iterable[int] | None = None,
    ids: Iterable[str] | None = None,
    cache_dir: Path | None = None,
    scale: int = 1,
    memory_bytes: int | None = None,
) -> Suite:
    """Load a suite.

    Args:
        spec: Name, folder or file, optionally with a colon and a selection (see the module's table).
        device: Device whose default sizes to use, for tasks that declare sizes.
        levels: Keep only these levels.
        ids: Keep only these tasks, by id or by the end of it, in this order.
        cache_dir: Cache folder of the Hugging Face hub, for `kernelbench`.
        scale: Divide batch sizes by this; see `cudal1_data.sources.scale`. Unscalable tasks go to `Suite.broken`.
        memory_bytes: Divide the batch sizes of tasks whose tensors take more than this.

    Raises:
        DataError: The device is unknown.
        UnknownSuiteError: The name is unknown; the message offers the nearest names.
        UnknownTaskError: The suite has no such task; the message offers the nearest ids.
        BrokenTaskError: A single task file, or a whole table, is unusable. In a folder or table with other tasks,
            broken ones are listed in `Suite.broken` instead.

    >>> load_suite("starter/diag_matmul").ids
    ('starter/diag_matmul',)
    """
    if device not in get_args(Device):
        raise DataError(f"unknown device {device!r}; {did_you_mean(device, get_args(Device))}")
    text = str(spec)
    source, selection = _divide(text)
    level_choice = {int(match[1]) for item in selection if (match := LEVEL.fullmatch(item))}
    mentioned = {int(match[1]) for item in selection if (match := LEVEL.match(item))}
    levels = None if levels is None else set(levels)
    names = [item for item in selection if not LEVEL.fullmatch(item)]
    if source == "generated" and names:
        suite = load_named(list(dict.fromkeys(map(unsized, names))), device)
    else:
        if source == "kernelbench":
            check_names(names)
        suite = _load(source, device, mentioned or levels, cache_dir)
    if level_choice:
        suite = suite.where(lambda task: task.level in level_choice)
    if levels is not None:
        suite = suite.where(lambda task: task.level in levels)
    if names:
        suite = _chosen(suite, names)
    if ids is not None:
        suite = _chosen(suite, ids)
    if not suite and not suite.broken:
        raise UnknownTaskError(f"the selection of {text!r} leaves no task; leave out a level or a name")
    if scale != 1 or memory_bytes is not None:
        suite = scaled_suite(suite, scale=scale, memory_bytes=memory_bytes)
    return suite


def load_task(spec: str | Path, *, device: Device = "cpu", cache_dir: Path | None = None) -> Task:
    """Load one task: a task file, or a suite form that selects one task.

    Args:
        spec: See the module's table.
        device: Device whose default size to use, unless the id names a size.
        cache_dir: Cache folder of the Hugging Face hub.

    Raises:
        UnknownSuiteError: The suite is unknown.
        UnknownTaskError: No task, or more than one, has that name.
        BrokenTaskError: The task's file is unusable.

    >>> load_task("starter/diag_matmul@N=8,M=4").id
    'starter/diag_matmul@N=8,M=4'
    """
    suite = load_suite(spec, device=device, cache_dir=cache_dir)
    if len(suite) == 1:
        return suite[0]
    if not suite:
        raise suite.broken[0].error
    raise UnknownTaskError(
        f"{spec} is a suite of {len(suite)} tasks, not one task; "
        f"name one, e.g. {str(spec).partition(':')[0]}:{suite.ids[0].split('/', 1)[-1]}"
    )


def _divide(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a specification into source and selection: `starter:level1` into `starter` and `level1`."""
    if request := GENERATED.fullmatch(text):
        return request["request"], _items(request["selection"] or "")
    named = text.partition(":")[0].partition("/")[0] in NAMED_SUITES
    if not named and Path(text).exists():
        return text, ()
    source, colon, selection = text.partition(":")
    if not colon and named:
        source, _, selection = text.partition("/")
    return source, _items(selection)


def _items(selection: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in BETWEEN.split(selection) if item.strip())


def _load(source: str, device: Device, levels: set[int] | None, cache_dir: Path | None) -> Suite:
    if source == "starter":
        return _starter(device)
    if source == "generated" or GENERATED.fullmatch(source):
        return load_generated(source, device)
    if source == "kernelbench":
        return load_hub(levels, cache_dir=cache_dir)
    path = Path(source)
    if path.is_dir():
        return load_folder(path)
    if path.is_file() and path.suffix in TABLE_SUFFIXES:
        return load_table(path)
    if path.is_file() and path.suffix == ".py":
        task = load_file(path)
        return Suite(source, [task])
    raise _unknown(source, path)


@functools.cache
def _starter(device: Device) -> Suite:
    """Load the bundled suite once per process: an environment needs it at each reset."""
    return load_starter(device)


def _unknown(source: str, path: Path) -> UnknownSuiteError:
    if path.is_file():
        return UnknownSuiteError(f"cannot read tasks from {source}: name a .jsonl, .parquet or .py file")
    siblings: list[str] = []
    kinds = (*TABLE_SUFFIXES, ".py")
    if source.startswith("file/") and path.suffix not in kinds:
        fix = f"write FOLDER:{source.removeprefix('file/')}, or the path of its .py file"
        return UnknownSuiteError(f"{source} does not say which folder or table has the task; {fix}")
    if path.parent.is_dir() and path.parent != path:
        siblings = [str(entry) for entry in path.parent.iterdir() if entry.is_dir() or entry.suffix in kinds]
    near = nearest(source, [*NAMED_SUITES, *siblings, *_starter("cpu").ids])
    known = f"there are {', '.join(NAMED_SUITES)}, folders, and .jsonl, .parquet and .py files"
    fix = f"did you mean {', '.join(near)}?" if near else known
    what = f"there is no file {source}" if path.suffix in kinds else f"unknown suite {source!r}"
    return UnknownSuiteError(f"{what}; {fix}")


def _chosen(suite: Suite, names: Iterable[str]) -> Suite:
    tasks = [_named(suite, name) for name in names]
    programs = {task.id: suite.programs[task.id] for task in tasks if task.id in suite.programs}
    scores = {task.id: suite.scores[task.id] for task in tasks if task.id in suite.scores}
    return Suite(suite.name, tasks, programs=programs, scores=scores)


def _named(suite: Suite, name: str) -> Task:
    """Return the task with the exact name, else the task with the name without its size, at that size."""
    size = SIZE.search(name)
    if size is None or suite.matches(name):
        base, size = name, None
    else:
        base = unsized(name)
    broken = [entry for entry in suite.broken if _goes_by(entry, base)]
    if broken and not suite.matches(base):
        raise broken[0].error
    return suite[base].at(parse_size(size["size"])) if size else suite[base]


def _goes_by(entry: Broken, name: str) -> bool:
    """Return whether a name means a broken task: by its id, its file's stem, or level and number."""
    if entry.task_id is not None and (ends_in(entry.task_id, name) or ends_in(unsized(entry.task_id), name)):
        return True
    problem = PROBLEM_FILE.fullmatch(entry.path.stem)
    numbered = f"{entry.path.parent.name}/{problem['number']}" if problem else entry.path.stem
    return entry.path.stem == name.rsplit("/", 1)[-1] or name == numbered or name.endswith(f"/{numbered}")
