"""Lookup of the task that a user named."""

from __future__ import annotations

from cudal1_data import Device, Task, load_task


def find_task(name: str, device: Device) -> Task:
    """Return a task by id, or from a file in KernelBench's form.

    Args:
        name: `suite/task`, or a path that ends in `.py`.
        device: Device whose default size is used for a task with a shape family.

    Raises:
        DataError: The suite or task is unknown, or the file is broken.
    """
    return load_task(name, device=device)
