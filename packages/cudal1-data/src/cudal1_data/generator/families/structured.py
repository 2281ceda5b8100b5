"""Products with structured matrices, written as dense products."""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.generator import grid
from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.grid import Kind
from cudal1_data.generator.products import matmul
from cudal1_data.generator.program import Program
from cudal1_data.generator.shapes import gpu_flops, hidden, near, target_ns
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Dims, Value, combine

Form = Callable[[Program, Draw, Value], Value]


def structured(program: Program, draw: Draw) -> None:
    """Write one or two structured matrices times a dense one, and an epilogue."""
    x = program.input("x", ("SIZE", "COLS"), layout=program.layout())
    h = chain(program, draw, x, 1) if draw.chance(0.3) else x
    forms = draw.some(tuple(_FORMS), 1 + draw.chance(0.25))
    for form in forms:
        h = program.keep(_FORMS[form](program, draw, h))
        if draw.chance(0.3):
            h = chain(program, draw, h, 1)
    after = sides(program, draw, x.dims, draw.integer(1, 2), ("full", "row", "parameter"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(1, 2), after)))
    edge = (target_ns(draw, program) * program.flops_per_ns / (2.0 * len(forms))) ** (1 / 3)
    size = 32 * max(6, round(edge * (0.7 + 0.4 * draw.real()) / 32))
    columns = near(draw, max(32.0, 0.8 * edge**3 / size**2))
    wide, out = draw.one((4096, 5120, 6144, 8192)), hidden(draw, 8192)
    while 2.0 * len(forms) * wide**2 * out > 3 * gpu_flops(draw, program) and out > 1024:
        out //= 2
    program.size("SIZE", size, wide)
    program.size("COLS", columns, out)


def _matrix(program: Program, name: str, dims: Dims, kind: Kind = "full") -> Value:
    return program.input(program.free((name, f"{name}_too")), dims, kind=kind)


def _made(name: str, text: str, dims: Dims, *operands: Value, detail: str = "", bends: bool = False) -> Value:
    def mean(*each: float) -> float:
        return sum(each) / len(each) ** 0.5

    sample = operands[0].grid if len(operands) == 1 else grid.apply(mean, *(one.grid for one in operands))
    assert sample is not None
    return combine(name, text, dims, sample, *operands, detail=detail, heavy=False, bends=bends, infix="@" in text)


def _diagonal(program: Program, draw: Draw, h: Value) -> Value:
    d = _matrix(program, "d", ("SIZE",), "row")
    text = f"torch.diag({d.text}) @ {h.atom}"
    scaled = grid.apply(lambda x, y: x * y, h.grid, grid.leaf(d.text, draw, "column"))
    assert scaled is not None
    matrix = _made("diag", "", ("SIZE", "SIZE"), d)
    return combine("matmul", text, h.dims, scaled, matrix, h, bends=True, infix=True)


def _triangular(program: Program, draw: Draw, h: Value) -> Value:
    a = _matrix(program, "a", ("SIZE", "SIZE"))
    name = draw.one(("tril", "triu"))
    return matmul(draw, _made(name, f"torch.{name}({a.text})", a.dims, a), h, h.dims, "SIZE")


def _banded(program: Program, draw: Draw, h: Value) -> Value:
    a = _matrix(program, "a", ("SIZE", "SIZE"))
    program.size("BAND", draw.integer(2, 12), 16)
    text = f"torch.tril(torch.triu({a.text}, -BAND), BAND)"
    band = _made("tril", text, a.dims, _made("triu", "", a.dims, a))
    return matmul(draw, band, h, h.dims, "(2 * BAND + 1)")


def _low_rank(program: Program, draw: Draw, h: Value) -> Value:
    u, v = _matrix(program, "left", ("SIZE", "RANK")), _matrix(program, "right", ("SIZE", "RANK"))
    _rank(program, draw)
    product = matmul(draw, u, v, ("SIZE", "SIZE"), "RANK", text="{0} @ {1}.t()", detail="right transposed")
    return matmul(draw, program.keep(product), h, h.dims, "SIZE")


def _diagonal_and_low_rank(program: Program, draw: Draw, h: Value) -> Value:
    d, u = _matrix(program, "d", ("SIZE",), "row"), _matrix(program, "basis", ("SIZE", "RANK"))
    _rank(program, draw)
    text = "{0} @ {1}.t()"
    outer = matmul(draw, u, u, ("SIZE", "SIZE"), "(RANK * SIZE)", text=text, detail="right transposed")
    diagonal = _made("diag", f"torch.diag({d.text})", outer.dims, d)
    total = program.keep(_made("add", f"{diagonal.text} + {outer.text}", outer.dims, diagonal, outer))
    sample = grid.mixed(draw, h.grid, total.grid, spread=1.4)
    return combine("matmul", f"{total.text} @ {h.atom}", h.dims, sample, total, h, bends=True, infix=True)


def _symmetric(program: Program, draw: Draw, h: Value) -> Value:
    a = _matrix(program, "a", ("SIZE", "SIZE"))
    sign, name = draw.one((("+", "add"), ("-", "sub")))
    total = combine(name, f"{a.text} {sign} {a.text}.t()", a.dims, a.grid, a, a, heavy=False, infix=True)
    return matmul(draw, total, h, h.dims, "SIZE")


def _blocks(program: Program, draw: Draw, h: Value) -> Value:
    blocks = program.input(program.free(("blocks", "parts")), ("BLOCKS", "SIZE // BLOCKS", "SIZE // BLOCKS"))
    program.size("BLOCKS", draw.one((4, 8, 16)), 32)
    matrix = _made("block_diag", f"torch.block_diag(*{blocks.text})", ("SIZE", "SIZE"), blocks)
    return matmul(draw, matrix, h, h.dims, "(SIZE // BLOCKS)")


def _kronecker(program: Program, draw: Draw, h: Value) -> Value:
    a = program.input(program.free(("first",)), ("SIZE // PART", "SIZE // PART"))
    b = program.input(program.free(("second",)), ("PART", "PART"))
    program.size("PART", draw.one((8, 16, 32)), 32)
    matrix = _made("kron", f"torch.kron({a.text}, {b.text})", ("SIZE", "SIZE"), a, b, bends=True)
    return matmul(draw, matrix, h, h.dims, "SIZE")


def _rank_one(program: Program, draw: Draw, h: Value) -> Value:
    """Write a product with the identity plus an outer product."""
    v, w = _matrix(program, "v", ("SIZE",), "row"), _matrix(program, "w", ("SIZE",), "row")
    outer = _made("outer", f"torch.outer({v.text}, {w.text})", ("SIZE", "SIZE"), v, w, bends=True)
    text = f"torch.eye(SIZE, dtype={v.text}.dtype, device={v.text}.device) + {outer.text} / SIZE**0.5"
    matrix = program.keep(_made("eye_plus", text, outer.dims, outer))
    sample = grid.mixed(draw, h.grid, v.grid, w.grid, spread=1.4)
    return combine("matmul", f"{matrix.text} @ {h.atom}", h.dims, sample, matrix, h, bends=True, infix=True)


def _permutation(program: Program, draw: Draw, h: Value) -> Value:
    order = program.index(program.free(("order", "places")), ("SIZE",), "SIZE")
    chosen = _made("one_hot", f"F.one_hot({order.text}, SIZE).to({h.atom}.dtype)", ("SIZE", "SIZE"), order)
    sample = grid.mixed(draw, h.grid, order.grid)
    return combine("matmul", f"{chosen.text} @ {h.atom}", h.dims, sample, chosen, h, infix=True)


def _repeated_vector(program: Program, draw: Draw, h: Value) -> Value:
    """Write a product with a Toeplitz matrix: each diagonal is constant."""
    t = program.input(program.free(("t", "taps")), ("2 * SIZE - 1",), kind="row")
    program.line(f"steps = torch.arange(SIZE, device={t.text}.device)")
    text = f"{t.text}[steps[:, None] - steps + SIZE - 1]"
    matrix = program.keep(_made("toeplitz", text, ("SIZE", "SIZE"), t))
    return matmul(draw, matrix, h, h.dims, "SIZE")


def _rank(program: Program, draw: Draw) -> None:
    rank = draw.one((4, 8, 12, 16, 24))
    program.size("RANK", rank, 4 * rank)


_FORMS: dict[str, Form] = {
    "diagonal": _diagonal,
    "triangular": _triangular,
    "banded": _banded,
    "low rank": _low_rank,
    "diagonal and low rank": _diagonal_and_low_rank,
    "symmetric": _symmetric,
    "blocks": _blocks,
    "kronecker": _kronecker,
    "rank one": _rank_one,
    "permutation": _permutation,
    "toeplitz": _repeated_vector,
}
