"""The starter suite's variants for a GPU, and sizes at which an interpreter can run them."""

from __future__ import annotations

from pathlib import Path

import check_starter
import torch
from cudal1_data import Task, Variant
from cudal1_data.sources.starter import STARTER_FOLDER, load_starter_task
from cudal1_data.techniques import classify
from template_programs import imported

CAPS = ((32, 64, 16, 32, 24), (13, 21, 19, 37, 11))
"""Constants above 8 are capped at these, in order: even ones for vectors, odd ones for remainders."""
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "argmax_rows": ({"B": 9, "N": 1280}, {"B": 2, "N": 2055}, {"B": 3, "N": 7}),
    "avg_pool_window": (
        {"BATCH": 1, "CH": 2, "H": 35, "W": 72, "K": 4},
        {"BATCH": 1, "CH": 1, "H": 69, "W": 37, "K": 5},
    ),
    "batched_matmul": ({"B": 2, "N": 64, "K": 32, "M": 68}, {"B": 3, "N": 37, "K": 41, "M": 7}),
    "conv_depthwise_loop": (
        {"BATCH": 1, "CH": 2, "H": 66, "W": 40},
        {"BATCH": 2, "CH": 1, "H": 17, "W": 67},
    ),
    "conv_transpose_1d": (
        {"BATCH": 2, "IN_CH": 16, "OUT_CH": 32, "T": 64},
        {"BATCH": 1, "IN_CH": 19, "OUT_CH": 37, "T": 67},
    ),
    "conv_transpose_patch": (
        {"BATCH": 2, "IN_CH": 16, "OUT_CH": 9, "P": 4, "H": 8, "W": 12},
        {"BATCH": 1, "IN_CH": 13, "OUT_CH": 5, "P": 2, "H": 7, "W": 21},
        {"BATCH": 1, "IN_CH": 9, "OUT_CH": 15, "P": 3, "H": 5, "W": 9},
    ),
    "cumsum_matmul": ({"ROWS": 9, "N": 1100}, {"ROWS": 2, "N": 1063}),
    "cumulative_max_range": ({"B": 2, "T": 40, "C": 72}, {"B": 3, "T": 29, "C": 37}),
    "diag_matmul": ({"N": 9, "M": 1200}, {"N": 7, "M": 1031}),
    "gru_like_cell": (
        {"BATCH": 3, "T": 5, "DIM": 16, "HIDDEN": 32},
        {"BATCH": 1, "T": 2, "DIM": 19, "HIDDEN": 261},
    ),
}
"""Sizes for kernels with several passes or other remainders."""


def variants_for_gpu(backends: tuple[str, ...]) -> list[tuple[str, Variant]]:
    """Return the variants that run only on a GPU and use one of `backends`, with their tasks' names."""
    found: list[tuple[str, Variant]] = []
    for path in sorted(STARTER_FOLDER.iterdir()):
        if (path / "task.toml").exists():
            for variant in load_starter_task(path).variants:
                if variant.devices != ("cuda",):
                    continue
                tags = classify(variant.source)
                if tags is not None and tags.backend in backends:
                    found.append((path.name, variant))
    return found


def small_sizes(task: Task) -> tuple[dict[str, int], ...]:
    """Return sizes of a starter task that a double runs in a fraction of a second."""
    default = task.sizes["cpu"].default
    return SIZES.get(task.id.removeprefix("starter/")) or tuple(
        {
            constant: min(size, caps[place % len(caps)]) if size > 8 else size
            for place, (constant, size) in enumerate(default.items())
        }
        for caps in CAPS
    )


def small_tasks(name: str) -> list[Task]:
    """Return a starter task at its small sizes."""
    task = load_starter_task(STARTER_FOLDER / name)
    return [task.at(size) for size in small_sizes(task)]


def check(task: Task, variant: Variant, folder: Path) -> None:
    """Check one variant at the size of `task`, as scripts/check_starter.py does for variants that run on a CPU.

    Raises:
        CheckError: A rule is broken.
    """
    program = vars(imported(variant.source, folder))

    class Checked(program["ModelNew"]):
        def forward(self, *inputs: torch.Tensor) -> object:
            answer = super().forward(*inputs)
            for output in [answer] if isinstance(answer, torch.Tensor) else answer:
                if not output.is_contiguous():
                    raise check_starter.CheckError(f"{task.id}, variant {variant.name}: expected contiguous outputs")
            return answer

    check_starter.check_size(task, {variant.name: {**program, "ModelNew": Checked}})
