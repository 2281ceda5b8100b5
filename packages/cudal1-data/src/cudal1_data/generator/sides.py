"""Further operands of a chain: residuals, gates, biases, masks."""

from __future__ import annotations

from collections.abc import Sequence

from cudal1_data.generator.draw import Draw
from cudal1_data.generator.grid import Kind
from cudal1_data.generator.program import Program
from cudal1_data.generator.values import Dims, Value

_PARAMETERS = ("bias", "slope", "shift", "tilt", "offset", "factor")
_INPUTS = ("y", "z", "t", "g", "q", "k", "m")


def sides(
    program: Program,
    draw: Draw,
    dims: Dims,
    count: int,
    kinds: Sequence[str] = ("full", "row", "column", "mask", "parameter"),
    *,
    full: Kind = "full",
) -> list[Value]:
    """Add operands for a tensor.

    Args:
        program: The task.
        draw: Choices.
        dims: The tensor's shape.
        count: Number of operands, at most three.
        kinds: `full`: the tensor's shape; `row`: its last dimension; `column`: all but the last dimension; `mask`: a
            mask of the tensor's shape; `parameter`: the last dimension; `channel`: a parameter along the second.
        full: Distribution of the values of a full operand.
    """
    return [_side(program, draw, dims, draw.one(kinds), full) for _ in range(count)]


def _side(program: Program, draw: Draw, dims: Dims, kind: str, full: Kind) -> Value:
    name = program.free(_INPUTS)
    if kind == "row":
        return program.input(name, dims[-1:], kind="row")
    if kind == "column":
        return program.input(name, (*dims[:-1], "1"), kind="column")
    if kind == "mask":
        return program.input(program.free(("mask", "seen", "kept")), dims, kind="mask")
    if kind == "parameter":
        return program.parameter(program.free(_PARAMETERS), dims[-1:])
    if kind == "channel":
        return program.parameter(program.free(_PARAMETERS), (dims[1], *["1"] * (len(dims) - 2)), kind="column")
    return program.input(name, dims, kind=full)
