"""Softmax and similar normalisations over rows or columns, of masked, scaled and biased scores, then a chain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cudal1_data.generator import grid
from cudal1_data.generator.bounds import POSITIVE, Interval
from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Samples
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import dots
from cudal1_data.generator.shapes import plane
from cudal1_data.generator.sides import sides
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value, combine, invariant, is_even, undoes


def shares(line: Samples) -> Samples:
    """Return one line after a softmax, times its length."""
    largest = max(line)
    parts = [math.exp(value - largest) for value in line]
    return [len(line) * part / math.fsum(parts) for part in parts]


def _log_softmax(line: Samples) -> Samples:
    # A row of the program has several hundred elements, not 8.
    total = math.log(math.fsum(math.exp(value) for value in line) / len(line)) + math.log(700)
    return [value - total for value in line]


@dataclass(frozen=True)
class _Form:
    """A normalisation of scores to shares; `{h}`: scores, `{dim}`: axis, `{n}`: their number."""

    name: str
    lines: tuple[str, ...]
    text: str
    cost_ns: float
    parts: tuple[str, ...] = ()
    """Pointwise operators before the sum, innermost first, if it is written out."""


_FORMS = (
    _Form("softmax", (), "{n} * torch.softmax({h}, dim={dim})", 3.0),
    _Form("softmax", (), "{n} * torch.softmax({h}, dim={dim})", 3.0),
    _Form("softmin", (), "{n} * F.softmin({h}, dim={dim})", 3.5),
    _Form("log_softmax", (), "torch.log_softmax({h}, dim={dim})", 3.0),
    _Form("sigmoid shares", ("gates = torch.sigmoid({h})",),
          "gates / torch.mean(gates, dim={dim}, keepdim=True)", 4.0, ("sigmoid",)),
    _Form("softplus shares", ("gates = F.softplus({h})",),
          "gates / torch.mean(gates, dim={dim}, keepdim=True)", 6.0, ("softplus",)),
    _Form("square shares", ("gates = 0.1 + torch.square({h})",),
          "gates / torch.mean(gates, dim={dim}, keepdim=True)", 4.0, ("square", "shift")),
)  # fmt: skip

LARGEST_SCORE = 6.0
"""Maximum score among the samples; the largest of a real row is about twice that, of squares four times."""

_GATES: dict[str, Callable[[float], float]] = {
    "sigmoid shares": lambda x: 1 / (1 + math.exp(-x)),
    "softplus shares": lambda x: math.log1p(math.exp(x)),
    "square shares": lambda x: 0.1 + x * x,
}


def softmax(program: Program, draw: Draw) -> None:
    """Write scores, shares, and a chain or a weighted sum."""
    columns = draw.chance(0.25)
    dims = ("ROWS", "COLS") if draw.chance(0.7) else ("BATCH", "ROWS", "COLS")
    x = program.input("x", dims, layout=program.layout())
    before = sides(program, draw, dims, draw.integer(1, 2), ("full", "parameter", "column", "row"))
    h = chain(program, draw, x, draw.integer(0, 2), before)
    if draw.chance(0.35):
        if columns:
            raise UnsuitableError("columns are summed one row after another: equal terms all round the same way")
        h = _masked(program, h)
    h = program.keep(_shared(program, draw, program.keep(h), -2 if columns else -1))
    if not columns and draw.chance(0.25):
        h = dots(program, draw, h, program.input("values", dims), "COLS")
        h = program.keep(chain(program, draw, h, 1))
        after = sides(program, draw, h.dims, 1, ("full",)) if len(h.dims) > 1 else []
    else:
        after = sides(program, draw, dims, draw.integer(0, 2), ("full", "parameter", "row"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(0 if after else 1, 2), after)))
    plane(program, draw, dims)


def _masked(program: Program, h: Value) -> Value:
    """Set masked scores to -4, so that they hardly count."""
    seen = program.input("seen", h.dims, kind="mask")
    sample = grid.apply(lambda value, mask: value if mask else -4.0, h.grid, seen.grid)
    assert sample is not None
    program.cost_ns += 4.0
    text = f"torch.where({seen.text}, {h.text}, -4.0)"
    return combine("where", text, h.dims, sample, seen, h, heavy=False, bounds=h.bounds | Interval(-4.0, -4.0))


def _shared(program: Program, draw: Draw, h: Value, dim: int) -> Value:
    # Gradients of small shares' logarithms are near zero.
    form = draw.one([one for one in _FORMS if not (program.backward and one.name == "log_softmax")])
    largest = LARGEST_SCORE / 2 if _squared(h.node) else LARGEST_SCORE
    if form.name.startswith("softm") and max(map(abs, h.grid.values)) > largest:
        raise UnsuitableError("exponentials amplify rounding errors of large scores")
    inner = form.parts[0] if form.parts else "softmax"
    if undoes(Node(inner, (h.node,)), [h.node]) or (not form.parts and invariant(h, ("shift",))):
        raise UnsuitableError("the shares cancel the last operator")
    if form.name == "square shares" and is_even(h.node):
        raise UnsuitableError("a square needs no absolute value")
    over, length = (grid.rows, "COLS") if dim == -1 else (grid.columns, "ROWS")
    if form.name == "log_softmax":
        sample = over(_log_softmax, h.grid)
    elif form.parts:
        gate = _GATES[form.name]
        sample = over(lambda line: _normalised([gate(value) for value in line]), h.grid)
    else:
        sign = -1.0 if form.name == "softmin" else 1.0
        sample = over(lambda line: shares([sign * value for value in line]), h.grid)
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("shares are not informative")
    program.cost_ns += form.cost_ns + (4.0 if dim == -2 else 0.0)
    for line in form.lines:
        program.line(line.format(h=h.text))
    text = form.text.format(h=h.text, dim=dim, n=length)
    result = combine(form.name, text, h.dims, sample, h, detail=_axis(dim), bends=True, infix="*" in text,
                     bounds=Interval(high=0.0) if form.name == "log_softmax" else POSITIVE)  # fmt: skip
    if not form.parts:
        return result
    node = h.node
    for part in form.parts:
        node = Node(part, (node,))
    node = Node("div", (node, Node("mean", (node,), _axis(dim), heavy=True)))
    return Value(text, node, h.dims, sample, result.curved, infix=True, nested=2, bounds=POSITIVE)


def _squared(node: Node) -> bool:
    """Return whether scores grow like squares, possibly shifted, scaled or masked."""
    if node.operator == "square":
        return True
    return node.operator in ("where", "scale", "shift", "add", "sub", "lerp") and any(map(_squared, node.operands))


def _axis(dim: int) -> str:
    return "rows" if dim == -1 else "columns"


def _normalised(line: Samples) -> Samples:
    total = math.fsum(line)
    return [len(line) * value / total for value in line]
