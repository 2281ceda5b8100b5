"""Selection of the variants that a machine can run."""

from __future__ import annotations

from collections.abc import Set

from cudal1_data.task import Device, Task, Variant


def usable_variants(task: Task, device: Device, have: Set[str]) -> tuple[Variant, ...]:
    """Return the variants that run on `device` and need only what is in `have`.

    Args:
        task: The task.
        device: Device that runs them.
        have: The machine's tools (`compiler`, `cuda`, `triton`), as `cudal1-env doctor` finds them.
    """
    return tuple(variant for variant in task.variants if device in variant.devices and have >= frozenset(variant.needs))
