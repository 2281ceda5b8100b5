"""Linear layers with epilogues: gates, residuals, activations, reductions of their rows."""

from __future__ import annotations

from cudal1_data.generator.chain import apply_named, chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.products import linear, sides_of
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import dots, reduced
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Value


def matmul_epilogue(program: Program, draw: Draw) -> None:
    """Write one product or a gated pair of products, and an epilogue."""
    x = program.input("x", ("ROWS", "INNER"), layout=program.layout())
    before = sides(program, draw, x.dims, 1, ("parameter", "column")) if draw.chance(0.3) else []
    h = program.keep(chain(program, draw, x, draw.integer(0, 1), before))
    gated = draw.chance(0.35)
    result = _gated(program, draw, h) if gated else program.keep(linear(program, draw, h, "INNER", "OUTER"))
    if not program.backward and draw.chance(0.15):
        result = _extreme(program, draw, result)
    else:
        after = sides(program, draw, result.dims, draw.integer(1, 2), ("full", "parameter", "row", "column", "mask"))
        result = chain(program, draw, result, draw.integer(1, 3), after)
        if draw.chance(0.2):
            result = _per_row(program, draw, dots(program, draw, program.keep(result), _head(program), "OUTER"))
    program.returns(finished(program, draw, result))
    sides_of(program, draw, ("ROWS", "INNER", "OUTER"), 2.0 if gated else 1.0)


def _head(program: Program) -> Value:
    return program.parameter("head", ("OUTER",))


def _extreme(program: Program, draw: Draw, h: Value) -> Value:
    """Write each row's extreme, without operands along the columns, which alone would determine its place."""
    return _per_row(program, draw, reduced(program, draw, chain(program, draw, h, 1), "rows", names=("amax", "amin")))


def _per_row(program: Program, draw: Draw, h: Value) -> Value:
    with program.uncounted():
        target = program.input("target", ("ROWS",), kind="column")
        return chain(program, draw, program.keep(h), draw.integer(1, 2), [target])


def _gated(program: Program, draw: Draw, h: Value) -> Value:
    """Write one product times an activation of another, as in gated linear units."""
    left = program.keep(linear(program, draw, h, "INNER", "OUTER"))
    right = program.keep(linear(program, draw, h, "INNER", "OUTER"))
    activation = draw.one(("tanh", "gelu", "silu", "softplus", "sigmoid", "mish", "atan"))
    return apply_named(program, draw, "mul", left, apply_named(program, draw, activation, right))
