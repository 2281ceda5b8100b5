"""Sizes for shapes: round and odd ones, near a target amount of work."""

from __future__ import annotations

import math

from cudal1_data.generator import structure
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.program import Program
from cudal1_data.generator.values import Dims

ROUND = tuple(
    base << power
    for power in range(3, 21)
    for base in (4, 5, 6, 7)
)  # fmt: skip
"""32, 40, 48, 56, 64, ...: multiples of 8."""
ODD = (36, 50, 60, 75, 90, 100, 120, 150, 180, 200, 250, 300, 375, 450, 500, 600, 700, 750, 900, 1000, 1200, 1500, 1800,
       2000, 2500, 3000, 3600, 5000, 6000, 7500, 10000, 15000, 25000, 50000, 75000)  # fmt: skip
"""Sizes that are no multiples of tiles."""

HIDDEN = (4096, 5120, 6144, 8192, 10240, 12288, 14336, 16384)
"""Layer widths in current models; the last dimension of most tasks on a GPU."""
_ODD_HIDDEN = (4100, 5000, 6000, 7500, 10000, 15000)
_FUSED_BYTES = (7e8, 1.5e9)
"""Bytes that one fused kernel moves on a GPU: 0.15 to 0.3 ms at an H200's memory bandwidth."""
_MAX_EAGER_BYTES = 5e9
"""Maximum bytes that the reference moves on a GPU, operator by operator."""
_PASSES = 2.6
"""Average number of main-size tensors that an operator reads and writes."""
_FLOPS = {"float32": (1.2e11, 3e11), "bfloat16": (3e11, 1e12), "float16": (3e11, 1e12)}
"""Floating-point operations of a task's products on a GPU: 1 to 6 ms."""

_BACKWARD = 3.2
"""Time of a forward call with its gradients, over the forward call's."""


def near(draw: Draw, wanted: float, *, odd: float = 0.3) -> int:
    """Return a usual size near `wanted`, at least 32.

    Args:
        draw: Choices.
        wanted: Target size.
        odd: Share of sizes from `ODD`.
    """
    table = ODD if draw.chance(odd) and wanted < 1.2 * ODD[-1] else ROUND
    return min(table, key=lambda size: abs(math.log(size / max(wanted, 1.0))))


def target_ns(draw: Draw, program: Program) -> float:
    """Return the target time of a call on one core: 7 to 11 ms.

    The assumed costs are those of a busy core. On an idle core calls take about half, so that most machines stay within
    1 to 20 ms.
    """
    return (7.0 + 4.0 * draw.real()) * 1e6 / (_BACKWARD if program.backward else 1.0)


def elements(draw: Draw, program: Program, *, min_ns: float = 1.5) -> float:
    """Return the target number of elements of the main tensor, from the cost per element."""
    return min(target_ns(draw, program) / max(program.cost_ns, min_ns), 8e5 if program.backward else 3.5e6)


def plane(program: Program, draw: Draw, names: tuple[str, ...]) -> None:
    """Set the sizes of the main tensor.

    Args:
        program: The task, with its outputs.
        draw: Choices.
        names: Its shape as constants; the first is set last, to reach the target.
    """
    total = elements(draw, program)
    sizes: dict[str, int] = {}
    for name in names[1:-1]:
        sizes[name] = draw.one((2, 3, 4, 6, 8))
    rest = total / math.prod(sizes.values())
    last = near(draw, rest ** (0.35 + 0.3 * draw.real()))
    first = near(draw, rest / last)
    wide = hidden(draw)
    middle = draw.one((256, 512, 600, 1024))
    left = gpu_elements(draw, program, names) / wide / middle ** len(sizes)
    program.size(names[0], first, max(8, near(draw, left)) if not sizes else max(2, round(left)))
    for name, value in sizes.items():
        program.size(name, value, middle)
    program.size(names[-1], last, wide)


def hidden(draw: Draw, most: int = HIDDEN[-1]) -> int:
    """Return a last dimension for a GPU: a layer width, or in 15 % of cases one that is no multiple of tiles."""
    table = _ODD_HIDDEN if draw.chance(0.15) else HIDDEN
    return draw.one([one for one in table if one <= most])


def gpu_elements(draw: Draw, program: Program, dims: Dims) -> float:
    """Return the number of elements of the main tensor on a GPU that makes the task memory-bound.

    Inputs and outputs of that shape take 0.7 to 1.5 GB, or less if the reference's steps would move more than 5 GB.
    The reference keeps less than half of that.

    Args:
        draw: Choices.
        program: The task, with its outputs.
        dims: The main tensor's shape.
    """
    low, high = _FUSED_BYTES
    fused = low * (high / low) ** draw.real() / max(1, program.moved(dims))
    steps = len(structure.nodes(*program.roots)) * (3 if program.backward else 1)
    return min(fused, _MAX_EAGER_BYTES / (_PASSES * max(1, steps))) / program.item_bytes


def gpu_flops(draw: Draw, program: Program) -> float:
    """Return the target number of floating-point operations of a task's forward products on a GPU.

    In a backward task it is a third, so that the total includes the gradients.
    """
    low, high = _FLOPS[program.dtype]
    return low * (high / low) ** draw.real() / (3 if program.backward else 1)


def gpu_rows(draw: Draw, program: Program, flops_per_row: float, widest: int) -> int:
    """Return the number of rows of products on a GPU.

    Args:
        draw: Choices.
        program: The task, with its outputs.
        flops_per_row: Floating-point operations of all products per row.
        widest: Elements per row of the largest tensor.
    """
    steps = len(structure.nodes(*program.roots)) * (3 if program.backward else 1)
    most = _MAX_EAGER_BYTES / (_PASSES * max(1, steps)) / program.item_bytes / widest
    return near(draw, max(256.0, min(gpu_flops(draw, program) / flops_per_row, most)), odd=0.15)
