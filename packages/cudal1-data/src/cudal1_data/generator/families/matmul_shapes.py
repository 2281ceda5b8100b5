"""Products of inputs in unusual shapes: batched, skewed, transposed, chained, bilinear."""

from __future__ import annotations

from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.products import batched_sides_of, matmul, sides_of
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import dots
from cudal1_data.generator.shapes import gpu_rows, hidden, near, target_ns
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Dims, Value


def matmul_shapes(program: Program, draw: Draw) -> None:
    """Write a product of one of the forms, with pointwise work before and after it."""
    draw.one((_batched, _batched, _skewed, _transposed, _chained, _bilinear))(program, draw)


def _factor(program: Program, draw: Draw, name: str, dims: Dims) -> Value:
    return _prepared(program, draw, program.input(name, dims, layout=program.layout()))


def _prepared(program: Program, draw: Draw, value: Value) -> Value:
    dims = value.dims
    if draw.chance(0.5):
        vectors = sides(program, draw, dims, 1, ("row", "column")) if draw.chance(0.5) else []
        value = chain(program, draw, value, draw.integer(0, 1), vectors)
    return value


def _epilogue(program: Program, draw: Draw, h: Value, kinds: tuple[str, ...] = ("full", "row", "column")) -> None:
    after = sides(program, draw, h.dims, draw.integer(1, 2), (*kinds, "parameter"))
    program.returns(finished(program, draw, chain(program, draw, program.keep(h), draw.integer(1, 2), after)))


def _batched(program: Program, draw: Draw) -> None:
    text, right_dims, detail = draw.one(
        (
            ("torch.bmm({0}, {1})", ("BATCH", "INNER", "COLS"), ""),
            ("torch.bmm({0}, {1}.transpose(1, 2))", ("BATCH", "COLS", "INNER"), "right transposed"),
            ('torch.einsum("bik,kj->bij", {0}, {1})', ("INNER", "COLS"), "right shared"),
        )
    )
    a = _factor(program, draw, "a", ("BATCH", "ROWS", "INNER"))
    b = _factor(program, draw, "b", right_dims)
    _epilogue(program, draw, matmul(draw, a, b, ("BATCH", "ROWS", "COLS"), "INNER", text=text, detail=detail))
    batched_sides_of(program, draw)


def _skewed(program: Program, draw: Draw) -> None:
    """Write a product with many rows and few columns, few terms, or many terms and a small result."""
    a = _factor(program, draw, "a", ("ROWS", "INNER"))
    b = _factor(program, draw, "b", ("INNER", "COLS"))
    before_ns = program.cost_ns
    _epilogue(program, draw, matmul(draw, a, b, ("ROWS", "COLS"), "INNER"))
    form = draw.one(("tall", "thin", "deep"))
    small, middle = draw.integer(8, 40), near(draw, 200 + 200 * draw.real())
    rate = program.flops_per_ns / 2
    work = target_ns(draw, program) * rate
    slim = draw.one((16, 32, 48, 64))
    if form == "deep":
        other = draw.integer(48, 128)
        cost = small * other + (small + other) * before_ns * rate
        program.size("ROWS", other, 2 * other)
        program.size("INNER", near(draw, min(work / cost, 100_000)), near(draw, 5e8 / program.item_bytes / (3 * other)))
        program.size("COLS", small, slim)
        return
    terms, columns = (middle, small) if form == "tall" else (small, middle)
    cost = terms * columns + program.cost_ns * columns * rate + 2 * terms * rate
    wide = hidden(draw, 8192)
    many = gpu_rows(draw, program, 2.0 * wide * slim, wide)
    program.size("ROWS", near(draw, work / cost), many)
    program.size("INNER", terms, wide if form == "tall" else slim)
    program.size("COLS", columns, slim if form == "tall" else wide)


def _transposed(program: Program, draw: Draw) -> None:
    form = draw.one(("left", "right", "both"))
    left: Dims = ("ROWS", "INNER") if form == "right" else ("INNER", "ROWS")
    right: Dims = ("INNER", "COLS") if form == "left" else ("COLS", "INNER")
    text = ("{0}" if form == "right" else "{0}.t()") + " @ " + ("{1}" if form == "left" else "{1}.t()")
    a, b = _factor(program, draw, "a", left), _factor(program, draw, "b", right)
    _epilogue(program, draw, matmul(draw, a, b, ("ROWS", "COLS"), "INNER", text=text, detail=f"{form} transposed"))
    sides_of(program, draw, ("ROWS", "INNER", "COLS"))


def _chained(program: Program, draw: Draw) -> None:
    """Write a product of three factors; the order of multiplication determines the amount of work."""
    a = _factor(program, draw, "a", ("ROWS", "INNER"))
    b = _factor(program, draw, "b", ("INNER", "MIDDLE"))
    c = program.input("c", ("MIDDLE", "COLS"))
    h = program.keep(matmul(draw, a, b, ("ROWS", "MIDDLE"), "INNER"))
    if draw.chance(0.5):
        h = chain(program, draw, h, 1)
    _epilogue(program, draw, matmul(draw, h, c, ("ROWS", "COLS"), "MIDDLE"))
    sides_of(program, draw, ("ROWS", "INNER", "COLS"), 2.0)
    middle = near(draw, program.sizes["INNER"][0] * (0.5 + draw.real()))
    program.size("MIDDLE", middle, draw.one((256, 1024, 4096)))


def _bilinear(program: Program, draw: Draw) -> None:
    """Write a bilinear form of the rows of two inputs."""
    x = program.input("x", ("ROWS", "LEFT"), layout=program.layout())
    y = program.input("y", ("ROWS", "RIGHT"))
    weight = program.parameter("weight", ("LEFT", "RIGHT"))
    h = program.keep(matmul(draw, _prepared(program, draw, x), weight, ("ROWS", "RIGHT"), "LEFT"))
    if draw.chance(0.5):
        h = chain(program, draw, h, 1)
    _epilogue(program, draw, dots(program, draw, h, y, "RIGHT"), ("row",))
    sides_of(program, draw, ("ROWS", "LEFT", "RIGHT"))
