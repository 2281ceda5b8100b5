"""Matrix products, scaled to values of ordinary size."""

from __future__ import annotations

from cudal1_data.generator import grid
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.program import Program
from cudal1_data.generator.shapes import gpu_rows, hidden, near, target_ns
from cudal1_data.generator.values import Dims, Value, combine


def linear(
    program: Program, draw: Draw, value: Value, width: str, out: str, *, bias: bool | None = None, layer: bool = False
) -> Value:
    """Multiply by a weight of the model, with or without a bias.

    Args:
        program: The task.
        draw: Choices.
        value: The factor, with last dimension `width`.
        width: Constant with the number of terms.
        out: Constant with the number of results.
        bias: Whether to add a bias; drawn by default.
        layer: Whether to use a layer of `torch.nn`; drawn by default.
    """
    bias = draw.chance(0.5) if bias is None else bias
    dims = (*value.dims[:-1], out)
    if not grid.mixes(value.grid, grid.leaf("", draw, "full")):
        raise UnsuitableError("sums of these values are not informative")
    size = grid.size(value.grid.values)
    if layer or draw.chance(0.5):
        name = program.free(("proj", "lift", "mix", "map", "blend", "turn", "drop", "rise", "fold"))
        own = program.member(name, f"nn.Linear({width}, {out}" + ("" if bias else ", bias=False") + ")")
        sample = grid.after_layer(draw, value.grid, 0.62)
        return combine("linear", f"{own}({value.text})", dims, sample, value, detail="bias" if bias else "", layer=True)
    name = program.free(("weight", "kernel", "matrix", "basis", "frame", "table", "factors", "plan", "lens"))
    weight = program.parameter(name, (out, width), text=f"torch.randn({out}, {width}) / {width}**0.5")
    sample = grid.mixed(draw, value.grid, weight.grid, spread=size)
    if not bias:
        return combine("linear", f"F.linear({value.text}, {weight.text})", dims, sample, value, weight, bends=True)
    offset = program.parameter(program.free([f"{name}_bias"]), (out,))
    text = f"F.linear({value.text}, {weight.text}, {offset.text})"
    return combine("linear", text, dims, sample, value, weight, offset, detail="bias", bends=True)


def matmul(
    draw: Draw, left: Value, right: Value, dims: Dims, width: str, *, text: str = "{0} @ {1}", detail: str = ""
) -> Value:
    """Multiply two values and divide by the root of the number of terms.

    Args:
        draw: Choices.
        left: First factor.
        right: Second factor.
        dims: The result's shape.
        width: Number of terms, as an expression of the program.
        text: Text of the product, with `{0}` and `{1}` for the factors.
        detail: Addition to the operator's name in the structure.
    """
    if not grid.mixes(left.grid, right.grid):
        raise UnsuitableError("sums of these products are not informative")
    product = text.format(left.atom, right.atom)
    if product.startswith("torch."):
        written = f"{product} / {width}**0.5"
    else:
        written = f"({product}) / {width}**0.5"
    size = grid.size(left.grid.values) * grid.size(right.grid.values)
    sample = grid.mixed(draw, left.grid, right.grid, spread=size)
    return combine("matmul", written, dims, sample, left, right, detail=detail, bends=True, infix=True)


def sides_of(program: Program, draw: Draw, names: tuple[str, str, str], products: float = 1.0) -> None:
    """Set rows, terms and columns of a product to reach a call's target time.

    Args:
        program: The task with its outputs and counted pointwise work.
        draw: Choices.
        names: Constants for rows, terms and columns.
        products: Number of products of these sizes.
    """
    work = target_ns(draw, program) * program.flops_per_ns / (2.0 * products)
    edge = work ** (1 / 3)
    terms = near(draw, edge * (0.5 + draw.real()))
    columns = near(draw, edge * (0.5 + draw.real()))
    # A result element costs its terms and the pointwise work after it.
    share = terms / (terms + program.cost_ns * program.flops_per_ns / (2.0 * products))
    wide, out = hidden(draw, 8192), hidden(draw, 14336)
    rows = gpu_rows(draw, program, 2.0 * products * wide * out, max(wide, out))
    program.size(names[0], near(draw, max(32.0, work * share / (terms * columns))), rows)
    program.size(names[1], terms, wide)
    program.size(names[2], columns, out)


def batched_sides_of(program: Program, draw: Draw, *, planes: bool = False) -> None:
    """Set `BATCH`, `ROWS`, `INNER` and `COLS` of a batch of products to reach a call's target time.

    Args:
        program: The task with its outputs and counted pointwise work.
        draw: Choices.
        planes: Whether an axis `PLANES` is a part of the batch.
    """
    batch, edge = draw.one((4, 6, 8, 12, 16)), draw.one((1024, 1536, 2048, 4096))
    sides_of(program, draw, ("ROWS", "INNER", "COLS"), batch)
    terms, columns = draw.one((512, 1024, 2048)), draw.one((1024, 2048, 3072))
    many = gpu_rows(draw, program, 2.0 * terms * columns, max(terms, columns))
    cuda_batch = max(4, round(many / edge))
    if planes:
        program.size("PLANES", 2, 4)
        batch, cuda_batch = batch // 2, max(2, cuda_batch // 4)
    program.size("BATCH", batch, cuda_batch)
    for name, cuda in (("ROWS", edge), ("INNER", terms), ("COLS", columns)):
        program.size(name, program.sizes[name][0], cuda)
