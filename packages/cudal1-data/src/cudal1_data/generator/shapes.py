"""Numbers for shapes: round ones and odd ones, near a wanted amount of work."""

from __future__ import annotations

import math

from cudal1_data.generator.draw import Draw
from cudal1_data.generator.program import Program

ROUND = tuple(
    base << power
    for power in range(3, 16)
    for base in (4, 5, 6, 7)
)  # fmt: skip
"""32, 40, 48, 56, 64, ...: multiples of 8."""
ODD = (36, 50, 60, 75, 90, 100, 120, 150, 180, 200, 250, 300, 375, 450, 500, 600, 700, 750, 900, 1000, 1200, 1500, 1800,
       2000, 2500, 3000, 3600, 5000, 6000, 7500, 10000, 15000, 25000, 50000, 75000)  # fmt: skip
"""Sizes that no tile fits."""

CUDA_GROWTH = 8
"""A GPU gets this many times the elements of a CPU, which is memory traffic of some tens of microseconds."""

_BACKWARD = 3.2
"""A forward call and its gradients take about this many times the forward call."""


def near(draw: Draw, wanted: float, *, odd: float = 0.3) -> int:
    """Return a usual size near `wanted`, at least 32.

    Args:
        draw: Choices.
        wanted: About how much.
        odd: Share of sizes that are no multiples of 8.
    """
    table = ODD if draw.chance(odd) else ROUND
    return min(table, key=lambda size: abs(math.log(size / max(wanted, 1.0))))


def target_ns(draw: Draw, program: Program) -> float:
    """Return how long a call should take on one core: 7 to 11 ms.

    The costs reckoned with are high ones, of a busy core: on an idle one calls take about half of that, so that
    1 to 20 ms hold on most machines.
    """
    return (7.0 + 4.0 * draw.real()) * 1e6 / (_BACKWARD if program.backward else 1.0)


def elements(draw: Draw, program: Program, *, min_ns: float = 1.5) -> float:
    """Return how many elements the main tensor should have, by the cost of what is done to each."""
    return min(target_ns(draw, program) / max(program.cost_ns, min_ns), 8e5 if program.backward else 3.5e6)


def plane(program: Program, draw: Draw, names: tuple[str, ...], *, columns: tuple[int, ...] = ()) -> None:
    """Set the sizes of the main tensor.

    Args:
        program: The task.
        draw: Choices.
        names: Constants, the first of them the one that grows on a GPU.
        columns: Choices for the last; by default any that fits.
    """
    total = elements(draw, program)
    sizes: dict[str, int] = {}
    for name in names[1:-1]:
        sizes[name] = draw.one((2, 3, 4, 6, 8))
    rest = total / math.prod(sizes.values())
    last = draw.one(columns) if columns else near(draw, rest ** (0.35 + 0.3 * draw.real()))
    first = near(draw, rest / last)
    program.size(names[0], first, first * CUDA_GROWTH)
    for name, value in sizes.items():
        program.size(name, value, value)
    program.size(names[-1], last, last)
