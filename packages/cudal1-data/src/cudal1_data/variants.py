"""Which of a task's variants a machine can run."""

from __future__ import annotations

from collections.abc import Set

from cudal1_data.task import Device, Task, Variant


def usable_variants(task: Task, device: Device, have: Set[str]) -> tuple[Variant, ...]:
    """Return the variants that run on `device` and need nothing beyond `have`.

    Args:
        task: The task.
        device: Where they are to run.
        have: What the machine has (`compiler`, `cuda`, `triton`), as `cudal1-env doctor` finds it.
    """
    return tuple(variant for variant in task.variants if device in variant.devices and have >= frozenset(variant.needs))
