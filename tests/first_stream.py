"""Generated tasks from before the generator drew tasks in three dtypes, for tests of templates.

The generator's stream has changed since; these texts stay the same, like the bundled corpus's references.
"""

from __future__ import annotations

import functools
import gzip
import re
from pathlib import Path

from cudal1_data import Task, load_task
from cudal1_data.task import Device

_FILE = Path(__file__).with_name("first_stream.jsonl.gz")


@functools.cache
def _stored() -> dict[str, Task]:
    lines = gzip.decompress(_FILE.read_bytes()).decode().splitlines()
    tasks = [Task.model_validate_json(line) for line in lines]
    return {task.id: task for task in tasks}


def stored_task(task_id: str, *, device: Device = "cpu") -> Task:
    """Return a stored generated task, or any other task, at the default size of a device."""
    return _stored()[task_id].on(device) if task_id in _stored() else load_task(task_id, device=device)


def stored_tasks(seed: int, each: int, *families: str, device: Device = "cpu") -> list[Task]:
    """Return the first `each` stored tasks of a seed, for each of `families` (all by default)."""
    found: list[Task] = []
    for name, task in _stored().items():
        match = re.fullmatch(r"generated/([a-z_]+)-(\d+)-(\d+)", name)
        if match and int(match[2]) == seed and int(match[3]) < each and (not families or match[1] in families):
            found.append(task.on(device))
    return found
