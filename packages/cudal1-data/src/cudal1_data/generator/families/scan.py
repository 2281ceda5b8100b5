"""Prefix sums, products and extremes along rows or columns."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from cudal1_data.generator import grid
from cudal1_data.generator.bounds import Interval
from cudal1_data.generator.chain import apply_named, chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Grid, Samples
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import Axis, ends
from cudal1_data.generator.shapes import plane
from cudal1_data.generator.sides import sides
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value, combine

_DIMS = ("ROWS", "COLS")


def scan(program: Program, draw: Draw) -> None:
    """Write values, one scan of them, and a chain."""
    form = draw.one((_walk, _walk, _growth, _running_mean, _extreme, _area))
    h = program.keep(form(program, draw))
    after = sides(program, draw, _DIMS, draw.integer(1, 2), ("full", "row", "column", "parameter"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(1, 3), after)))
    plane(program, draw, _DIMS)


def _signed(program: Program, draw: Draw) -> Value:
    """Write values with zero mean: an input times a chain's result."""
    x = program.input("x", _DIMS, layout=program.layout())
    weights = sides(program, draw, _DIMS, draw.integer(1, 2), ("full", "row", "column", "parameter"))
    weight = chain(program, draw, weights[0], draw.integer(0, 2), weights[1:])
    h = apply_named(program, draw, "mul", x, weight)
    if draw.chance(0.3):
        mask = program.input("mask", _DIMS, kind="mask")
        chosen = grid.apply(lambda value, seen: value * seen, h.grid, mask.grid)
        assert chosen is not None
        h = combine(
            "mul", f"{h.atom} * {mask.text}", _DIMS, chosen, h, mask, heavy=False, infix=True,
            bounds=h.bounds | Interval(0.0, 0.0),
        )  # fmt: skip
    return program.keep(h)


def summed(h: Value, axis: Axis, sample: Grid | None, *, backwards: bool = False) -> Value:
    """Write prefix sums of terms over the root of their number, so that no long line overflows in float16."""
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("sums are not informative")
    dim, length = (-1, "COLS") if axis == "rows" else (-2, "ROWS")
    text = f"torch.cumsum({h.text} / {length}**0.5, dim={dim})"
    if backwards:
        text = f"torch.cumsum({h.text}.flip({dim}) / {length}**0.5, dim={dim}).flip({dim})"
    name = "reverse_cumsum" if backwards else "cumsum"
    return combine(name, text, _DIMS, sample, h, detail=axis)


def summed_before(program: Program, draw: Draw, h: Value, sample: Grid | None) -> Value:
    """Write sums of all earlier values of a row as prefix sums behind a zero, over the root of their number."""
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("sums are not informative")
    first, others = draw.one(
        ((f"{h.text}[:, :1]", f"{h.text}[:, :-1]"), (f"{h.text}[..., :1]", f"{h.text}.narrow(-1, 0, COLS - 1)"))
    )
    program.line(f"sums = torch.cumsum({others} / COLS**0.5, dim=-1)")
    text = f"torch.cat((torch.zeros_like({first}), sums), dim=-1)"
    node = Node("sub", (Node("cumsum", (h.node,), "rows", heavy=True), h.node))
    return Value(text, node, _DIMS, sample, h.curved, nested=2)


def _walk(program: Program, draw: Draw) -> Value:
    """Write sums from the start, from the end, or of all earlier values."""
    h = _signed(program, draw)
    axis: Axis = draw.one(("rows", "rows", "columns"))
    over = grid.rows if axis == "rows" else grid.columns
    program.cost_ns += 2.5 if axis == "rows" else 5.0
    form = draw.one(("forwards", "backwards", "exclusive"))
    sample = over(lambda line: [value / math.sqrt(grid.SIDE) for value in itertools.accumulate(line)], h.grid)
    result = summed(h, axis, sample, backwards=form == "backwards")
    if form == "exclusive":
        node = Node("sub", (Node("cumsum", (h.node,), axis, heavy=True), h.node))
        text = f"{result.text} - {h.text} / {'COLS' if axis == 'rows' else 'ROWS'}**0.5"
        return Value(text, node, _DIMS, result.grid, result.curved, infix=True, nested=2)
    return result


def _growth(program: Program, draw: Draw) -> Value:
    """Write prefix products of factors near one."""
    return multiplied(program, _signed(program, draw))


def multiplied(program: Program, h: Value) -> Value:
    """Write prefix products of factors near one, from values with zero mean.

    Raises:
        UnsuitableError: The products are not informative.
    """
    if program.dtype != "float32":
        raise UnsuitableError("half precision cannot distinguish factors near one")
    program.cost_ns += 3.0
    sample = grid.rows(
        lambda line: list(itertools.accumulate(line, lambda total, value: total * (1 + value / 3), initial=1.0))[1:],
        h.grid,
    )
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("products are not informative")
    text = f"torch.cumprod(1 + {h.text} / COLS**0.5, dim=-1)"
    return combine("cumprod", text, _DIMS, sample, h, detail="rows", bends=True)


def _running_mean(program: Program, draw: Draw) -> Value:
    """Write running means, in rows that differ."""
    x = program.input("x", _DIMS, kind="uneven", layout=program.layout())
    others = sides(program, draw, _DIMS, draw.integer(0, 1), ("column", "full"), full="uneven")
    h = program.keep(chain(program, draw, x, draw.integer(0, 2), others))
    if not grid.stands_out(h.grid.values, grid.ROWS):
        raise UnsuitableError("rows are alike")
    program.cost_ns += 3.0
    program.line(f"steps = torch.arange(1, COLS + 1, device={h.text}.device)")
    sums = summed(h, "rows", grid.rows(_means, h.grid))
    text = f"{sums.text} * (COLS**0.5 / steps).to({h.text}.dtype)"
    return replace(sums, text=text, infix=True, bounds=h.bounds)


def _means(line: Samples) -> Samples:
    return [total / (place + 1) for place, total in enumerate(itertools.accumulate(line))]


def _extreme(program: Program, draw: Draw) -> Value:
    """Write the running maximum or minimum."""
    if program.backward:
        raise UnsuitableError("extremes have derivatives with jumps")
    x = program.input("x", _DIMS, kind="uneven", layout=program.layout())
    others = sides(program, draw, _DIMS, draw.integer(1, 2), ("full", "column"), full="uneven")
    h = program.keep(chain(program, draw, x, draw.integer(0, 1), others))
    name, best = draw.one((("cummax", max), ("cummin", min)))
    if ends(h, above=name == "cummax"):
        raise UnsuitableError("extremes meet a bound")
    program.cost_ns += 2.5
    sample = grid.rows(lambda line: list(itertools.accumulate(line, best)), h.grid)
    if sample is None or not grid.informative(sample, grid.OF_EXTREMES):
        raise UnsuitableError("extremes are not informative")
    return combine(name, f"torch.{name}({h.text}, dim=-1).values", _DIMS, sample, h, detail="rows", bounds=h.bounds)


def _area(program: Program, draw: Draw) -> Value:
    """Write sums over rows and columns (a summed-area table)."""
    h = _signed(program, draw)
    program.cost_ns += 6.0
    rows = combine("cumsum", f"torch.cumsum({h.text} / COLS**0.5, dim=-1)", _DIMS, h.grid, h, detail="rows")
    text = f"torch.cumsum({rows.text} / ROWS**0.5, dim=-2)"
    return combine(
        "cumsum", text, _DIMS, grid.mixed(draw, h.grid, spread=0.6 * grid.size(h.grid.values)), rows, detail="columns"
    )
