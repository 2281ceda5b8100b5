"""From what a user typed to a task."""

from __future__ import annotations

from cudal1_data import Device, Task, load_task


def find_task(name: str, device: Device) -> Task:
    """Return a task by id, or from a file in KernelBench's form.

    Args:
        name: `suite/task`, or a path that ends in `.py`.
        device: Device at whose default size a task with a shape family is taken.

    Raises:
        DataError: No such suite or task, or a broken file.
    """
    return load_task(name, device=device)
