"""One layer or operator with one step before or behind it, or two steps: about what an operator's benchmark asks.

Products and prefix sums are divided by the root of their number of terms, and convolutions without a step have a bias,
so that none is a task of a benchmark that asks for one operator. A suite has this family only if it is named:
`generated:short`.
"""

from __future__ import annotations

import itertools
import math

from cudal1_data.generator import grid
from cudal1_data.generator.chain import apply_named, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.families.layers import (
    after_convolution,
    after_linear,
    after_transposed,
    suit_groups,
)
from cudal1_data.generator.families.loss import ELEMENTS, element
from cudal1_data.generator.families.pooling import Window as Pool
from cudal1_data.generator.families.pooling import over_windows
from cudal1_data.generator.families.scan import multiplied, summed, summed_before
from cudal1_data.generator.families.steps import (
    Step,
    averaged_maps,
    logsumexp,
    normed_maps,
    normed_row,
    over_channels,
    plain_step,
    pooled_maps,
    softmax_over_features,
    step,
)
from cudal1_data.generator.grid import Samples
from cudal1_data.generator.maps import dims_of, set_sizes
from cudal1_data.generator.products import batched_sides_of, matmul, sides_of
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import Axis, reduced
from cudal1_data.generator.shapes import plane
from cudal1_data.generator.structure import nodes
from cudal1_data.generator.values import Dims, Value, combine, invariant
from cudal1_data.generator.windows import cost_ns, drawn_pool, drawn_window, through

_FLAT: tuple[Dims, ...] = (("ROWS", "COLS"), ("ROWS", "COLS"), ("BATCH", "ROWS", "COLS"))
_BATCHED: Dims = ("BATCH", "ROWS", "INNER")
_PLANES: Dims = ("BATCH", "PLANES", "ROWS", "INNER")
_PRODUCTS: tuple[tuple[str, Dims, Dims, str], ...] = (
    ("{0} @ {1}", ("ROWS", "INNER"), ("INNER", "COLS"), ""),
    ("torch.matmul({0}, {1})", ("ROWS", "INNER"), ("INNER", "COLS"), ""),
    ("{0}.t() @ {1}", ("INNER", "ROWS"), ("INNER", "COLS"), "left transposed"),
    ("torch.matmul({0}.t(), {1})", ("INNER", "ROWS"), ("INNER", "COLS"), "left transposed"),
    ("{0} @ {1}.t()", ("ROWS", "INNER"), ("COLS", "INNER"), "right transposed"),
    ("torch.matmul({0}, {1}.t())", ("ROWS", "INNER"), ("COLS", "INNER"), "right transposed"),
    ("{0}.t() @ {1}.t()", ("INNER", "ROWS"), ("COLS", "INNER"), "both transposed"),
    ("torch.bmm({0}, {1})", _BATCHED, ("BATCH", "INNER", "COLS"), ""),
    ("torch.bmm({0}, {1}.transpose(1, 2))", _BATCHED, ("BATCH", "COLS", "INNER"), "right transposed"),
    ("torch.matmul({0}, {1})", _BATCHED, ("INNER", "COLS"), "right shared"),
    ('torch.einsum("bik,kj->bij", {0}, {1})', _BATCHED, ("INNER", "COLS"), "right shared"),
    ('torch.einsum("bik,bkj->bij", {0}, {1})', _BATCHED, ("BATCH", "INNER", "COLS"), ""),
    ('torch.einsum("bpik,kj->bpij", {0}, {1})', _PLANES, ("INNER", "COLS"), "right shared"),
    ("torch.matmul({0}, {1})", _PLANES, ("INNER", "COLS"), "right shared"),
)
"""Products: text, shapes of both factors, addition to the operator's name in the structure."""
_PLANE, _CUBE = 2, 3
"""Dimensions of planes and of cubes."""
_PLACE_NS, _LOSS_NS = 1.5, 3.0
"""Time of an element of a search for the largest, and of a cross-entropy, on one core."""
_TAP_NS, _MAX_REACH = 4.0, 3
"""Time of an element of a pool's window on one core, and samples of the grid on both sides of one."""
_KNOWN = (
    {"gelu", "scale"},
    {"gelu_tanh", "scale"},
    {"linear", "relu"},
    {"clamp_low", "clamp_high"},
    {"mean", "scale"},
)
"""Operators of tasks of KernelBench, up to constants: 26, 88, 32 and 48 of level 1, and 76 of level 2."""


def short(program: Program, draw: Draw) -> None:
    """Write one of the forms."""
    draw.one(_FORMS)(program, draw)
    if {node.operator for node in nodes(*program.roots)} in _KNOWN:
        raise UnsuitableError("a task of a benchmark, up to constants")


def _two_steps(program: Program, draw: Draw) -> None:
    dims = draw.one((*_FLAT, dims_of(2)))
    h = program.keep(plain_step(program, draw, program.input("x", dims)))
    program.returns(finished(program, draw, plain_step(program, draw, h)))
    if len(dims) == len(dims_of(2)):
        set_sizes(program, draw, dims, 0.0)
    else:
        plane(program, draw, dims)


def _product(program: Program, draw: Draw) -> None:
    """Write a product over the root of its number of terms; half of them are followed by a step."""
    text, left, right, detail = draw.one(_PRODUCTS)
    a, b = program.input("a", left), program.input("b", right)
    out = (*left[:-1], "COLS") if "BATCH" in left else ("ROWS", "COLS")
    h = matmul(draw, a, b, out, "INNER", text=text, detail=detail)
    if draw.chance(0.5):
        h = step(program, draw, program.keep(h), ("parameter",))
    program.returns(finished(program, draw, h))
    if "BATCH" in left:
        batched_sides_of(program, draw, planes="PLANES" in left)
    else:
        sides_of(program, draw, ("ROWS", "INNER", "COLS"))


def _layer(program: Program, draw: Draw) -> None:
    draw.one((after_linear, after_convolution, after_convolution, after_transposed))(program, draw, _one_step)


def _convolution(program: Program, draw: Draw) -> None:
    """Write a convolution with any window; half of them are followed by a step.

    Without a step it has a bias, unlike the convolutions of KernelBench; a strided one over planes has a step, because
    task 50 of level 1 has a bias.
    """
    rank = draw.one((1, 2, 2, 3))
    window = drawn_window(draw, rank)
    alone = draw.chance(0.5) and not (rank == _PLANE and max(window.stride) > 1 and not window.transposed)
    out, widening = ("CHANNELS", 1.0) if window.groups == "CHANNELS" else ("OUT", draw.one((1.0, 2.0)))
    x = program.input("x", dims_of(rank))
    h = through(program, draw, x, window, out, bias=alone or draw.chance(0.5))
    if not alone:
        h = step(program, draw, program.keep(h), ("channel",))
    if h.node.operator in ("add", "sub"):
        raise UnsuitableError("a bias of channels behind a convolution is the convolution's own, and others may be")
    program.returns(finished(program, draw, h))
    dense_ns = cost_ns(program, window, widening)
    growth = widening * (math.prod(window.stride) if window.transposed else 1.0)
    program.cost_ns *= growth
    widths = {} if out == "CHANNELS" else {out: widening}
    set_sizes(program, draw, x.dims, dense_ns, widths=widths, growth=growth)


def _pool(program: Program, draw: Draw) -> None:
    """Write a pool with any window and a step behind it."""
    rank = draw.one((1, 2, 2, 3))
    average = draw.chance(0.5) and (rank < _CUBE or program.dtype == "float32")  # torch has no other on a CPU
    x = program.input("x", dims_of(rank), kind="uneven")
    window = drawn_pool(draw, rank, average=average)
    text = f"nn.{'Avg' if average else 'Max'}Pool{rank}d({window.settings(pool=True)})"
    taps, steps = math.prod(window.edges), math.prod(window.stride)
    kind = Pool(
        "avg_pool" if average else "max_pool",
        f"{program.member('pool', text)}({{0}})",
        taps * _TAP_NS / steps,
        smooth=average,
        reach=min(taps // 2, _MAX_REACH),
    )
    detail = f"{window.edges}/{window.stride}/{window.padding}/{window.dilation}"
    h = program.keep(over_windows(program, x, kind, window.dims(x.dims, x.dims[1]), detail))
    program.returns(finished(program, draw, plain_step(program, draw, h)))
    set_sizes(program, draw, x.dims, 0.0)


def _one_step(program: Program, draw: Draw, h: Value, larger: tuple[Step, ...], kinds: tuple[str, ...]) -> Value:
    return draw.one(larger)(program, draw, h) if draw.chance(0.3) else step(program, draw, h, kinds)


def _reduction(program: Program, draw: Draw) -> None:
    """Write a reduction over the last dimension or the one before it, with a step before or behind it."""
    axis: Axis = draw.one(("rows", "columns"))
    dims = draw.one(_FLAT)
    x = program.input("x", dims, kind="uneven" if axis == "rows" else "tilted")
    keepdim = draw.chance(0.5)

    def operator(program: Program, draw: Draw, h: Value) -> Value:
        return reduced(program, draw, h, axis, keepdim=keepdim)

    _with_a_step(program, draw, x, operator)
    plane(program, draw, dims)


def _place(program: Program, draw: Draw) -> None:
    """Write the place of the largest or smallest element of each line, behind an operator that rounds nothing.

    Raises:
        UnsuitableError: The task is in half precision, whose elements are often equal.
    """
    if program.dtype != "float32":
        raise UnsuitableError("in half precision many elements are the largest")
    axis: Axis = draw.one(("rows", "columns"))
    dims = draw.one(_FLAT)
    x = program.input("x", dims)
    name = draw.one(("abs", "maximum", "minimum"))
    h = apply_named(program, draw, name, x, *([] if name == "abs" else [program.input("y", dims)]))
    kind, best = draw.one((("argmax", max), ("argmin", min)))
    over = grid.rows if axis == "rows" else grid.columns
    sample = over(lambda line: float(line.index(best(line))), h.grid)
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("places are not informative")
    program.cost_ns += _PLACE_NS
    place, keepdim = {"rows": -1, "columns": -2}[axis], draw.chance(0.3)
    text = f"torch.{kind}({h.text}, dim={place}{', keepdim=True' if keepdim else ''})"
    kept = ("1",) if keepdim else ()
    out = (*dims[:place], *kept, *dims[len(dims) + place + 1 :])
    program.returns(finished(program, draw, combine(kind, text, out, sample, h, detail=axis)))
    plane(program, draw, dims)


def _rows(program: Program, draw: Draw) -> None:
    """Write a norm, a softmax or a sum of exponentials of rows, with a step before or behind it."""
    dims = ("ROWS", "COLS")
    x = program.input("x", dims, kind="uneven")
    _with_a_step(program, draw, x, draw.one((normed_row, normed_row, softmax_over_features, logsumexp)))
    plane(program, draw, dims)
    suit_groups(program, "COLS")


def _maps(program: Program, draw: Draw) -> None:
    """Write a norm, a pool or a reduction of maps, with a step before or behind it."""
    dims = dims_of(draw.one((1, 2, 2, 3)))
    x = program.input("x", dims, kind="uneven")
    operators = (normed_maps, normed_maps, pooled_maps, averaged_maps, over_channels, softmax_over_features)
    _with_a_step(program, draw, x, draw.one(operators))
    set_sizes(program, draw, dims, 0.0)


def _scan(program: Program, draw: Draw) -> None:
    """Write prefix sums or products of an input; half of them are followed by a step."""
    x = program.input("x", ("ROWS", "COLS"))
    h = multiplied(program, x) if draw.chance(0.3) else _prefix_sums(program, draw, x)
    if draw.chance(0.5):
        h = plain_step(program, draw, program.keep(h))
    program.returns(finished(program, draw, h))
    plane(program, draw, ("ROWS", "COLS"))


def _prefix_sums(program: Program, draw: Draw, x: Value) -> Value:
    axis: Axis = draw.one(("rows", "rows", "columns"))
    over = grid.rows if axis == "rows" else grid.columns
    program.cost_ns += 2.5 if axis == "rows" else 5.0
    if axis == "rows" and draw.chance(0.5):
        sums = grid.rows(lambda line: [value / math.sqrt(grid.SIDE) for value in _before(line)], x.grid)
        return summed_before(program, draw, x, sums)
    sample = over(lambda line: [value / math.sqrt(grid.SIDE) for value in itertools.accumulate(line)], x.grid)
    return summed(x, axis, sample, backwards=draw.chance(0.4))


def _before(line: Samples) -> Samples:
    return list(itertools.accumulate(line, initial=0.0))[:-1]


def _loss(program: Program, draw: Draw) -> None:
    """Write the mean loss of each row."""
    dims = ("ROWS", "COLS")
    predicted, wanted = (program.input(name, dims, kind="uneven") for name in ("predicted", "wanted"))
    losses = [one for one in ELEMENTS if one.name != "poisson" or program.dtype != "float16"]
    h = program.keep(element(program, draw.one(losses), predicted, wanted))
    program.returns(finished(program, draw, reduced(program, draw, h, "rows", names=("mean",))))
    plane(program, draw, dims)


def _labelled(program: Program, draw: Draw) -> None:
    """Write the cross-entropy of each row of logits and its label, behind a step."""
    dims = ("ROWS", "COLS")
    h = program.keep(plain_step(program, draw, program.input("x", dims, kind="uneven")))
    if invariant(h, ("shift",)):
        raise UnsuitableError("a cross-entropy cancels a shift")
    labels = program.index("labels", ("ROWS",), "COLS")
    # The logit of a label is any element of the row.
    mine = grid.mixed(draw, h.grid, labels.grid, spread=grid.size(h.grid.values), kind="column")
    whole = grid.rows(lambda line: math.log(sum(map(math.exp, line))), h.grid)
    sample = whole and grid.apply(lambda total, one: total - one, whole, mine)
    if sample is None:
        raise UnsuitableError("exponentials overflow")
    program.cost_ns += _LOSS_NS
    text = f'F.cross_entropy({h.text}, {labels.text}, reduction="none")'
    program.returns(
        finished(program, draw, combine("cross_entropy", text, ("ROWS",), sample, h, labels, detail="rows"))
    )
    plane(program, draw, dims)


def _with_a_step(program: Program, draw: Draw, x: Value, operator: Step) -> None:
    """Write an operator with one pointwise step before or behind it; shares are small, so they come last."""
    if draw.chance(0.5) or operator is softmax_over_features:
        h = operator(program, draw, program.keep(plain_step(program, draw, x)))
    else:
        h = plain_step(program, draw, program.keep(operator(program, draw, x)))
    program.returns(finished(program, draw, h))


_FORMS = (
    *[_two_steps, _two_steps, _product, _product, _layer, _reduction, _rows, _maps, _scan, _loss, _place, _labelled],
    *[_convolution] * 4,
    _pool,
    _pool,
)
"""Forms with the shares of their tasks; a third of the operators' benchmark are convolutions."""
