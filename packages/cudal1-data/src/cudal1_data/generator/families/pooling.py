"""Pooling windows and pyramids over feature maps, and combinations of maps with pooled ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal1_data.generator import grid
from cudal1_data.generator.bounds import POSITIVE
from cudal1_data.generator.chain import chain, finished, joined
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Samples
from cudal1_data.generator.maps import dims_of, feature_input, set_sizes
from cudal1_data.generator.program import Program
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Dims, Value, combine, is_even


@dataclass(frozen=True)
class Window:
    """A pooling window."""

    name: str
    text: str
    cost_ns: float
    smooth: bool = True
    reach: int = 1
    """Samples before and after in a window of the grid: the largest of nine is hardly ever negative."""


_KEEPING = {
    1: (
        Window("max_pool", "F.max_pool1d({0}, 5, stride=1, padding=2)", 3.0, smooth=False, reach=2),
        Window("avg_pool", "F.avg_pool1d({0}, 3, stride=1, padding=1)", 8.0),
        Window("avg_pool", "F.avg_pool1d({0}, 7, stride=1, padding=3)", 10.0),
    ),
    2: (
        Window("max_pool", "F.max_pool2d({0}, 3, stride=1, padding=1)", 44.0, smooth=False, reach=3),
        Window("avg_pool", "F.avg_pool2d({0}, 3, stride=1, padding=1)", 15.0),
        Window("avg_pool", "F.avg_pool2d({0}, 5, stride=1, padding=2)", 19.0),
    ),
}
"""Windows that keep the size of a map."""

HALVING = {
    1: (
        Window("max_pool", "F.max_pool1d({0}, 2)", 1.0, smooth=False),
        Window("avg_pool", "F.avg_pool1d({0}, 2)", 3.7),
        Window("lp_pool", "F.lp_pool1d({0}, 2, 2)", 5.5, smooth=False),
    ),
    2: (
        Window("max_pool", "F.max_pool2d({0}, 2)", 6.7, smooth=False),
        Window("avg_pool", "F.avg_pool2d({0}, 2)", 2.3),
        Window("lp_pool", "F.lp_pool2d({0}, 2, 2)", 3.5, smooth=False),
        Window("max_pool", "F.max_pool2d({0}, 3, stride=2, padding=1)", 9.0, smooth=False, reach=3),
    ),
    3: (
        Window("max_pool", "F.max_pool3d({0}, 2)", 9.0, smooth=False),
        Window("avg_pool", "F.avg_pool3d({0}, 2)", 9.0),
    ),
}
"""Windows that halve the edges of a map."""


def pooling(program: Program, draw: Draw) -> None:
    """Write a chain, one of the pooling forms, and a chain."""
    rank = draw.one((1, 2, 2))
    dims = dims_of(rank)
    x = feature_input(program, draw, "x", dims, kind="uneven" if draw.chance(0.5) else "full")
    before = sides(program, draw, dims, draw.integer(0, 1), ("channel", "full"))
    h = program.keep(chain(program, draw, x, draw.integer(0, 2), before))
    h = draw.one((_halved, _halved, _compared, _squeezed, _pyramid))(program, draw, h)
    after = sides(program, draw, h.dims, draw.integer(0, 1), ("channel", "full"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(1, 3), after)))
    set_sizes(program, draw, dims, 0.0)


def pooled(program: Program, draw: Draw, h: Value, table: Sequence[Window], *, halved: bool) -> Value:
    """Write a pooling window.

    Args:
        program: The task.
        draw: Choices.
        h: Feature maps.
        table: Windows to draw from.
        halved: Whether they halve the edges of the maps.

    Raises:
        UnsuitableError: The pooled values are not informative.
    """
    window = draw.one([one for one in table if one.smooth or not program.backward])
    space = tuple(f"{_atom(dim)} // 2" for dim in h.dims[2:]) if halved else h.dims[2:]
    return over_windows(program, h, window, (*h.dims[:2], *space), "halved" if halved else "kept")


def over_windows(program: Program, h: Value, window: Window, dims: Dims, detail: str) -> Value:
    """Write a pooling window of maps.

    Args:
        program: The task.
        h: Feature maps.
        window: The window.
        dims: Shape of the result.
        detail: Addition to the operator's name in the structure.

    Raises:
        UnsuitableError: The pooled values are not informative.
    """
    if window.name == "max_pool" and math.isfinite(h.bounds.high):
        raise UnsuitableError("extremes meet a bound")
    if window.name == "lp_pool" and is_even(h.node):
        raise UnsuitableError("a square needs no absolute value")
    of = _OF_WINDOWS[window.name]
    sample = grid.rows(lambda line: [of(part) for part in _parts(line, window.reach)], h.grid)
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("windows are not informative")
    program.cost_ns += window.cost_ns * (0.25 if "channels_last" in program.layouts else 1.0)
    lies = POSITIVE if window.name == "lp_pool" else h.bounds
    return combine(window.name, window.text.format(h.text), dims, sample, h, detail=detail, bounds=lies)


def _halved(program: Program, draw: Draw, h: Value) -> Value:
    """Write maps of half the edge, from one window or two combined ones."""
    table = HALVING[len(h.dims) - 2]
    first = program.keep(pooled(program, draw, h, table, halved=True))
    if draw.chance(0.5):
        return first
    second = pooled(program, draw, h, table, halved=True)
    if second.node.key == first.node.key:
        return first
    return joined(program, draw, first, program.keep(second))


def _compared(program: Program, draw: Draw, h: Value) -> Value:
    """Write each place combined with its surroundings."""
    around = pooled(program, draw, h, _KEEPING[len(h.dims) - 2], halved=False)
    return joined(program, draw, h, program.keep(chain(program, draw, around, draw.integer(0, 1))))


def mean_of_maps(program: Program, h: Value, text: str = "torch.mean({h}, dim={axes}, keepdim=True)") -> Value:
    """Write the mean of each map, by a text with `{h}` for the maps.

    Raises:
        UnsuitableError: Means of maps are not informative.
    """
    rank = len(h.dims) - 2
    if not grid.stands_out(h.grid.values, grid.ROWS):
        raise UnsuitableError("means of maps are nearly equal")
    sample = grid.rows(lambda line: sum(line) / len(line), h.grid)
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("means of maps are not informative")
    program.cost_ns += 0.5
    made = text.format(h=h.text, axes=("2", "(2, 3)", "(2, 3, 4)")[rank - 1], rank=rank)
    return combine("mean", made, (*h.dims[:2], *["1"] * rank), sample, h, detail="maps", bounds=h.bounds)


def _squeezed(program: Program, draw: Draw, h: Value) -> Value:
    """Write each map combined with its mean."""
    whole = mean_of_maps(program, h)
    return joined(program, draw, h, program.keep(chain(program, draw, whole, draw.integer(1, 2))))


def _pyramid(program: Program, draw: Draw, h: Value) -> Value:
    """Write maps pooled to half the edge and upsampled again, combined with the original."""
    table = HALVING[len(h.dims) - 2]
    small = chain(program, draw, pooled(program, draw, h, table, halved=True), draw.integer(0, 1))
    program.cost_ns += 4.0
    up = combine(
        "upsample", f"F.interpolate({small.text}, scale_factor=2)", h.dims, small.grid, small, bounds=small.bounds
    )
    return joined(program, draw, h, program.keep(up))


def _parts(line: Samples, reach: int) -> list[Samples]:
    """Return the windows of a line; they wrap around, so that all have the same number of samples."""
    return [[line[(place + step) % len(line)] for step in range(-reach, reach + 1)] for place in range(len(line))]


def _atom(edge: str) -> str:
    return f"({edge})" if "-" in edge or "+" in edge or "*" in edge else edge


def _length(part: Samples) -> float:
    return sum(value * value for value in part) ** 0.5


_OF_WINDOWS: dict[str, Callable[[Samples], float]] = {
    "max_pool": max,
    "avg_pool": lambda part: sum(part) / len(part),
    "lp_pool": _length,
}
"""Each window's function of its elements."""
