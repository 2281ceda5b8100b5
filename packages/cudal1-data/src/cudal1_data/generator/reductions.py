"""Reductions of rows or columns, and tests that they are informative."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from cudal1_data.generator import grid
from cudal1_data.generator.bounds import POSITIVE, Interval
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Samples
from cudal1_data.generator.program import Program
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value, combine, invariant, undoes, usual

Axis = Literal["rows", "columns"]
"""`rows`: over the last dimension; `columns`: over the one before it."""

LARGEST_EXPONENT = 10.0
"""Maximum exponent: the exponential of 11.1 and more is infinite in float16."""
_ATTEMPTS = 8
"""Maximum number of draws of one reduction; then the attempt at a task ends."""


@dataclass(frozen=True)
class Reduction:
    """A reduction."""

    name: str
    """Its name in a structure."""
    text: str
    """Its text, with `{h}` for the operand and `{axis}` for `dim=...`."""
    function: Callable[[Samples], float]
    """Its result for one line."""
    cost_ns: float
    """Approximate time per element on one core."""
    smooth: bool = True
    """Whether its derivative has no jumps."""
    linear: bool = False
    """Whether its derivative is constant."""
    averages: bool = True
    """Whether random elements average out, so that the distributions of lines must differ."""
    slow_if_few: bool = False
    """Whether it is far slower on short lines."""
    bounds: Interval | None = POSITIVE
    """Bounds of its results; None for those of the values."""
    takes_back: tuple[str, ...] = ()
    """Last operators of the values to which it is invariant."""
    inner: tuple[str, ...] = ()
    """Its simpler operators, innermost first; `|` marks the reduction itself."""


def mean(line: Samples) -> float:
    """Return the mean."""
    return math.fsum(line) / len(line)


def variance(line: Samples) -> float:
    """Return the variance, divided by n."""
    middle = mean(line)
    return mean([(value - middle) ** 2 for value in line])


def log_mean_exp(line: Samples) -> float:
    """Return the logarithm of the mean of exponentials."""
    return math.log(mean([math.exp(value) for value in line]))


REDUCTIONS: tuple[Reduction, ...] = (
    Reduction("mean", "torch.mean({h}, {axis})", mean, 0.3, linear=True, bounds=None),
    Reduction("rms", "torch.sqrt(torch.mean(torch.square({h}), {axis}))", lambda line: math.sqrt(
        mean([value * value for value in line])), 1.0, takes_back=("abs", "neg"),
              inner=("square", "|mean", "sqrt")),
    Reduction("mean_abs", "torch.mean(torch.abs({h}), {axis})", lambda line: mean([abs(value) for value in line]), 1.0,
              smooth=False, takes_back=("abs", "neg"), inner=("abs", "|mean")),
    Reduction("std", "torch.std({h}, {axis})", lambda line: math.sqrt(variance(line)), 7.5, slow_if_few=True,
              takes_back=("shift",)),
    Reduction("var", "torch.var({h}, {axis}, unbiased=False)", variance, 7.5, slow_if_few=True, takes_back=("shift",)),
    Reduction("amax", "torch.amax({h}, {axis})", max, 0.3, smooth=False, averages=False, bounds=None),
    Reduction("amin", "torch.amin({h}, {axis})", min, 0.3, smooth=False, averages=False, bounds=None),
    Reduction("log_mean_exp", "torch.log(torch.mean(torch.exp({h}), {axis}))", log_mean_exp, 1.8,
              bounds=None, inner=("exp", "|mean", "log")),
)  # fmt: skip
"""The families' reductions. They have no sums, which are scaled means; only means keep values of ordinary size."""


def reduced(
    program: Program,
    draw: Draw,
    value: Value,
    axis: Axis,
    *,
    keepdim: bool = False,
    names: tuple[str, ...] = (),
    few: bool = False,
) -> Value:
    """Reduce rows or columns with a reduction that suits the values.

    Args:
        program: The task.
        draw: Choices.
        value: Value to reduce; it gets a variable.
        axis: Lines to reduce.
        keepdim: Whether the result keeps the dimension, with size 1.
        names: Candidate reductions; all by default.
        few: Whether lines are so short that their means differ by chance.

    Raises:
        UnsuitableError: No drawn reduction suits the values.
    """
    value = program.keep(value)
    table = [
        one
        for one in REDUCTIONS
        if (one.smooth or not program.backward) and (not names or one.name in names) and not (few and one.slow_if_few)
    ]
    for _ in range(_ATTEMPTS):
        try:
            return _reduced(program, draw.one(table), value, axis, keepdim=keepdim, few=few)
        except UnsuitableError:
            continue
    raise UnsuitableError("no reduction suits the values")


def _reduced(program: Program, reduction: Reduction, value: Value, axis: Axis, *, keepdim: bool, few: bool) -> Value:
    lines = grid.ROWS if axis == "rows" else grid.COLUMNS
    over = grid.rows if axis == "rows" else grid.columns
    if invariant(value, reduction.takes_back) or (reduction.name == "mean_abs" and usual(value).low >= 0.0):
        raise UnsuitableError(f"{reduction.name} cancels the last operator")
    if reduction.inner and undoes(Node(reduction.inner[0], (value.node,)), [value.node]):
        raise UnsuitableError(f"{reduction.name} undoes the last operator")
    sample = over(reduction.function, value.grid)
    if program.dtype == "float16" and reduction.name == "log_mean_exp" and value.bounds.high > LARGEST_EXPONENT:
        raise UnsuitableError("exponentials overflow float16")
    extreme = reduction.name in ("amax", "amin") and not few
    if sample is None or not (grid.informative(sample, grid.OF_EXTREMES) if extreme else grid.informative(sample)):
        raise UnsuitableError(f"{reduction.name} is not informative")
    if reduction.averages and not few and not _differ(value, reduction, lines):
        raise UnsuitableError(f"{reduction.name} averages out")
    if extreme and ends(value, above=reduction.name == "amax"):
        raise UnsuitableError(f"{reduction.name} meets a bound")
    if program.backward and reduction.name == "std" and not grid.even(value.grid, lines):
        raise UnsuitableError("the gradient divides by a spread that may be near zero")
    place = -1 if axis == "rows" else -2
    dims = list(value.dims)
    dims[place : (place + 1) or None] = ["1"] if keepdim else []
    where = f"dim={place}" + (", keepdim=True" if keepdim else "")
    result = combine(
        reduction.name,
        reduction.text.format(h=value.text, axis=where),
        tuple(dims),
        sample,
        value,
        detail=axis,
        bends=not reduction.linear,
        bounds=value.bounds if reduction.bounds is None else reduction.bounds,
    )
    program.cost_ns += reduction.cost_ns * (4 if few else 1)
    return result if not reduction.inner else _expanded(result, reduction, value, axis)


def ends(value: Value, *, above: bool) -> bool:
    """Return whether values come near a bound, which would be the extreme of nearly all long lines.

    At the maximum of a smooth function, like a cosine, the extreme of a line hardly depends on the inputs.
    """
    last = value.bounds.high if above else value.bounds.low
    return math.isfinite(last) or grid.bounded(value.grid.values, above=above)


def _expanded(result: Value, reduction: Reduction, value: Value, axis: Axis) -> Value:
    """Replace the reduction's node by its simpler operators."""
    node = value.node
    for name in reduction.inner:
        node = Node(name[1:], (node,), axis, heavy=True) if name.startswith("|") else Node(name, (node,))
    return replace(result, node=node)


_TERMS: dict[str, Callable[[float, float], float]] = {
    "rms": lambda value, _: value * value,
    "mean_abs": lambda value, _: abs(value),
    "std": lambda value, middle: (value - middle) ** 2,
    "var": lambda value, middle: (value - middle) ** 2,
    "log_mean_exp": lambda value, _: math.exp(min(value, 30.0)),
}
"""The averaged term, from a value and the mean of its line; by default the value itself."""


def _differ(value: Value, reduction: Reduction, lines: list[list[int]]) -> bool:
    function = _TERMS.get(reduction.name)
    if function is None:
        return grid.stands_out(value.grid.values, lines)
    seen = list(value.grid.values)
    for line in lines:
        middle = mean([seen[place] for place in line])
        for place in line:
            seen[place] = function(seen[place], middle)
    return grid.stands_out(seen, lines)


def dots(program: Program, draw: Draw, left: Value, right: Value, width: str) -> Value:
    """Sum the products of two values over the last dimension, divided by the root of the number of terms.

    Args:
        program: The task.
        draw: Choices.
        left: A value with rows.
        right: Another value or a vector; normal with zero mean.
        width: Constant with the number of terms.

    Raises:
        UnsuitableError: The sums would not be informative.
    """
    if not grid.mixes(right.grid, left.grid):
        raise UnsuitableError("sums of these products are not informative")
    node = Node("mul", (left.node, right.node))
    sample = grid.mixed(draw, left.grid, right.grid, spread=grid.size(left.grid.values), kind="column")
    text = f"torch.sum({left.atom} * {right.atom}, dim=-1) / {width}**0.5"
    result = combine("sum", text, left.dims[:-1], sample, left, right, detail="rows", bends=True, infix=True)
    program.cost_ns += 1.5
    return replace(result, node=Node("sum", (node,), "rows", heavy=True))
