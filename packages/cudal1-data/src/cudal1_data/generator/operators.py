"""Pointwise operators: how each is written, what it does to a number, and about what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cudal1_data.generator.grid import Function


@dataclass(frozen=True)
class Operator:
    """A pointwise operator."""

    name: str
    """Its name in a structure."""
    text: str
    """How it is written, with `{0}`, `{1}` for operands and `{c}` for a constant."""
    function: Function
    """What it does to numbers."""
    cost_ns: float
    """About what an element takes on one core."""
    smooth: bool = True
    """Whether its derivative has no jumps: only then do gradients agree between float32 and float64."""
    linear: bool = False
    """Whether its derivative is the same everywhere."""
    linear_in: tuple[int, ...] = ()
    """Operands in which it is linear while the others stay."""
    constants: tuple[float, ...] = ()
    """Values for `{c}`; empty when there is none."""
    infix: bool = False
    """Whether it is written with infix operators outermost."""
    graph: str = ""
    """Its structure in simpler operators, `0` and `1` for operands; its own name on all operands when empty."""


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _gelu(x: float) -> float:
    return 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0)))


def _sin(x: float) -> float:
    return math.sin(_turn(x))


def _cos(x: float) -> float:
    return math.cos(_turn(x))


def _turn(x: float) -> float:
    if abs(x) > 4.0:
        raise ValueError("many turns magnify rounding")
    return x


def _elu(x: float) -> float:
    return x if x > 0 else math.expm1(x)


def _hardswish(x: float) -> float:
    return x * min(max(x + 3.0, 0.0), 6.0) / 6.0


UNARY: tuple[Operator, ...] = (
    Operator("tanh", "torch.tanh({0})", math.tanh, 0.6),
    Operator("sigmoid", "torch.sigmoid({0})", _sigmoid, 0.8),
    Operator("gelu", "F.gelu({0})", _gelu, 0.8),
    Operator("gelu_tanh", 'F.gelu({0}, approximate="tanh")', _gelu, 2.8),
    Operator("silu", "F.silu({0})", lambda x: x * _sigmoid(x), 0.9),
    Operator("softplus", "F.softplus({0})", _softplus, 2.7),
    Operator("mish", "F.mish({0})", lambda x: x * math.tanh(_softplus(x)), 5.6),
    Operator("logsigmoid", "F.logsigmoid({0})", lambda x: -_softplus(-x), 2.7),
    Operator("relu", "torch.relu({0})", lambda x: max(x, 0.0), 0.5, smooth=False),
    Operator("leaky_relu", "F.leaky_relu({0}, {c})", lambda x, c: max(x, 0.0) + c * min(x, 0.0), 0.5, smooth=False,
             constants=(0.05, 0.1, 0.2)),
    Operator("elu", "F.elu({0})", _elu, 2.0),
    Operator("selu", "F.selu({0})", lambda x: 1.0507 * (x if x > 0 else 1.67326 * math.expm1(x)), 2.0, smooth=False),
    Operator("hardswish", "F.hardswish({0})", _hardswish, 0.5, smooth=False),
    Operator("abs", "torch.abs({0})", abs, 0.5, smooth=False),
    Operator("square", "torch.square({0})", lambda x: x * x, 0.5),
    Operator("sin", "torch.sin({0})", _sin, 0.8),
    Operator("cos", "torch.cos({0})", _cos, 0.8),
    Operator("erf", "torch.erf({0})", math.erf, 1.0),
    Operator("atan", "torch.atan({0})", math.atan, 0.8),
    Operator("softsign", "F.softsign({0})", lambda x: x / (1.0 + abs(x)), 2.0),
    Operator("log1p_abs", "torch.log1p(torch.abs({0}))", lambda x: math.log1p(abs(x)), 2.0, smooth=False,
             graph="log1p(abs(0))"),
    Operator("bump", "torch.exp(-torch.square({0}))", lambda x: math.exp(-x * x), 1.5, graph="exp(neg(square(0)))"),
    Operator("decay", "torch.exp(-torch.abs({0}))", lambda x: math.exp(-abs(x)), 1.5, smooth=False,
             graph="exp(neg(abs(0)))"),
    Operator("inverse_root", "torch.rsqrt(1 + torch.square({0}))", lambda x: 1.0 / math.sqrt(1.0 + x * x), 1.5,
             graph="rsqrt(shift(square(0)))"),
    Operator("root", "torch.sqrt(1 + torch.square({0}))", lambda x: math.sqrt(1.0 + x * x), 1.5,
             graph="sqrt(shift(square(0)))"),
    Operator("clamp", "torch.clamp({0}, -{c}, {c})", lambda x, c: min(max(x, -c), c), 0.5, smooth=False,
             constants=(1.5, 2.0, 2.5)),
    Operator("softshrink", "F.softshrink({0}, {c})", lambda x, c: math.copysign(max(abs(x) - c, 0.0), x), 0.7,
             smooth=False, constants=(0.1, 0.25)),
)  # fmt: skip
"""Functions of one number."""

SCALARS: tuple[Operator, ...] = (
    Operator("scale", "{c} * {0}", lambda x, c: c * x, 0.5, linear=True, infix=True, constants=(0.5, 0.7, 1.5, 2.0)),
    Operator("shift", "{0} + {c}", lambda x, c: x + c, 0.5, linear=True, infix=True, constants=(0.25, 0.5, 1.0)),
)
"""With a constant of the program's own."""

BINARY: tuple[Operator, ...] = (
    Operator("add", "{0} + {1}", lambda x, y: x + y, 0.8, linear=True, infix=True),
    Operator("sub", "{0} - {1}", lambda x, y: x - y, 0.8, linear=True, infix=True),
    Operator("mul", "{0} * {1}", lambda x, y: x * y, 0.8, linear_in=(0, 1), infix=True),
    Operator("gate", "{0} * torch.sigmoid({1})", lambda x, y: x * _sigmoid(y), 1.6, linear_in=(0,), infix=True,
             graph="mul(0,sigmoid(1))"),
    Operator("maximum", "torch.maximum({0}, {1})", max, 0.9, smooth=False),
    Operator("minimum", "torch.minimum({0}, {1})", min, 0.9, smooth=False),
    Operator("damp", "{0} / (1 + torch.abs({1}))", lambda x, y: x / (1.0 + abs(y)), 2.0, smooth=False,
             linear_in=(0,), infix=True, graph="div(0,shift(abs(1)))"),
    Operator("divide_root", "{0} * torch.rsqrt(1 + torch.square({1}))", lambda x, y: x / math.sqrt(1.0 + y * y), 2.2,
             linear_in=(0,), infix=True, graph="mul(0,rsqrt(shift(square(1))))"),
    Operator("logaddexp", "torch.logaddexp({0}, {1})", lambda x, y: max(x, y) + math.log1p(math.exp(-abs(x - y))), 2.6),
    Operator("hypot", "torch.sqrt(torch.square({0}) + torch.square({1}) + 0.1)", lambda x,
             y: math.sqrt(x * x + y * y + 0.1), 2.5,
             graph="sqrt(shift(add(square(0),square(1))))"),
    Operator("squared_difference", "torch.square({0} - {1})", lambda x, y: (x - y) ** 2, 1.2, graph="square(sub(0,1))"),
    Operator("lerp", "torch.lerp({0}, {1}, {c})", lambda x, y, c: x + c * (y - x), 1.0, linear=True,
             constants=(0.25, 0.4, 0.6)),
    Operator("phase", "{0} * torch.cos({1})", lambda x, y: x * _cos(y), 1.6, linear_in=(0,), infix=True,
             graph="mul(0,cos(1))"),
)  # fmt: skip
"""Functions of two numbers."""

MASKED: tuple[Operator, ...] = (
    Operator("where", "torch.where({1}, {0}, {c})", lambda x, m, c: x if m else c, 3.0, linear=True,
             constants=(-1.0, 0.0, 0.5), graph="where(1,0)"),
    Operator("where_scaled", "torch.where({1}, {0}, {c} * {0})", lambda x, m, c: x if m else c * x, 3.5, linear=True,
             constants=(-0.5, 0.1, 0.3), graph="where(1,0,scale(0))"),
)  # fmt: skip
"""With a mask as the second operand."""
