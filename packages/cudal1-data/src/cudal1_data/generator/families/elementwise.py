"""Chains of pointwise operators over two to four tensors."""

from __future__ import annotations

from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.program import Program
from cudal1_data.generator.shapes import plane
from cudal1_data.generator.sides import sides


def elementwise(program: Program, draw: Draw) -> None:
    """Write a chain; operands have the first one's shape, or are rows, columns, masks or parameters."""
    dims = draw.one((("ROWS", "COLS"), ("ROWS", "COLS"), ("BATCH", "ROWS", "COLS")))
    x = program.input("x", dims, layout=program.layout())
    others = sides(program, draw, dims, draw.integer(1, 3), ("full", "full", "row", "column", "mask", "parameter"))
    result = chain(program, draw, x, draw.integer(1, 5), others)
    if draw.chance(0.3):
        result = chain(program, draw, result, draw.integer(0, 1), [x])
    program.returns(finished(program, draw, result))
    plane(program, draw, dims)
