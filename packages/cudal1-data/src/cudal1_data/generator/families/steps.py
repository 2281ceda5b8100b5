"""Steps behind a layer, as a model has them: activations, numbers, biases, pooling, norms, reductions, shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cudal1_data.generator import grid
from cudal1_data.generator.chain import applied, apply_named
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.families.norm import standard
from cudal1_data.generator.families.pooling import HALVING, mean_of_maps, pooled
from cudal1_data.generator.families.softmax import LARGEST_SCORE, shares
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import LARGEST_EXPONENT, ends, log_mean_exp, mean, reduced
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Value, combine, invariant
from cudal1_data.generator.vocabulary import Operator

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
_ATTEMPTS = 12
"""Maximum number of draws of one step; then the attempt at a task ends."""
_CUBE = 3
"""Dimensions of the largest maps."""
_FLAT = 2
"""Dimensions of rows of features."""
_LINE = 256
"""Usual number of features or channels."""
_NUMERIC_SHARE = 0.4
"""Share of pointwise steps with a number."""

Step = Callable[[Program, Draw, Value], Value]
"""Writes an operator that needs a separate pass over memory."""


def step(program: Program, draw: Draw, h: Value, kinds: tuple[str, ...]) -> Value:
    """Write an activation, an operator with a number, or a sum or product with a parameter."""
    if draw.chance(0.2):
        name = draw.one(("add", "add", "mul", "sub"))
        return apply_named(program, draw, name, h, *sides(program, draw, h.dims, 1, kinds))
    if draw.chance(0.1):
        return apply_named(program, draw, "gate", h, h)
    return plain_step(program, draw, h)


def plain_step(program: Program, draw: Draw, h: Value) -> Value:
    """Write an activation or an operator with a number.

    Raises:
        UnsuitableError: No operator suits the values.
    """
    for _ in range(_ATTEMPTS):
        try:
            if h.node.operator not in ("scale", "shift") and draw.chance(_NUMERIC_SHARE):
                return applied(program, draw, draw.one(_NUMBERS), h)
            return apply_named(program, draw, draw.one(_ACTIVATIONS), h)
        except UnsuitableError:
            continue
    raise UnsuitableError("no operator suits the values")


def pooled_maps(program: Program, draw: Draw, h: Value) -> Value:
    """Write a pool that halves the edges of maps."""
    table = HALVING[rank := len(h.dims) - 2]
    if rank == _CUBE and program.dtype != "float32":  # torch has no such average on a CPU
        table = [one for one in table if one.name == "max_pool"]
    return pooled(program, draw, h, table, halved=True)


def normed_row(program: Program, draw: Draw, h: Value) -> Value:
    """Write a normalisation of rows of features."""
    width = h.dims[1]
    forms = [("layer_norm", f"nn.LayerNorm({width})"), ("group_norm", f"nn.GroupNorm(GROUPS, {width})")]
    forms += [("batch_norm", f"nn.BatchNorm1d({width})")] * (2 if program.dtype == "float32" else 0)
    return _normed(program, draw, h, *draw.one(forms))


def normed_maps(program: Program, draw: Draw, h: Value) -> Value:
    """Write a normalisation of maps."""
    rank, width = len(h.dims) - 2, h.dims[1]
    forms = [("instance_norm", f"nn.InstanceNorm{rank}d({width})"), ("group_norm", f"nn.GroupNorm(GROUPS, {width})")]
    forms += [("batch_norm", f"nn.BatchNorm{rank}d({width})")] * (2 if program.dtype == "float32" else 0)
    return _normed(program, draw, h, *draw.one(forms))


def _normed(program: Program, draw: Draw, h: Value, name: str, text: str) -> Value:
    """Write a normalisation by a layer of the model."""
    if invariant(h, ("scale", "shift")):
        raise UnsuitableError("the normalisation cancels the last operator")
    if name in ("batch_norm", "instance_norm") and (invariant(h, ("add", "sub", "mul")) or "bias" in h.node.detail):
        raise UnsuitableError("the normalisation cancels a bias of its lines")
    across = name == "batch_norm" and len(h.dims) == _FLAT
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


def reduced_row(program: Program, draw: Draw, h: Value) -> Value:
    """Write a reduction of each row, which keeps its dimension."""
    result = reduced(program, draw, h, "rows", keepdim=True, names=("mean", "amax", "amin"))
    return replace(result, text=result.text.replace("dim=-1", "dim=1"))


def over_channels(program: Program, draw: Draw, h: Value) -> Value:
    """Write an extreme or a mean over the channels of maps."""
    name = draw.one(("amax", "amin", "mean"))
    sample = grid.columns({"amax": max, "amin": min, "mean": mean}[name], h.grid)
    if name == "mean" and not grid.stands_out(h.grid.values, grid.COLUMNS):
        raise UnsuitableError("means of channels are nearly equal")
    if name != "mean" and ends(h, above=name == "amax"):
        raise UnsuitableError(f"{name} meets a bound")
    return _over_features(program, h, name, sample)


def logsumexp(program: Program, draw: Draw, h: Value) -> Value:
    """Write the logarithm of a sum of exponentials over features or channels."""
    sample = _over(h)(lambda line: log_mean_exp(line) + math.log(_LINE), h.grid)
    if h.bounds.high > LARGEST_EXPONENT and program.dtype == "float16":
        raise UnsuitableError("exponentials overflow float16")
    return _over_features(program, h, "logsumexp", sample)


def _over(h: Value) -> Callable[[Callable[[grid.Samples], float | grid.Samples], grid.Grid], grid.Grid | None]:
    """Return what applies a function over the second dimension: features of rows, or channels of maps."""
    return grid.rows if len(h.dims) == _FLAT else grid.columns


def _over_features(program: Program, h: Value, name: str, sample: grid.Grid | None) -> Value:
    """Write a reduction over the second dimension."""
    if sample is None or not grid.informative(sample, grid.OF_EXTREMES):
        raise UnsuitableError(f"{name} is not informative")
    program.cost_ns += 2.0
    text = f"torch.{name}({h.text}, dim=1, keepdim=True)"
    return combine(name, text, (h.dims[0], "1", *h.dims[2:]), sample, h, detail="features", bends=True)


def softmax_over_features(program: Program, draw: Draw, h: Value) -> Value:
    """Write a softmax over features or channels."""
    sample = _over(h)(shares, h.grid)
    if max(map(abs, h.grid.values)) > LARGEST_SCORE or invariant(h, ("shift",)):
        raise UnsuitableError("exponentials amplify rounding errors of large scores, or the shares cancel a shift")
    if sample is None or not grid.informative(sample):
        raise UnsuitableError("shares are not informative")
    program.cost_ns += 3.0
    return combine("softmax", f"torch.softmax({h.text}, dim=1)", h.dims, sample, h, detail="features", bends=True)


def averaged_maps(program: Program, draw: Draw, h: Value) -> Value:
    """Write the mean of each map."""
    call = draw.one(("torch.mean({h}, dim={axes}, keepdim=True)", "F.adaptive_avg_pool{rank}d({h}, 1)"))
    return mean_of_maps(program, h, call)
