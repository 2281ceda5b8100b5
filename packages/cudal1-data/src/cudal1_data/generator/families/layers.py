"""A layer and what follows it in a model, one step a line: activations, numbers, biases, pooling, a norm, a mean.

Unlike in other families, a layer has as many output channels as it likes, convolutions need no padding, and no step
needs a further input. A suite has this family only if it is named: `generated:layers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cudal1_data.generator import grid
from cudal1_data.generator.chain import applied, apply_named, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.families.norm import standard
from cudal1_data.generator.families.pooling import HALVING, mean_of_maps, pooled
from cudal1_data.generator.families.softmax import LARGEST_SCORE, shares
from cudal1_data.generator.maps import Form, convolved, dense_ns, dims_of, grown, set_sizes
from cudal1_data.generator.products import linear, sides_of
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import LARGEST_EXPONENT, ends, log_mean_exp, mean, reduced
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Value, combine, invariant
from cudal1_data.generator.vocabulary import Operator

_ATTEMPTS = 12
"""Maximum number of draws of one step; then the attempt at a task ends."""
_MIN_POINTWISE = 3
"""Minimum number of steps for each element of a layer's result."""
_FORMS = (
    *(Form("conv", kernel, padded=False) for kernel in (3, 3, 3, 5, 7)),
    Form("conv", 3),
    Form("conv", 5),
    Form("conv", 3, stride=2),
    Form("pointwise_conv", 1),
    Form("grouped_conv", 3, groups=4, padded=False),
)
_CUBE = 3
"""Dimensions of the largest maps."""
_CUBES = tuple(one for one in _FORMS if one.kernel <= 5 and one.groups == 1)
"""Convolutions for maps with three dimensions, which have short edges and few channels."""
_WINDOWS = ((3, 2, 1, 1), (4, 2, 1, 0), (2, 2, 0, 0), (3, 2, 1, 0), (3, 1, 1, 0), (3, 1, 0, 0), (5, 1, 0, 0))
"""Transposed convolutions: kernel, stride, padding, output padding."""
_ACTIVATIONS = (
    "relu", "leaky_relu", "gelu", "gelu_tanh", "tanh", "sigmoid", "softplus", "mish", "hardswish", "elu", "selu",
    "silu", "logsigmoid", "softsign", "square",
)  # fmt: skip
_NUMBERS = (
    Operator("scale", "{0} * {c}", 0.5, "a * b", linear=True, infix=True, constants=(0.1, 0.5, 1.5, 2.0, 3.0)),
    Operator("scale", "{0} / {c}", 0.5, "a / b", linear=True, infix=True, constants=(1.5, 2.0, 4.0)),
    Operator("shift", "{0} + {c}", 0.5, "a + b", linear=True, infix=True, constants=(0.1, 0.5, 1.0, 3.0)),
    Operator("shift", "{0} - {c}", 0.5, "a - b", linear=True, infix=True, constants=(0.1, 0.5, 1.5, 2.0)),
    Operator("clamp", "torch.clamp({0}, min=-{c}, max={c})", 0.5, "min(max(a, -b), b)", smooth=False,
             constants=(0.5, 1.0, 1.5, 2.0)),
    Operator("clamp", "F.hardtanh({0}, min_val=-{c}, max_val={c})", 0.5, "min(max(a, -b), b)", smooth=False,
             constants=(0.5, 1.0, 1.5)),
    Operator("clamp_low", "torch.clamp({0}, min=-{c})", 0.5, "max(a, -b)", smooth=False, constants=(0.1, 0.5, 1.0)),
    Operator("clamp_high", "torch.clamp({0}, max={c})", 0.5, "min(a, b)", smooth=False, constants=(0.1, 0.5, 1.0)),
)  # fmt: skip
_LINE = 256
"""Usual number of features or channels."""
_NUMERIC_SHARE = 0.4
"""Share of pointwise steps with a number."""


_Step = Callable[[Program, Draw, Value], Value]
"""Writes an operator that needs a separate pass over memory."""


def layers(program: Program, draw: Draw) -> None:
    """Write a layer and what follows it."""
    draw.one((_after_linear, _after_convolution, _after_convolution, _after_transposed))(program, draw)


def _after_linear(program: Program, draw: Draw) -> None:
    x = program.input("x", ("ROWS", "INNER"))
    h = program.keep(linear(program, draw, x, "INNER", "OUTER", layer=True))
    h = _steps(program, draw, h, (_normed_row, _normed_row, _reduced_row, _logsumexp), ("parameter",))
    program.returns(finished(program, draw, h))
    sides_of(program, draw, ("ROWS", "INNER", "OUTER"))
    if "GROUPS" in program.sizes:
        cpu, cuda = program.sizes["OUTER"]
        program.size("OUTER", cpu // 16 * 16, cuda // 16 * 16)


def _after_convolution(program: Program, draw: Draw) -> None:
    rank, forms = draw.one(((1, _FORMS), (2, _FORMS), (2, _FORMS), (3, _CUBES)))
    form = draw.one(forms)
    x = program.input("x", dims_of(rank))
    h = program.keep(convolved(program, draw, x, form, "OUT"))
    widening = draw.one((0.5, 1.0, 1.5, 2.0))
    _maps(program, draw, h, x, dense_ns(form, rank, widening=widening), widening, 1.0)


def _after_transposed(program: Program, draw: Draw) -> None:
    rank, window = draw.one((1, 2, 2, 3, 3)), draw.one(_WINDOWS)
    x = program.input("x", dims_of(rank))
    h = program.keep(grown(program, draw, x, window, out="OUT", bias=True))
    widening, growth = draw.one((0.5, 1.0, 2.0)), float(window[1] ** rank)
    _maps(program, draw, h, x, 2.0 * window[0] ** rank * widening / 30.0, widening, growth)


def _maps(program: Program, draw: Draw, h: Value, x: Value, dense_ns: float, widening: float, growth: float) -> None:
    """Write the steps behind a layer that has `widening` times as many channels and `growth` times as many elements."""
    larger = (_pooled, _normed_maps, _normed_maps, _mean_of_maps, _over_channels, _logsumexp)
    h = _steps(program, draw, h, larger, ("channel",))
    program.returns(finished(program, draw, h))
    program.cost_ns *= widening * growth
    set_sizes(program, draw, x.dims, dense_ns, widths={"OUT": widening}, growth=max(1.0, widening * growth))


def _steps(program: Program, draw: Draw, h: Value, larger: tuple[_Step, ...], kinds: tuple[str, ...]) -> Value:
    """Write three to five pointwise steps, some with a parameter of the model, and up to two of the larger steps.

    Shares of the features or channels come last, because they are small.
    """
    first, pointwise = h, draw.integer(_MIN_POINTWISE, 5)
    places = [draw.integer(0, pointwise) for _ in range(draw.one((0, 1, 1, 2)))]
    chosen = dict(zip(places, draw.some(larger, len(larger)), strict=False))
    for number in range(pointwise + 1):
        if number in chosen:
            if "1" in h.dims[1:]:
                raise UnsuitableError("only one element is left of a line")
            h = program.keep(chosen[number](program, draw, h))
        if number == 1 and h.dims == first.dims and draw.chance(0.15):
            h = program.keep(apply_named(program, draw, draw.one(("add", "mul")), h, first))
        elif number < pointwise:
            h = program.keep(_step(program, draw, h, kinds))
    return _shares(program, h) if "1" not in h.dims[1:] and draw.chance(0.1) else h


def _step(program: Program, draw: Draw, h: Value, kinds: tuple[str, ...]) -> Value:
    """Write an activation, an operator with a number, or a sum or product with a parameter."""
    if draw.chance(0.2):
        name = draw.one(("add", "add", "mul", "sub"))
        return apply_named(program, draw, name, h, *sides(program, draw, h.dims, 1, kinds))
    if draw.chance(0.1):
        return apply_named(program, draw, "gate", h, h)
    for _ in range(_ATTEMPTS):
        try:
            if h.node.operator not in ("scale", "shift") and draw.chance(_NUMERIC_SHARE):
                return applied(program, draw, draw.one(_NUMBERS), h)
            return apply_named(program, draw, draw.one(_ACTIVATIONS), h)
        except UnsuitableError:
            continue
    raise UnsuitableError("no operator suits the values")


def _pooled(program: Program, draw: Draw, h: Value) -> Value:
    table = HALVING[rank := len(h.dims) - 2]
    if rank == _CUBE and program.dtype != "float32":  # torch has no such average on a CPU
        table = [one for one in table if one.name == "max_pool"]
    return pooled(program, draw, h, table, halved=True)


def _normed_row(program: Program, draw: Draw, h: Value) -> Value:
    forms = [("layer_norm", "nn.LayerNorm(OUTER)"), ("group_norm", "nn.GroupNorm(GROUPS, OUTER)")]
    forms += [("batch_norm", "nn.BatchNorm1d(OUTER)")] * (2 if program.dtype == "float32" else 0)
    return _normed(program, draw, h, *draw.one(forms))


def _normed_maps(program: Program, draw: Draw, h: Value) -> Value:
    rank = len(h.dims) - 2
    forms = [("instance_norm", f"nn.InstanceNorm{rank}d(OUT)"), ("group_norm", "nn.GroupNorm(GROUPS, OUT)")]
    forms += [("batch_norm", f"nn.BatchNorm{rank}d(OUT)")] * (2 if program.dtype == "float32" else 0)
    return _normed(program, draw, h, *draw.one(forms))


def _normed(program: Program, draw: Draw, h: Value, name: str, text: str) -> Value:
    """Write a normalisation by a layer of the model."""
    if invariant(h, ("scale", "shift")):
        raise UnsuitableError("the normalisation cancels the last operator")
    if name in ("batch_norm", "instance_norm") and (invariant(h, ("add", "sub", "mul")) or "bias" in h.node.detail):
        raise UnsuitableError("the normalisation cancels a bias of its lines")
    across = name == "batch_norm" and len(h.dims) == len(("ROWS", "OUTER"))
    lines = grid.COLUMNS if across else grid.ROWS
    if not grid.even(h.grid, lines) or grid.repeats(h.grid, lines):
        raise UnsuitableError("a line is nearly constant, or may be")
    sample = (grid.columns if across else grid.rows)(standard, h.grid)
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("normalised values are not informative")
    if name == "group_norm":
        program.size("GROUPS", 2, draw.one((8, 16)))
    program.cost_ns += 2.5
    detail = "rows" if name == "layer_norm" else ""
    layer = program.member(program.free(("norm", "norm2")), text)
    return combine(name, f"{layer}({h.text})", h.dims, sample, h, detail=detail, bends=True)


def _reduced_row(program: Program, draw: Draw, h: Value) -> Value:
    result = reduced(program, draw, h, "rows", keepdim=True, names=("mean", "amax", "amin"))
    return replace(result, text=result.text.replace("dim=-1", "dim=1"))


def _over_channels(program: Program, draw: Draw, h: Value) -> Value:
    name = draw.one(("amax", "amin", "mean"))
    sample = grid.columns({"amax": max, "amin": min, "mean": mean}[name], h.grid)
    if name == "mean" and not grid.stands_out(h.grid.values, grid.COLUMNS):
        raise UnsuitableError("means of channels are nearly equal")
    if name != "mean" and ends(h, above=name == "amax"):
        raise UnsuitableError(f"{name} meets a bound")
    return _over_features(program, h, name, sample)


def _logsumexp(program: Program, draw: Draw, h: Value) -> Value:
    sample = _over(h)(lambda line: log_mean_exp(line) + math.log(_LINE), h.grid)
    if h.bounds.high > LARGEST_EXPONENT and program.dtype == "float16":
        raise UnsuitableError("exponentials overflow float16")
    return _over_features(program, h, "logsumexp", sample)


def _over(h: Value) -> Callable[[Callable[[grid.Samples], float | grid.Samples], grid.Grid], grid.Grid | None]:
    """Return what applies a function over the second dimension: features of rows, or channels of maps."""
    return grid.rows if len(h.dims) == len(("ROWS", "OUTER")) else grid.columns


def _over_features(program: Program, h: Value, name: str, sample: grid.Grid | None) -> Value:
    """Write a reduction over the second dimension."""
    if sample is None or not grid.informative(sample, grid.OF_EXTREMES):
        raise UnsuitableError(f"{name} is not informative")
    program.cost_ns += 2.0
    text = f"torch.{name}({h.text}, dim=1, keepdim=True)"
    return combine(name, text, (h.dims[0], "1", *h.dims[2:]), sample, h, detail="features", bends=True)


def _shares(program: Program, h: Value) -> Value:
    """Write a softmax over the second dimension."""
    sample = _over(h)(shares, h.grid)
    if max(map(abs, h.grid.values)) > LARGEST_SCORE or invariant(h, ("shift",)):
        raise UnsuitableError("exponentials amplify rounding errors of large scores, or the shares cancel a shift")
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("shares are not informative")
    program.cost_ns += 3.0
    return combine("softmax", f"torch.softmax({h.text}, dim=1)", h.dims, sample, h, detail="features", bends=True)


def _mean_of_maps(program: Program, draw: Draw, h: Value) -> Value:
    call = draw.one(("torch.mean({h}, dim={axes}, keepdim=True)", "F.adaptive_avg_pool{rank}d({h}, 1)"))
    return mean_of_maps(program, h, call)
