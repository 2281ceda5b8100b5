"""Explicit attention: scores with biases, masks and caps, several kinds of weights, and a chain."""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.generator import grid
from cudal1_data.generator.bounds import UNIT
from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Grid
from cudal1_data.generator.program import Program
from cudal1_data.generator.shapes import gpu_elements, target_ns
from cudal1_data.generator.sides import sides
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value, combine

_SCORES = ("BATCH", "HEADS", "TOKENS", "TOKENS")
_VALUES = ("BATCH", "HEADS", "TOKENS", "WIDTH")


_SHARPEST = 3.5
"""Maximum standard deviation of scores."""


def attention(program: Program, draw: Draw) -> None:
    """Write scores, zero to two changes of them, weights, the weighted sum, and a chain."""
    q = _heads(program, draw, "q")
    shared = draw.chance(0.25)
    k = _heads(program, draw, "k", shared=shared)
    v = _heads(program, draw, "v", shared=shared)
    keys = [_spread_heads(program, one) for one in (k, v)] if shared else [k, v]
    if draw.chance(0.4):
        q = chain(program, draw, q, draw.integer(0, 1), [program.parameter("slope", ("WIDTH",))])
    program.cost_ns = 0.0
    h = program.keep(_product(program, draw, program.keep(q), keys[0]), "scores")
    for change in draw.some(_CHANGES, draw.integer(0, 2)):
        h = change(program, draw, h)
    weights = program.keep(_weights(program, draw, program.keep(h)), "weights")
    scores_ns = program.cost_ns
    out = combine(
        "matmul", f"{weights.text} @ {keys[1].atom}", _VALUES, _mean_of(draw, weights, keys[1]), weights, keys[1],
        detail="values", bends=True, infix=True,
    )  # fmt: skip
    after = sides(program, draw, _VALUES, draw.integer(1, 2), ("full", "full", "parameter"))
    program.returns(finished(program, draw, chain(program, draw, program.keep(out), draw.integer(0, 2), after)))
    _sizes(program, draw, scores_ns, shared=shared)


def _heads(program: Program, draw: Draw, name: str, *, shared: bool = False) -> Value:
    layout = "transposed" if draw.chance(0.3) else "contiguous"
    dims = ("BATCH", "HEADS // GROUP", *_VALUES[2:]) if shared else _VALUES
    return program.input(name, dims, layout=layout, axes=(1, 2))


def _spread_heads(program: Program, value: Value) -> Value:
    """Repeat a head of keys or values for its group of query heads."""
    text = f"{value.text}.repeat_interleave(GROUP, dim=1)"
    return program.keep(combine("repeat", text, _VALUES, value.grid, value, heavy=False))


def _product(program: Program, draw: Draw, q: Value, k: Value) -> Value:
    """Write scores with a standard deviation of about 2: with smaller ones the values would average out."""
    sharp = draw.one((1.5, 2.0, 2.5))
    spread = sharp * grid.size(q.grid.values)
    if spread > _SHARPEST:
        raise UnsuitableError("exponentials amplify rounding errors of large scores")
    sample = grid.mixed(draw, q.grid, k.grid, spread=spread)
    text = f"{sharp} * {q.atom} @ {k.atom}.transpose(2, 3) / WIDTH**0.5"
    result = combine("matmul", text, _SCORES, sample, q, k, detail="scores", bends=True, infix=True)
    return Value(text, Node("scale", (result.node,)), _SCORES, sample, result.curved, infix=True, nested=2)


def _mean_of(draw: Draw, weights: Value, values: Value) -> Grid:
    return grid.mixed(draw, weights.grid, values.grid, spread=0.5)


def _causal(program: Program, draw: Draw, h: Value) -> Value:
    program.line(f"seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device={h.text}.device).tril()")
    return _hidden(program, h, "causal")


def _window(program: Program, draw: Draw, h: Value) -> Value:
    program.line(f"places = torch.arange(TOKENS, device={h.text}.device)")
    program.line(f"seen = (places[:, None] - places).abs() < {draw.one((24, 32, 48))}")
    return _hidden(program, h, "window")


def _hidden(program: Program, h: Value, name: str) -> Value:
    program.cost_ns += 4.0
    node = Node("where", (h.node,), name)
    text = f'torch.where(seen, {h.text}, float("-inf"))'
    return program.keep(Value(text, node, h.dims, h.grid, h.curved, nested=1))


def _distance(program: Program, draw: Draw, h: Value) -> Value:
    """Subtract each head's slope times the distance of query and key."""
    slope = program.parameter("fading", ("HEADS", "1", "1"), text="torch.rand(HEADS, 1, 1) / 8", kind="column")
    program.line(f"steps = torch.arange(TOKENS, device={h.text}.device)")
    program.line("far = (steps[:, None] - steps).abs()")
    program.cost_ns += 2.0
    sample = grid.apply(lambda value, fading: value - abs(fading), h.grid, slope.grid)
    assert sample is not None
    node = Node("sub", (h.node, Node("mul", (slope.node, Node("distance", ())))))
    text = f"{h.text} - {slope.text} * far"
    return program.keep(Value(text, node, h.dims, sample, h.curved, infix=True, nested=2))


def _bias(program: Program, draw: Draw, h: Value) -> Value:
    bias = program.parameter("score_bias", ("HEADS", "TOKENS", "TOKENS"), kind="full")
    program.cost_ns += 1.5
    sample = grid.apply(lambda value, other: value + other, h.grid, bias.grid)
    assert sample is not None
    text = f"{h.text} + {bias.text}"
    return program.keep(combine("add", text, h.dims, sample, h, bias, heavy=False, infix=True))


def _capped(program: Program, draw: Draw, h: Value) -> Value:
    """Write softly capped scores, as in some large models."""
    cap = draw.one((4.0, 6.0, 8.0))
    program.cost_ns += 2.5
    node = Node("scale", (Node("tanh", (Node("scale", (h.node,)),)),))
    text = f"{cap} * torch.tanh({h.text} / {cap})"
    return program.keep(Value(text, node, h.dims, h.grid, frozenset(h.leaves), infix=True, nested=2))


_CHANGES: tuple[Callable[[Program, Draw, Value], Value], ...] = (_causal, _window, _distance, _bias, _capped)


def _weights(program: Program, draw: Draw, h: Value) -> Value:
    """Write a softmax, a softmax with an extra 1 in its denominator, or sigmoids over the root of the token count."""
    program.cost_ns += 4.0
    form = draw.one(("softmax", "softmax", "quiet", "sigmoid"))
    if form == "softmax":
        return combine(
            "softmax", f"torch.softmax({h.text}, dim=3)", h.dims, h.grid, h, detail="rows", bends=True, bounds=UNIT
        )
    if form == "sigmoid":
        text = f"torch.sigmoid({h.text}) / TOKENS**0.5"
        return combine("sigmoid", text, h.dims, h.grid, h, heavy=False, bends=True, infix=True)
    program.line(f"powers = torch.exp({h.text} - torch.amax({h.text}, dim=3, keepdim=True).detach())")
    powers = Node("exp", (Node("sub", (h.node, Node("amax", (h.node,), "rows", heavy=True))),))
    node = Node("div", (powers, Node("shift", (Node("sum", (powers,), "rows", heavy=True),))))
    text = "powers / (1 + torch.sum(powers, dim=3, keepdim=True))"
    return Value(text, node, h.dims, h.grid, frozenset(h.leaves), infix=True, nested=4)


def _sizes(program: Program, draw: Draw, scores_ns: float, *, shared: bool) -> None:
    tokens, width = draw.one((96, 128, 160, 192, 256, 300)), draw.one((24, 32, 40, 48, 64))
    cost = tokens * tokens * (4.0 * width / program.flops_per_ns + scores_ns)
    heads = max(2.0, target_ns(draw, program) / cost)
    group = 2 if shared else 1
    of_each = group * draw.integer(1, 3)
    long, of_layer = draw.one((1024, 1536, 2048, 3000, 4096)), draw.one((8, 16, 32))
    many = gpu_elements(draw, program, _SCORES) / (long * long)
    while of_layer > max(many, 4):
        of_layer //= 2
    program.size("BATCH", max(1, round(heads / of_each)), max(1, round(many / of_layer)))
    program.size("HEADS", of_each, of_layer)
    if shared:
        program.size("GROUP", group, draw.one((2, 4)))
    program.size("TOKENS", tokens, long)
    program.size("WIDTH", width, draw.one((64, 128)))
