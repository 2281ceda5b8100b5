"""8 x 8 sample values of every tensor, computed while a program is generated.

They show an operator's effect before it enters a task: whether a result is constant, saturated, out of range, or
independent of an input. Rows stand for all leading dimensions, columns for the last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Literal, cast

from cudal1_data.generator.draw import Draw

LAYERS = "layers"
"""Leaf name of the weights of all layers."""

SIDE = 8
"""Number of rows and of columns: few, because every operator is applied to all samples once for each leaf."""
ROWS = [list(range(row * SIDE, row * SIDE + SIDE)) for row in range(SIDE)]
"""Places of each row."""
COLUMNS = [list(range(column, SIDE * SIDE, SIDE)) for column in range(SIDE)]
"""Places of each column."""

Kind = Literal["full", "uneven", "tilted", "row", "column", "mask", "positive"]
"""`full`: normal; `uneven`: mean and spread vary by row; `tilted`: mean and spread vary by column; `row`: all rows are
equal; `column`: each row is constant; `mask`: 1 with probability 0.7, else 0; `positive`: from 0.5 to 1.5."""

_LARGEST = 40.0
"""Larger values make float16 coarse and exponentials overflow."""
_MIN_SPREAD = 0.12
"""Minimum standard deviation over the largest magnitude; below, a result is nearly constant."""
_MAX_EQUAL = 0.7
"""Maximum share of equal samples; above, a result is mostly saturated."""
_MIN_EFFECT = 0.12
"""Minimum change, over the standard deviation, if one leaf is redrawn; below, the result hardly depends on it."""

OF_EXTREMES = 0.3
"""The same for extremes: operands constant along a line matter less in lines longer than the sample's."""

Samples = list[float]
Function = Callable[[float], float] | Callable[[float, float], float] | Callable[[float, float, float], float]
"""An operator on numbers: one or two from tensors, and the last possibly a constant."""


@dataclass(frozen=True)
class Grid:
    """Sample values, and their values after one leaf is redrawn."""

    values: Samples
    """SIDE x SIDE values, row by row."""
    redrawn: dict[str, Samples] = field(default_factory=dict[str, Samples])
    """Values with another draw of the named leaf."""


def leaf(name: str, draw: Draw, kind: Kind) -> Grid:
    """Return sample values of an input or parameter."""
    return Grid(_samples(draw, kind), {name: _samples(draw, kind)})


def _samples(draw: Draw, kind: Kind) -> Samples:
    if kind == "row":
        return [draw.normal() for _ in range(SIDE)] * SIDE
    if kind == "column":
        return [value for value in [draw.normal() for _ in range(SIDE)] for _ in range(SIDE)]
    if kind == "mask":
        return [float(draw.chance(0.7)) for _ in range(SIDE * SIDE)]
    if kind == "positive":
        return [0.5 + draw.real() for _ in range(SIDE * SIDE)]
    values = [draw.normal() for _ in range(SIDE * SIDE)]
    if kind in ("uneven", "tilted"):
        line: Kind = "column" if kind == "uneven" else "row"
        scales = [0.5 + (value * 7.0) % 1.0 for value in _samples(draw, line)]
        means = [3.0 * ((value * 11.0) % 1.0) - 1.5 for value in _samples(draw, line)]
        return [mean + scale * value for mean, scale, value in zip(means, scales, values, strict=True)]
    return values


def apply(operator: Function, *grids: Grid, constant: float | None = None) -> Grid | None:
    """Apply an operator to each place, with the constant last; return None if it is undefined or overflows."""
    function = cast("Callable[..., float]", operator)
    last: list[Samples] = [] if constant is None else [[constant] * len(grids[0].values)]

    def applied(columns: Iterable[Samples]) -> Samples:
        return list(starmap(function, zip(*columns, *last, strict=True)))

    try:
        values = applied(grid.values for grid in grids)
        redrawn = {name: applied(grid.redrawn.get(name, grid.values) for grid in grids) for name in leaves(*grids)}
    except (OverflowError, ValueError, ZeroDivisionError):
        return None
    return Grid(values, redrawn)


def rows(function: Callable[[Samples], float | Samples], grid: Grid) -> Grid | None:
    """Apply a reduction or scan to each row; a single value fills its row."""
    return _lines(function, grid, ROWS)


def columns(function: Callable[[Samples], float | Samples], grid: Grid) -> Grid | None:
    """Apply a reduction or scan to each column; a single value fills its column."""
    return _lines(function, grid, COLUMNS)


def _lines(function: Callable[[Samples], float | Samples], grid: Grid, lines: list[list[int]]) -> Grid | None:
    def over(values: Samples) -> Samples:
        out = [0.0] * len(values)
        for line in lines:
            result = function([values[place] for place in line])
            for number, place in enumerate(line):
                out[place] = result if isinstance(result, float | int) else result[number]
        return out

    try:
        return Grid(over(grid.values), {name: over(values) for name, values in grid.redrawn.items()})
    except (OverflowError, ValueError, ZeroDivisionError):
        return None


def mixed(draw: Draw, *grids: Grid, spread: float = 1.0, kind: Kind = "full") -> Grid:
    """Return samples like a product or convolution of the operands: normal, and redrawn as much as an operand."""
    values = [spread * value for value in _samples(draw, kind)]
    redrawn: dict[str, Samples] = {}
    for name in leaves(*grids):
        new = max(_novelty(one, name) for one in grids if name in one.redrawn)
        old = math.sqrt(1.0 - new * new)
        fresh = _samples(draw, kind)
        redrawn[name] = [old * one + new * spread * other for one, other in zip(values, fresh, strict=True)]
    return Grid(values, redrawn)


def after_layer(draw: Draw, grid: Grid, spread: float) -> Grid:
    """Return samples like the output of a model's layer; its weights are one more leaf."""
    return mixed(draw, grid, leaf(LAYERS, draw, "full"), spread=spread * size(grid.values))


def _novelty(grid: Grid, name: str) -> float:
    """Return how much of the values a redrawn leaf changes: 1 if unrelated, when their difference has RMS sqrt(2)."""
    return min(1.0, _change(grid.values, grid.redrawn[name]) / (math.sqrt(2.0) * size(grid.values) + 1e-9))


def leaves(*grids: Grid) -> list[str]:
    """Return the names of all leaves, in order of appearance."""
    return list(dict.fromkeys(name for grid in grids for name in grid.redrawn))


def informative(grid: Grid | None, min_effect: float = _MIN_EFFECT) -> bool:
    """Return whether values are finite, of ordinary size, spread out, and depend on every leaf.

    Args:
        grid: The values.
        min_effect: Minimum change, over the standard deviation, if one leaf is redrawn.
    """
    if grid is None or not all(map(math.isfinite, grid.values)):
        return False
    spread, largest = deviation(grid.values), max(map(abs, grid.values))
    if largest > _LARGEST or spread < _MIN_SPREAD * largest or largest < 0.05:
        return False
    rounded = [round(value / largest, 4) for value in grid.values]
    if max(Counter(rounded).values()) > _MAX_EQUAL * len(rounded):
        return False
    return all(_change(grid.values, values) >= min_effect * spread for values in grid.redrawn.values())


def unchanged(before: Grid, after: Grid) -> bool:
    """Return whether an operator does next to nothing, like ELU's exponential branch just below zero."""
    least = 4e-3 * max(map(abs, before.values))
    return sum(abs(one - other) > least for one, other in zip(before.values, after.values, strict=True)) < 2


def stands_out(values: Samples, lines: list[list[int]]) -> bool:
    """Return whether the means of lines differ by more than sampling noise, which vanishes in long lines."""
    means = [math.fsum(values[place] for place in line) / len(line) for line in lines]
    within = math.fsum(deviation([values[place] for place in line]) ** 2 for line in lines) / len(lines)
    return deviation(means) ** 2 >= 3.5 * within / SIDE


def even(grid: Grid, lines: list[list[int]]) -> bool:
    """Return whether no line is nearly constant: dividing by its spread would amplify rounding errors."""
    spreads = [deviation([grid.values[place] for place in line]) for line in lines]
    return min(spreads) >= 0.2 * deviation(grid.values)


def middle(values: Samples) -> tuple[float, float]:
    """Return the range of the different values without 5 % at each end (at least one, if more than two)."""
    ordered = sorted(set(values))
    cut = max(1, len(ordered) // 20) if len(ordered) > 2 else 0
    return ordered[cut], ordered[-1 - cut]


def repeats(grid: Grid, lines: list[list[int]]) -> bool:
    """Return whether a line contains equal values, as after a clamp; in another line all may be equal."""
    return any(len({grid.values[place] for place in line}) < len(line) for line in lines)


def bounded(values: Samples, *, above: bool) -> bool:
    """Return whether values cluster at one end: the extreme of a thousand would always be the same."""
    ordered = sorted(values, reverse=not above)
    least, middle, most = ordered[-4], ordered[len(ordered) // 2], ordered[-1]
    return abs(most - least) < 0.2 * abs(most - middle)


def mixes(*grids: Grid) -> bool:
    """Return whether sums of products depend on each factor: none is nearly constant, and one has almost no mean."""
    means = [abs(math.fsum(one.values)) / len(one.values) / (size(one.values) + 1e-9) for one in grids]
    return all(mean < 0.9 for mean in means) and min(means) < 0.3


def size(values: Sequence[float]) -> float:
    """Return the root mean square."""
    return math.sqrt(math.fsum([value * value for value in values]) / len(values))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum([(value - mean) ** 2 for value in values]) / len(values))


def change(grid: Grid, name: str) -> float:
    """Return the root mean square of the change if a leaf is redrawn."""
    return _change(grid.values, grid.redrawn[name])


def _change(before: Samples, after: Samples) -> float:
    if not all(map(math.isfinite, after)):
        return 0.0
    return math.sqrt(math.fsum([(one - other) ** 2 for one, other in zip(before, after, strict=True)]) / len(before))
