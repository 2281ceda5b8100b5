"""Reductions of a chain's result over rows, columns and blocks."""

from __future__ import annotations

from cudal1_data.generator.chain import chain, finished, joined
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import Axis, dots, reduced
from cudal1_data.generator.shapes import elements, gpu_elements, near, plane
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Value, combine


def reduction(program: Program, draw: Draw) -> None:
    """Write a chain, a reduction, and a chain on the result."""
    where = draw.one(("rows", "rows", "columns", "columns", "blocks", "dots"))
    {"rows": _lines, "columns": _lines, "blocks": _blocks, "dots": _dots}[where](program, draw, where)


def _lines(program: Program, draw: Draw, where: str) -> None:
    axis: Axis = "rows" if where == "rows" else "columns"
    dims = ("ROWS", "COLS") if draw.chance(0.7) or axis == "rows" else ("BATCH", "ROWS", "COLS")
    h = _values(program, draw, dims, axis)
    parts = [reduced(program, draw, h, axis) for _ in range(1 + draw.chance(0.35))]
    if len(parts) > 1 and parts[0].node.key == parts[1].node.key:
        parts.pop()
    _after(program, draw, parts)
    plane(program, draw, dims)


def _values(program: Program, draw: Draw, dims: tuple[str, ...], axis: Axis) -> Value:
    """Add inputs whose lines differ in distribution, because otherwise all means would be nearly equal."""
    kind = "uneven" if axis == "rows" else "tilted"
    x = program.input("x", dims, kind=kind, layout=program.layout())
    lines = ("full", "full", "column" if axis == "rows" else "parameter")
    others = sides(program, draw, dims, draw.integer(1, 2), lines, full=kind)
    return program.keep(chain(program, draw, x, draw.integer(0, 3), others))


def _blocks(program: Program, draw: Draw, where: str) -> None:
    """Write a separate reduction of each short block of a row."""
    x = program.input("x", ("ROWS", "BLOCKS * BLOCK"), layout=program.layout())
    h = program.keep(chain(program, draw, x, draw.integer(1, 3), [program.parameter("weight", ("BLOCKS * BLOCK",))]))
    text = f"{h.text}.reshape(-1, BLOCKS, BLOCK)"
    cut = combine("blocks", text, ("ROWS", "BLOCKS", "BLOCK"), h.grid, h, heavy=False, bounds=h.bounds)
    _after(program, draw, [reduced(program, draw, cut, "rows", few=True)])
    blocks, block = draw.integer(16, 96), draw.one((4, 6, 8, 10, 16))
    rows = near(draw, elements(draw, program) / (blocks * block))
    many = draw.one((512, 768, 1024))
    program.size("ROWS", rows, near(draw, gpu_elements(draw, program, x.dims) / (many * block)))
    program.size("BLOCKS", blocks, many)
    program.size("BLOCK", block, block)


def _dots(program: Program, draw: Draw, where: str) -> None:
    """Write dot products of a chain's result with another input."""
    x, y = program.input("x", ("ROWS", "COLS"), layout=program.layout()), program.input("y", ("ROWS", "COLS"))
    h = chain(program, draw, x, draw.integer(1, 2), sides(program, draw, x.dims, 1, ("parameter", "row", "mask")))
    _after(program, draw, [dots(program, draw, h, y, "COLS")])
    plane(program, draw, ("ROWS", "COLS"))


def _after(program: Program, draw: Draw, parts: list[Value]) -> None:
    """Write the operators after one or two reductions."""
    with program.uncounted():
        if len(parts) == 2 and not program.backward and draw.chance(0.4):
            program.returns(*(chain(program, draw, program.keep(part), draw.integer(0, 2)) for part in parts))
        else:
            _joined(program, draw, parts)


def _joined(program: Program, draw: Draw, parts: list[Value]) -> None:
    h = program.keep(parts[0])
    if len(parts) == 2:
        h = joined(program, draw, h, program.keep(parts[1]))
    bias = sides(program, draw, h.dims, 1, ("full",), full="column") if draw.chance(0.4) and len(h.dims) == 1 else []
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(1, 3), bias)))
