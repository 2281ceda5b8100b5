"""Small networks: transformer and mixer blocks over tokens, and encoder-decoders over feature maps."""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.generator import grid
from cudal1_data.generator.chain import apply_named, chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.families.norm import standard
from cudal1_data.generator.maps import FORMS, convolved, dense_ns, dims_of, feature_input, set_sizes
from cudal1_data.generator.program import Program
from cudal1_data.generator.shapes import gpu_rows, target_ns
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Dims, Value, combine

_DIMS = ("BATCH", "TOKENS", "WIDTH")
_ACTIVATIONS = ("gelu", "silu", "tanh", "mish", "softplus", "elu", "atan", "softsign")
_NORMS = ("norm", "norm2", "norm3", "norm4")


def network(program: Program, draw: Draw) -> None:
    """Write a network over tokens or feature maps."""
    (_over_maps if draw.chance(0.25) else _over_tokens)(program, draw)


def _over_tokens(program: Program, draw: Draw) -> None:
    """Write two or three blocks, most with a residual connection, and a chain."""
    x = program.input("x", _DIMS, layout=program.layout())
    h = x
    blocks = [draw.one(tuple(_BLOCKS)) for _ in range(draw.integer(2, 3))]
    for block in blocks:
        inner = program.keep(_BLOCKS[block](program, draw, program.keep(_normalised(program, draw, h))))
        h = program.keep(_around(program, h, inner) if draw.chance(0.75) else inner)
    if program.backward:  # the inputs' gradients should also depend on the last block's weights
        h = apply_named(program, draw, draw.one(_ACTIVATIONS), h)
    after = sides(program, draw, _DIMS, 1, ("parameter", "full")) if draw.chance(0.5) else []
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(0, 1), after)))
    _sizes(program, draw, blocks)


def _around(program: Program, h: Value, inner: Value) -> Value:
    sample = grid.apply(lambda one, other: one + other, h.grid, inner.grid)
    assert sample is not None
    return combine("add", f"{h.text} + {inner.text}", h.dims, sample, h, inner, heavy=False, infix=True)


def _normalised(program: Program, draw: Draw, h: Value) -> Value:
    layer = program.member(program.free(_NORMS), "nn.LayerNorm(WIDTH)")
    program.cost_ns += 1.5
    sample = grid.rows(standard, h.grid)
    assert sample is not None
    return combine("layer_norm", f"{layer}({h.text})", h.dims, sample, h, detail="rows", bends=True)


def _linear(program: Program, draw: Draw, h: Value, name: str, width: str, out: str, *, bias: bool = True) -> Value:
    names = (name, *(f"{name}{number}" for number in range(2, 9)))
    layer = program.member(program.free(names), f"nn.Linear({width}, {out}" + ("" if bias else ", bias=False") + ")")
    sample = grid.after_layer(draw, h.grid, 0.62)
    dims: Dims = (*h.dims[:-1], out)
    return program.keep(
        combine("linear", f"{layer}({h.text})", dims, sample, h, detail="bias" if bias else "", layer=True)
    )


def _forward(program: Program, draw: Draw, h: Value) -> Value:
    """Write a widening layer, an activation, and a narrowing layer."""
    wide = apply_named(program, draw, draw.one(_ACTIVATIONS), _linear(program, draw, h, "lift", "WIDTH", "HIDDEN"))
    return _linear(program, draw, wide, "drop", "HIDDEN", "WIDTH")


def _gated_forward(program: Program, draw: Draw, h: Value) -> Value:
    """Write two widening layers, one gating the other, and a narrowing layer."""
    gate = apply_named(program, draw, draw.one(_ACTIVATIONS), _linear(program, draw, h, "gate", "WIDTH", "HIDDEN"))
    wide = apply_named(program, draw, "mul", gate, _linear(program, draw, h, "lift", "WIDTH", "HIDDEN"))
    return _linear(program, draw, program.keep(wide), "drop", "HIDDEN", "WIDTH")


def _token_mixer(program: Program, draw: Draw, h: Value) -> Value:
    """Write a layer along the tokens instead of the channels."""
    transposed = combine("transpose", f"{h.text}.transpose(1, 2)", ("BATCH", "WIDTH", "TOKENS"), h.grid, h, heavy=False)
    mixed = _linear(program, draw, transposed, "mix", "TOKENS", "TOKENS")
    bent = apply_named(program, draw, draw.one(_ACTIVATIONS), mixed)
    return combine("transpose", f"{bent.atom}.transpose(1, 2)", h.dims, bent.grid, bent, heavy=False)


def _self_attention(program: Program, draw: Draw, h: Value) -> Value:
    """Write one attention head over all tokens."""
    q = _linear(program, draw, h, "query", "WIDTH", "WIDTH", bias=False)
    # A bias of the keys shifts all scores of a query equally, which softmax cancels.
    k = _linear(program, draw, h, "key", "WIDTH", "WIDTH", bias=False)
    v = _linear(program, draw, h, "value", "WIDTH", "WIDTH")
    dims = ("BATCH", "TOKENS", "TOKENS")
    text = f"{q.text} @ {k.text}.transpose(1, 2) / WIDTH**0.5"
    scores = combine("matmul", text, dims, grid.mixed(draw, q.grid, k.grid), q, k, bends=True, infix=True)
    shares = combine("softmax", f"torch.softmax({scores.text}, dim=2)", dims, scores.grid, scores, bends=True)
    shares = program.keep(shares)
    sample = grid.mixed(draw, v.grid, spread=0.3)
    return combine("matmul", f"{shares.text} @ {v.text}", h.dims, sample, shares, v, bends=True, infix=True)


def _neighbour_mixer(program: Program, draw: Draw, h: Value) -> Value:
    """Write a depthwise convolution over neighbouring tokens."""
    names = ("window", "window2", "window3")
    layer = program.member(program.free(names), "nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)")
    program.cost_ns += 4.0
    sample = grid.after_layer(draw, h.grid, 0.62)
    text = f"{layer}({h.text}.transpose(1, 2)).transpose(1, 2)"
    mixed = combine("depthwise_conv", text, h.dims, sample, h, detail="1d, 5, bias", layer=True)
    return apply_named(program, draw, draw.one(_ACTIVATIONS), program.keep(mixed))


_BLOCKS: dict[str, Callable[[Program, Draw, Value], Value]] = {
    "forward": _forward,
    "gated": _gated_forward,
    "tokens": _token_mixer,
    "attention": _self_attention,
    "neighbours": _neighbour_mixer,
}
"""The blocks by name."""


def _sizes(program: Program, draw: Draw, blocks: list[str]) -> None:
    width, tokens = draw.one((48, 64, 96, 128)), draw.one((32, 48, 64, 80, 100))
    hidden = int(width * draw.one((1.5, 2.0, 3.0)))
    terms = {
        "forward": 2.0 * hidden,
        "gated": 3.0 * hidden,
        "tokens": 1.0 * tokens,
        "attention": 3.0 * width + 2.0 * tokens,
        "neighbours": 0.0,
    }
    cost = program.cost_ns + 2.0 * sum(terms[block] for block in blocks) / program.flops_per_ns
    batch = max(1, min(64, round(target_ns(draw, program) / cost / (width * tokens))))
    wide, long = draw.one((1024, 2048, 4096)), draw.one((256, 512, 1024))
    inner = int(wide * draw.one((2.0, 2.75, 4.0)))
    rates = {**terms, "forward": 2.0 * inner, "gated": 3.0 * inner, "tokens": 1.0 * long}
    rates["attention"] = 3.0 * wide + 2.0 * long
    per_row = 2.0 * wide * max(1.0, sum(rates[block] for block in blocks))
    many = gpu_rows(draw, program, per_row, inner if {"forward", "gated"} & set(blocks) else wide)
    program.size("BATCH", batch, max(2, round(many / long)))
    program.size("TOKENS", tokens, long)
    program.size("WIDTH", width, wide)
    if {"forward", "gated"} & set(blocks):
        program.size("HIDDEN", hidden, inner)


def _over_maps(program: Program, draw: Draw) -> None:
    """Write a convolution, then pooling, a convolution and upsampling, added to the unpooled maps."""
    rank = draw.one((1, 2))
    x = feature_input(program, draw, "x", dims_of(rank))
    first, second = draw.one((FORMS[0], FORMS[5], FORMS[7])), draw.one((FORMS[0], FORMS[4], FORMS[7]))
    h = program.keep(convolved(program, draw, x, first))
    h = program.keep(chain(program, draw, h, 1, sides(program, draw, h.dims, draw.integer(0, 1), ("channel",))))
    program.cost_ns += 8.0
    name = "avg_pool" if program.backward else draw.one(("avg_pool", "max_pool"))
    half = (*h.dims[:2], *(f"{dim} // 2" for dim in h.dims[2:]))
    small = program.keep(combine(name, f"F.{name}{rank}d({h.text}, 2)", half, h.grid, h, detail="halved"))
    small = program.keep(convolved(program, draw, small, second))
    small = chain(program, draw, small, 1)
    up = combine(
        "upsample", f"F.interpolate({small.text}, scale_factor=2)", h.dims, small.grid, small, bounds=small.bounds
    )
    joined = program.keep(_around(program, program.keep(h), program.keep(up)))
    last = program.keep(convolved(program, draw, joined, FORMS[4]))
    after = sides(program, draw, h.dims, draw.integer(0, 1), ("channel",))
    program.returns(finished(program, draw, chain(program, draw, last, draw.integer(1, 2), after)))
    dense = dense_ns(first, rank) + dense_ns(second, rank) / 2**rank + dense_ns(FORMS[4], rank)
    set_sizes(program, draw, x.dims, dense)
