"""Normalisations between chains of pointwise operators."""

from __future__ import annotations

from cudal1_data.generator import grid
from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Grid, Samples
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import mean, variance
from cudal1_data.generator.shapes import elements, gpu_elements, near, plane
from cudal1_data.generator.sides import sides
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value, combine, invariant, usual


def norm(program: Program, draw: Draw) -> None:
    """Write a chain, a normalisation, and a chain with gates or residuals."""
    form = draw.one(("layer", "rms", "standard", "peak", "length", "columns", "group", "instance"))
    if form in ("group", "instance"):
        _maps(program, draw, form)
        return
    columns = form == "columns"
    kind = "tilted" if columns else "uneven"
    x = program.input("x", ("ROWS", "COLS"), kind=kind, layout=program.layout())
    before = sides(program, draw, x.dims, draw.integer(0, 1), ("full", "parameter", "column"), full=kind)
    h = program.keep(chain(program, draw, x, draw.integer(0, 2), before))
    if invariant(h, ("scale",) if form in ("rms", "peak", "length") else ("scale", "shift")):
        raise UnsuitableError("the normalisation cancels the last operator")
    h = _FORMS[form](program, _even(h, grid.COLUMNS if columns else grid.ROWS))
    after = sides(program, draw, x.dims, draw.integer(1, 2), ("full", "parameter", "row"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(1, 3), after)))
    plane(program, draw, ("ROWS", "COLS"))


def _maps(program: Program, draw: Draw, form: str) -> None:
    """Write a group or instance normalisation of feature maps."""
    dims = ("BATCH", "CHANNELS", "LENGTH")
    x = program.input("x", dims, kind="uneven", layout=program.layout())
    before = sides(program, draw, dims, draw.integer(0, 1), ("channel", "full"), full="uneven")
    h = chain(program, draw, x, draw.integer(0, 2), before)
    if invariant(h, ("scale", "shift")):
        raise UnsuitableError("the normalisation cancels the last operator")
    sample = _checked(grid.rows(standard, _even(h).grid))
    if form == "instance":
        h = combine("instance_norm", f"F.instance_norm({h.text})", dims, sample, h, bends=True)
    else:
        layer = program.member("norm", "nn.GroupNorm(GROUPS, CHANNELS)")
        h = combine("group_norm", f"{layer}({h.text})", dims, sample, h, bends=True)
    program.cost_ns += 2.5
    after = sides(program, draw, dims, draw.integer(1, 2), ("full", "channel"))
    program.returns(finished(program, draw, chain(program, draw, program.keep(h), draw.integer(1, 3), after)))
    groups, width = draw.one((2, 4, 8)), draw.one((3, 4, 5, 8))
    length = near(draw, draw.one((128, 256, 512, 1024)))
    batch = max(2, round(elements(draw, program) / (groups * width * length)))
    many, channels, long = draw.one((16, 32)), draw.one((128, 256, 320, 512)), draw.one((1024, 3136, 4096, 9216))
    program.size("BATCH", batch, max(2, round(gpu_elements(draw, program, dims) / (channels * long))))
    program.size("CHANNELS", groups * width, channels)
    if form == "group":
        program.size("GROUPS", groups, many)
    program.size("LENGTH", length, long)


def _even(h: Value, lines: list[list[int]] = grid.ROWS) -> Value:
    if not grid.even(h.grid, lines) or grid.repeats(h.grid, lines):
        raise UnsuitableError("a line is nearly constant, or may be")
    return h


def _checked(sample: Grid | None) -> Grid:
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("normalised values are not informative")
    return sample


_LONGER = 2.5
"""Largest of thousands of normal values, over the largest of eight."""
EPS = 1e-5
"""Epsilon that PyTorch's layers add to a variance, and generated ones to a mean square or standard deviation."""


def standard(line: Samples) -> Samples:
    """Return one line after a layer or instance normalisation."""
    middle, size = mean(line), (variance(line) + EPS) ** 0.5
    return [(value - middle) / size for value in line]


def _root_mean_square(line: Samples) -> Samples:
    size = (mean([value * value for value in line]) + EPS) ** 0.5
    return [value / size for value in line]


def _peak(line: Samples) -> Samples:
    largest = _LONGER * max(map(abs, line))
    return [value / (largest + 1e-3) for value in line]


def _layer(program: Program, h: Value) -> Value:
    program.cost_ns += 1.5
    layer = program.member("norm", "nn.LayerNorm(COLS)")
    sample = _checked(grid.rows(standard, h.grid))
    return combine("layer_norm", f"{layer}({h.text})", h.dims, sample, h, detail="rows", bends=True)


def _written(program: Program, h: Value, sample: Grid | None, text: str, node: Node, cost_ns: float) -> Value:
    program.cost_ns += cost_ns
    result = combine("", text, h.dims, _checked(sample), h, bends=True, infix=True)
    return program.keep(Value(result.text, node, result.dims, result.grid, result.curved, infix=True, nested=3))


def _rms(program: Program, h: Value) -> Value:
    program.line(f"size = torch.mean(torch.square({h.text}), dim=-1, keepdim=True)")
    size = Node("mean", (Node("square", (h.node,)),), "rows", heavy=True)
    node = Node("mul", (h.node, Node("rsqrt", (Node("shift", (size,)),))))
    return _written(program, h, grid.rows(_root_mean_square, h.grid), f"{h.text} * torch.rsqrt(size + 1e-5)", node, 2.0)


def _spread(program: Program, h: Value, dim: int, sample: Grid | None, detail: str) -> Value:
    program.line(f"mean = torch.mean({h.text}, dim={dim}, keepdim=True)")
    program.line(f"spread = torch.std({h.text}, dim={dim}, keepdim=True)")
    centred = Node("sub", (h.node, Node("mean", (h.node,), detail, heavy=True)))
    node = Node("div", (centred, Node("shift", (Node("std", (h.node,), detail, heavy=True),))))
    return _written(program, h, sample, f"({h.text} - mean) / (spread + {EPS})", node, 9.0)


def _standardised(program: Program, h: Value) -> Value:
    return _spread(program, h, -1, grid.rows(standard, h.grid), "rows")


def _columns(program: Program, h: Value) -> Value:
    return _spread(program, h, -2, grid.columns(standard, h.grid), "columns")


def _peaked(program: Program, h: Value) -> Value:
    if program.backward:
        raise UnsuitableError("the largest value has a derivative with jumps")
    if usual(h).low >= 0.0 or usual(h).high <= 0.0:
        raise UnsuitableError("an absolute value does nothing")
    program.line(f"peak = torch.amax(torch.abs({h.text}), dim=-1, keepdim=True)")
    largest = Node("amax", (Node("abs", (h.node,)),), "rows", heavy=True)
    node = Node("div", (h.node, Node("shift", (largest,))))
    return _written(program, h, grid.rows(_peak, h.grid), f"{h.text} / (peak + 1e-3)", node, 1.8)


def _length(program: Program, h: Value) -> Value:
    if 0.0 in h.grid.values:
        raise UnsuitableError("a line may be all zeros, and has no length then")
    program.line(f"length = torch.linalg.vector_norm({h.text}, dim=-1, keepdim=True)")
    node = Node("div", (h.node, Node("vector_norm", (h.node,), "rows", heavy=True)))
    text = f"{h.text} * COLS**0.5 / length"
    return _written(program, h, grid.rows(_root_mean_square, h.grid), text, Node("scale", (node,)), 1.8)


_FORMS = {
    "layer": _layer,
    "rms": _rms,
    "standard": _standardised,
    "columns": _columns,
    "peak": _peaked,
    "length": _length,
}
