"""Generated tasks as they were before their arithmetic had dtypes of its own: what templates are tested on.

The generator's stream has moved on; these texts stay, as the bundled corpus's references do.
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
    """Return a generated task that is stored, or any other task, at the default size of a device."""
    return _stored()[task_id].on(device) if task_id in _stored() else load_task(task_id, device=device)


def stored_tasks(seed: int, each: int, *families: str, device: Device = "cpu") -> list[Task]:
    """Return the first tasks of a seed: so many of each family named, of all where none is."""
    found: list[Task] = []
    for name, task in _stored().items():
        match = re.fullmatch(r"generated/([a-z_]+)-(\d+)-(\d+)", name)
        if match and int(match[2]) == seed and int(match[3]) < each and (not families or match[1] in families):
            found.append(task.on(device))
    return found
