"""Chains of pointwise operators over two to four tensors."""

from __future__ import annotations

from cudal1_data.generated.chain import chain, finished
from cudal1_data.generated.draw import Draw
from cudal1_data.generated.program import Program
from cudal1_data.generated.shapes import plane
from cudal1_data.generated.values import Value

_SIDES = ("y", "z", "t")


def elementwise(program: Program, draw: Draw) -> None:
    """Write a chain: some operands as large as the first, others rows, columns or masks."""
    dims = draw.one((("ROWS", "COLS"), ("ROWS", "COLS"), ("BATCH", "ROWS", "COLS")))
    layout = "transposed" if draw.chance(0.25) else "contiguous"
    x = program.input("x", dims, layout=layout)
    sides = [_side(program, draw, name, dims) for name in _SIDES[: draw.integer(1, 3)]]
    result = chain(program, draw, x, draw.integer(1, 5), sides)
    if draw.chance(0.3):
        result = chain(program, draw, result, draw.integer(0, 1), [x])
    program.returns(finished(program, draw, result))
    plane(program, draw, dims)


def _side(program: Program, draw: Draw, name: str, dims: tuple[str, ...]) -> Value:
    kind = draw.one(("full", "full", "row", "column", "mask", "parameter"))
    if kind == "row":
        return program.input(name, dims[-1:], kind="row")
    if kind == "column":
        return program.input(name, (*dims[:-1], "1"), kind="column")
    if kind == "mask":
        return program.input("mask_" + name, dims, kind="mask")
    if kind == "parameter":
        return program.parameter({"y": "weight", "z": "bias", "t": "shift"}[name], dims[-1:])
    return program.input(name, dims)
