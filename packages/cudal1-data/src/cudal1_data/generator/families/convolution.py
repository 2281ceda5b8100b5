"""Blocks of convolutions: residuals, gates, scales of channels, separable pairs."""

from __future__ import annotations

from cudal1_data.generator.chain import apply_named, chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.maps import FORMS, Form, convolved, dense_ns, dims_of, feature_input, set_sizes
from cudal1_data.generator.program import Program
from cudal1_data.generator.sides import sides
from cudal1_data.generator.values import Value


def convolution(program: Program, draw: Draw) -> None:
    """Write one of the blocks."""
    draw.one((_plain, _plain, _separable, _residual, _gated))(program, draw)


def _rank(draw: Draw) -> int:
    return draw.one((1, 2, 2, 2, 3))


def _prepared(program: Program, draw: Draw, x: Value) -> Value:
    if draw.chance(0.4):
        return chain(program, draw, x, draw.integer(0, 1), sides(program, draw, x.dims, 1, ("channel",)))
    return x


def _plain(program: Program, draw: Draw) -> None:
    """Write a convolution and an epilogue of at least three operators."""
    rank, form = _rank(draw), draw.one(FORMS)
    x = feature_input(program, draw, "x", dims_of(rank))
    wider = not form.depthwise and draw.chance(0.5)
    h = program.keep(convolved(program, draw, _prepared(program, draw, x), form, "OUT" if wider else ""))
    after = sides(program, draw, h.dims, draw.integer(1, 2), ("channel", "channel", "full"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(2, 3), after)))
    _cost_of(program, form)
    widening = draw.one((0.5, 1.5, 2.0)) if wider else 1.0
    set_sizes(program, draw, x.dims, dense_ns(form, rank, widening=widening), widths={"OUT": widening} if wider else {})


def _separable(program: Program, draw: Draw) -> None:
    """Write a depthwise and a pointwise convolution, as in mobile networks."""
    rank = draw.one((1, 2, 2))
    window, mix = (
        draw.one((Form("depthwise_conv", 3, depthwise=True), Form("depthwise_conv", 5, depthwise=True))),
        FORMS[4],
    )
    if draw.chance(0.3):
        window, mix = mix, window
    x = feature_input(program, draw, "x", dims_of(rank))
    h = program.keep(convolved(program, draw, x, window))
    h = chain(program, draw, h, draw.integer(1, 2), sides(program, draw, h.dims, 1, ("channel",)))
    h = program.keep(convolved(program, draw, program.keep(h), mix))
    program.returns(
        finished(program, draw, chain(program, draw, h, draw.integer(1, 2), [x] if draw.chance(0.6) else []))
    )
    _cost_of(program, window if window.depthwise else mix)
    set_sizes(program, draw, x.dims, dense_ns(FORMS[4], rank))


def _residual(program: Program, draw: Draw) -> None:
    """Write two convolutions with a residual connection."""
    rank = draw.one((1, 2, 2))
    first, second = draw.one((FORMS[0], FORMS[2], FORMS[7])), draw.one((FORMS[0], FORMS[4], FORMS[5]))
    x = feature_input(program, draw, "x", dims_of(rank))
    h = program.keep(convolved(program, draw, _prepared(program, draw, x), first))
    h = chain(program, draw, h, draw.integer(1, 2), sides(program, draw, h.dims, draw.integer(0, 1), ("channel",)))
    h = program.keep(convolved(program, draw, program.keep(h), second))
    h = chain(program, draw, h, draw.integer(0, 1), [x])
    program.returns(finished(program, draw, chain(program, draw, h, 1)))
    _cost_of(program, second)
    set_sizes(program, draw, x.dims, dense_ns(first, rank) + dense_ns(second, rank))


def _gated(program: Program, draw: Draw) -> None:
    """Write a convolution times an activation of another."""
    rank = draw.one((1, 2, 2))
    first, second = draw.one((FORMS[0], FORMS[4], FORMS[7])), draw.one((FORMS[0], FORMS[4], FORMS[5]))
    x = feature_input(program, draw, "x", dims_of(rank))
    left = program.keep(convolved(program, draw, x, first))
    right = program.keep(convolved(program, draw, x, second))
    activation = draw.one(("tanh", "sigmoid", "gelu", "silu", "softplus", "atan"))
    h = apply_named(program, draw, "mul", left, apply_named(program, draw, activation, right))
    after = sides(program, draw, x.dims, 1, ("channel", "full"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(1, 2), after)))
    _cost_of(program, second)
    set_sizes(program, draw, x.dims, dense_ns(first, rank) + dense_ns(second, rank))


def _cost_of(program: Program, form: Form) -> None:
    """Count the cost of a depthwise convolution, which per element does not depend on the number of channels."""
    if form.depthwise:
        program.cost_ns += 0.4 * form.kernel**2
