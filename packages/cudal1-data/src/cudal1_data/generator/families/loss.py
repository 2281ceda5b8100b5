"""Losses per row: distances, likelihoods and margins, weighted and combined."""

from __future__ import annotations

import math
from collections.abc import Callable

from cudal1_data.generator import grid
from cudal1_data.generator.bounds import POSITIVE, Interval
from cudal1_data.generator.chain import chain, finished, joined
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Grid, Samples
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import reduced
from cudal1_data.generator.shapes import plane
from cudal1_data.generator.sides import sides
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value, combine, invariant, pointwise, undoes
from cudal1_data.generator.vocabulary import Operator

_DIMS = ("ROWS", "COLS")
_COLUMNS = 256.0
"""Columns of a typical task."""

ELEMENTS: tuple[Operator, ...] = (
    Operator("squared_error", "torch.square({0} - {1})", 2.0, "square(a - b)", graph="square(sub(0,1))"),
    Operator("huber", 'F.huber_loss({0}, {1}, reduction="none", delta=0.8)', 3.0, "huber(abs(a - b), 0.8)",
             smooth=False),
    Operator("smooth_l1", 'F.smooth_l1_loss({0}, {1}, reduction="none", beta=0.5)', 3.0, "smooth_l1(abs(a - b), 0.5)",
             smooth=False),
    Operator("pinball", "torch.maximum(0.7 * ({0} - {1}), 0.3 * ({1} - {0}))", 5.0,
             "max(0.7 * (a - b), 0.3 * (b - a))", smooth=False, graph="maximum(scale(sub(0,1)),scale(sub(1,0)))"),
    Operator("logistic", "F.softplus(-{0} * {1})", 4.5, "softplus(-a * b)", graph="softplus(mul(neg(0),1))"),
    Operator("hinge", "torch.relu(1 - {0} * {1})", 3.0, "relu(1.0 - a * b)", smooth=False,
             graph="relu(shift(neg(mul(0,1))))"),
    Operator("squared_hinge", "torch.square(torch.relu(1 - {0} * {1}))", 4.0, "square(relu(1.0 - a * b))",
             smooth=False, graph="square(relu(shift(neg(mul(0,1)))))"),
    Operator("poisson", "torch.exp({0}) - torch.square({1}) * {0}", 4.0, "exp(a) - square(b) * a",
             infix=True, graph="sub(exp(0),mul(square(1),0))"),
    Operator("cauchy", "torch.log1p(torch.square({0} - {1}))", 4.0, "log1p(square(a - b))",
             graph="log1p(square(sub(0,1)))"),
    Operator("bernoulli", 'F.binary_cross_entropy_with_logits({0}, torch.sigmoid({1}), reduction="none")', 6.0,
             "binary_cross_entropy_with_logits(a, sigmoid(b))", graph="bernoulli(0,sigmoid(1))"),
)  # fmt: skip
"""Losses per element."""


def loss(program: Program, draw: Draw) -> None:
    """Write a loss for each row, and a chain on it."""
    # The gradient of a likelihood is nearly constant: the label, and a small share elsewhere.
    forms = (_elements, _elements, _divergence, _triplet, _cosine, *(() if program.backward else (_labels,)))
    h = program.keep(draw.one(forms)(program, draw))
    with program.uncounted():
        after = [program.input("weight", ("ROWS",), kind="column")] if draw.chance(0.4) else []
        program.returns(finished(program, draw, chain(program, draw, h, draw.integer(1, 2), after)))
    plane(program, draw, _DIMS)


def _pair(program: Program, draw: Draw) -> tuple[Value, Value]:
    """Add predictions and targets, in rows that differ."""
    predicted = program.input("predicted", _DIMS, kind="uneven", layout=program.layout())
    wanted = program.input("wanted", _DIMS, kind="uneven")
    return program.keep(chain(program, draw, predicted, draw.integer(0, 1))), wanted


def _elements(program: Program, draw: Draw) -> Value:
    """Write one or two combined losses per element, weighted or not, reduced over rows."""
    predicted, wanted = _pair(program, draw)
    count = 1 + draw.chance(0.3)
    table = [one for one in ELEMENTS if one.smooth or not program.backward]
    if program.dtype == "float16":  # its exponentials overflow
        table = [one for one in table if one.name != "poisson"]
    parts = [element(program, one, predicted, wanted) for one in draw.some(table, count)]
    h = parts[0] if count == 1 else joined(program, draw, program.keep(parts[0]), program.keep(parts[1]))
    if draw.chance(0.5):
        weights = sides(program, draw, _DIMS, 1, ("full", "column"), full="uneven")
        h = chain(program, draw, h, draw.integer(0, 1), weights)
    return reduced(program, draw, h, "rows", names=("mean", "rms", "log_mean_exp", "mean_abs"))


def element(program: Program, operator: Operator, predicted: Value, wanted: Value) -> Value:
    """Write a loss for each element.

    Raises:
        UnsuitableError: It is not informative.
    """
    result = pointwise(operator, predicted, wanted)
    if result is None or not grid.informative(result.grid):
        raise UnsuitableError(f"{operator.name} is not informative")
    program.cost_ns += operator.cost_ns
    return result


def _divergence(program: Program, draw: Draw) -> Value:
    """Write a cross entropy or a Kullback-Leibler divergence in either direction."""
    predicted, wanted = _pair(program, draw)
    if invariant(predicted, ("shift",)) or undoes(Node("softmax", (predicted.node,)), [predicted.node]):
        raise UnsuitableError("a softmax cancels the last operator")
    program.cost_ns += 11.0
    program.line(f"p = torch.softmax({wanted.text}, dim=-1)")
    program.line(f"log_q = torch.log_softmax({predicted.text}, dim=-1)")
    p = Node("softmax", (wanted.node,), "rows", heavy=True)
    log_q = Node("log_softmax", (predicted.node,), "rows", heavy=True)
    log_p = Node("log_softmax", (wanted.node,), "rows", heavy=True)
    form = draw.one(("cross entropy", "kullback-leibler", "reverse"))
    if form == "cross entropy":
        text, inner = "-torch.sum(p * log_q, dim=-1)", Node("mul", (p, log_q))
    else:
        program.line(f"log_p = torch.log_softmax({wanted.text}, dim=-1)")
        forwards = form == "kullback-leibler"
        written = "p * (log_p - log_q)" if forwards else "torch.exp(log_q) * (log_q - log_p)"
        text = f"torch.sum({written}, dim=-1)"
        share = p if forwards else Node("exp", (log_q,))
        inner = Node("mul", (share, Node("sub", (log_p, log_q) if forwards else (log_q, log_p))))
    node = Node("sum", (inner,), "rows", heavy=True)
    # A cross entropy grows with the logarithm of the number of columns; the sample has few.
    more = math.log(_COLUMNS / grid.SIDE) if form == "cross entropy" else -1.5
    sample = _rows(lambda one, other: _divergence_of(one, other) + more, predicted.grid, wanted.grid)
    bent = frozenset((*predicted.leaves, *wanted.leaves))
    return Value(text, node, ("ROWS",), sample, bent, infix=text.startswith("-"), nested=4, bounds=POSITIVE)


def _divergence_of(predicted: Samples, wanted: Samples) -> float:
    p, log_q = [math.exp(value) for value in wanted], predicted
    total, log_total = math.fsum(p), math.log(math.fsum(math.exp(value) for value in log_q))
    return math.fsum(one / total * (log_total - other) for one, other in zip(p, log_q, strict=True))


def _rows(function: Callable[[Samples, Samples], float], one: Grid, other: Grid) -> Grid:
    """Apply a function to each pair of rows."""

    def over(first: Samples, second: Samples) -> Samples:
        values = [function([first[p] for p in line], [second[p] for p in line]) for line in grid.ROWS]
        return [value for value in values for _ in range(grid.SIDE)]

    names = grid.leaves(one, other)
    redrawn = {n: over(one.redrawn.get(n, one.values), other.redrawn.get(n, other.values)) for n in names}
    return Grid(over(one.values, other.values), redrawn)


def _labels(program: Program, draw: Draw) -> Value:
    """Write the likelihood of a labelled column: smoothed, focal or with a margin."""
    predicted = program.input("predicted", _DIMS, layout=program.layout())
    labels = program.index("labels", ("ROWS",), "COLS")
    # An operand constant along a row cancels in the softmax.
    bias = sides(program, draw, _DIMS, 1, ("parameter",))
    h = program.keep(chain(program, draw, predicted, draw.integer(0, 1), bias))
    if invariant(h, ("shift",)) or undoes(Node("softmax", (h.node,)), [h.node]):
        raise UnsuitableError("a softmax cancels the last operator")
    program.cost_ns += 3.0
    program.line(f"logs = torch.log_softmax({h.text}, dim=-1)")
    logs = Node("log_softmax", (h.node,), "rows", heavy=True)
    program.line(f"chosen = torch.gather(logs, 1, {labels.text}[:, None])[:, 0]")
    chosen = Node("gather", (logs, labels.node), heavy=True)
    form = draw.one(("smoothed", "focal", "margin"))
    if form == "smoothed":
        text = "-0.8 * chosen - 0.2 * torch.mean(logs, dim=-1)"
        node = Node("sub", (Node("scale", (chosen,)), Node("scale", (Node("mean", (logs,), "rows", heavy=True),))))
    elif form == "focal":
        text = "-torch.square(1 - torch.exp(chosen)) * chosen"
        node = Node("mul", (Node("square", (Node("shift", (Node("exp", (chosen,)),)),)), chosen))
    else:
        text = "F.softplus(-4 - chosen)"
        node = Node("softplus", (Node("shift", (Node("neg", (chosen,)),)),))
    sample = grid.mixed(draw, h.grid, labels.grid, spread=1.2, kind="column")
    # Each of n classes gets about 1 / n; the margin subtracts 4.
    level = 3.0 if form == "margin" else math.log(_COLUMNS)
    offset = grid.apply(lambda value: level + value, sample)
    assert offset is not None
    bent = frozenset((*h.leaves, *labels.leaves))
    return Value(text, node, ("ROWS",), offset, bent, infix=form != "margin", nested=4, bounds=POSITIVE)


def _triplet(program: Program, draw: Draw) -> Value:
    """Write the difference of an anchor's distances from two rows."""
    anchor = program.input("anchor", _DIMS, kind="uneven", layout=program.layout())
    near_by = program.input("near", _DIMS, kind="uneven")
    far = program.input("far", _DIMS, kind="uneven")
    scale = program.parameter("scale", ("COLS",), text="0.5 + torch.rand(COLS)", kind="positive")
    steps = draw.integer(0, 1)
    h = program.keep(chain(program, draw, anchor, steps))
    program.cost_ns += 10.0
    parts: list[Value] = []
    for name, other in (("pull", near_by), ("push", far)):
        sample = _rows(_distance, h.grid, other.grid)
        text = f"torch.mean({scale.text} * torch.square({h.text} - {other.text}), dim=-1)"
        square = Node("mul", (scale.node, Node("square", (Node("sub", (h.node, other.node)),))))
        bent = frozenset((*h.leaves, *other.leaves))
        one = Value(text, Node("mean", (square,), "rows", heavy=True), ("ROWS",), sample, bent, nested=4)
        parts.append(program.keep(one, name))
    both = grid.apply(lambda pull, push: pull - push, parts[0].grid, parts[1].grid)
    assert both is not None
    # The scale affects the result: it is positive and weights every column.
    kept = Grid(both.values, {**both.redrawn, **scale.grid.redrawn})
    return combine("sub", "pull - push", ("ROWS",), kept, *parts, heavy=False, infix=True)


def _distance(one: Samples, other: Samples) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(one, other, strict=True)) / len(one)


def _cosine(program: Program, draw: Draw) -> Value:
    """Write the cosine of the angle between two rows."""
    predicted, wanted = _pair(program, draw)
    program.cost_ns += 6.0
    if invariant(predicted, ("scale",)):
        raise UnsuitableError("an angle does not depend on a scale")
    sample = _rows(_angle, predicted.grid, wanted.grid)
    if not grid.informative(sample):
        raise UnsuitableError("angles are not informative")
    text = f"F.cosine_similarity({predicted.text}, {wanted.text}, dim=-1)"
    return combine("cosine_similarity", text, ("ROWS",), sample, predicted, wanted, detail="rows", bends=True,
                   bounds=Interval(-1.0, 1.0))  # fmt: skip


def _angle(one: Samples, other: Samples) -> float:
    lengths = grid.size(one) * grid.size(other) * len(one)
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / (lengths + 1e-6)
