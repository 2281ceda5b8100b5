"""Pointwise operators of generated tasks: their text and approximate cost.

Their formulas are expressions of `cudal1_data.operators`, the table that kernels are generated from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from cudal1_data.operators import EXPRESSIONS, numeric

_PLACE = re.compile(r"\{\w\}")
_LARGEST_ANGLE = 4.0
"""Maximum operand of sine and cosine: larger ones amplify rounding errors."""


@dataclass(frozen=True)
class Operator:
    """A pointwise operator."""

    name: str
    """Its name in a structure."""
    text: str
    """Its text, with `{0}`, `{1}` for operands and `{c}` for a constant."""
    cost_ns: float
    """Approximate time per element on one core."""
    does: str = ""
    """Its formula over its operands and then its constant (`a`, `b`, `c`); if empty, the table's row of its name."""
    smooth: bool = True
    """Whether its derivative has no jumps: only then do gradients agree between float32 and float64."""
    linear: bool = False
    """Whether its derivative is constant."""
    linear_in: tuple[int, ...] = ()
    """Operands in which it is linear with the others fixed."""
    angle: int | None = None
    """Index of the operand of its sine or cosine; a magnitude above 4 raises `ValueError`."""
    constants: tuple[float, ...] = ()
    """Values for `{c}`, if it has one."""
    infix: bool = False
    """Whether its outermost operator is infix."""
    graph: str = ""
    """Its structure in simpler operators, with `0` and `1` for operands; if empty, its name on all operands."""
    even_in: tuple[int, ...] = ()
    """Operands whose sign has no effect."""

    @cached_property
    def expression(self) -> str:
        """Its formula, as an expression of `cudal1_data.operators`."""
        if self.does:
            return self.does
        count = len({"{0}", "{1}", "{c}"} & set(_PLACE.findall(self.text)))
        return f"{self.name}({', '.join('abc'[:count])})"

    @cached_property
    def function(self) -> Callable[..., float]:
        """Its formula as a function of numbers."""
        function = numeric(self.does or EXPRESSIONS[self.name])
        if self.angle is None:
            return function
        place = self.angle

        def checked(*values: float) -> float:
            if abs(values[place]) > _LARGEST_ANGLE:
                raise ValueError(f"{self.name} of {values[place]} magnifies rounding")
            return function(*values)

        return checked


UNARY: tuple[Operator, ...] = (
    Operator("tanh", "torch.tanh({0})", 0.6),
    Operator("sigmoid", "torch.sigmoid({0})", 0.8),
    Operator("gelu", "F.gelu({0})", 0.8),
    Operator("gelu_tanh", 'F.gelu({0}, approximate="tanh")', 2.8),
    Operator("silu", "F.silu({0})", 0.9),
    Operator("softplus", "F.softplus({0})", 2.7),
    Operator("mish", "F.mish({0})", 5.6),
    Operator("logsigmoid", "F.logsigmoid({0})", 2.7),
    Operator("relu", "torch.relu({0})", 0.5, smooth=False),
    Operator("leaky_relu", "F.leaky_relu({0}, {c})", 0.5, smooth=False, constants=(0.05, 0.1, 0.2)),
    Operator("elu", "F.elu({0})", 2.0),
    Operator("selu", "F.selu({0})", 2.0, smooth=False),
    Operator("hardswish", "F.hardswish({0})", 0.5, smooth=False),
    Operator("abs", "torch.abs({0})", 0.5, smooth=False, even_in=(0,)),
    Operator("square", "torch.square({0})", 0.5, even_in=(0,)),
    Operator("sin", "torch.sin({0})", 0.8, angle=0),
    Operator("cos", "torch.cos({0})", 0.8, angle=0, even_in=(0,)),
    Operator("erf", "torch.erf({0})", 1.0),
    Operator("atan", "torch.atan({0})", 0.8),
    Operator("softsign", "F.softsign({0})", 2.0),
    Operator("log1p_abs", "torch.log1p(torch.abs({0}))", 2.0, "log1p(abs(a))", smooth=False, graph="log1p(abs(0))",
             even_in=(0,)),
    Operator("bump", "torch.exp(-torch.square({0}))", 1.5, "exp(-square(a))", graph="exp(neg(square(0)))",
             even_in=(0,)),
    Operator("decay", "torch.exp(-torch.abs({0}))", 1.5, "exp(-abs(a))", smooth=False, graph="exp(neg(abs(0)))",
             even_in=(0,)),
    Operator("inverse_root", "torch.rsqrt(1 + torch.square({0}))", 1.5, "rsqrt(1.0 + square(a))",
             graph="rsqrt(shift(square(0)))", even_in=(0,)),
    Operator("root", "torch.sqrt(1 + torch.square({0}))", 1.5, "sqrt(1.0 + square(a))",
             graph="sqrt(shift(square(0)))", even_in=(0,)),
    Operator("clamp", "torch.clamp({0}, -{c}, {c})", 0.5, "min(max(a, -b), b)", smooth=False,
             constants=(1.5, 2.0, 2.5)),
    Operator("softshrink", "F.softshrink({0}, {c})", 0.7, "softshrink(a, -b, b)", smooth=False,
             constants=(0.1, 0.25)),
)  # fmt: skip
"""Functions of one number."""

SCALARS: tuple[Operator, ...] = (
    Operator("scale", "{c} * {0}", 0.5, "a * b", linear=True, infix=True, constants=(0.5, 0.7, 1.5, 2.0)),
    Operator("shift", "{0} + {c}", 0.5, "a + b", linear=True, infix=True, constants=(0.25, 0.5, 1.0)),
)
"""Functions of one number and a constant."""

BINARY: tuple[Operator, ...] = (
    Operator("add", "{0} + {1}", 0.8, linear=True, infix=True),
    Operator("sub", "{0} - {1}", 0.8, linear=True, infix=True),
    Operator("mul", "{0} * {1}", 0.8, linear_in=(0, 1), infix=True),
    Operator("gate", "{0} * torch.sigmoid({1})", 1.6, "a * sigmoid(b)", linear_in=(0,), infix=True,
             graph="mul(0,sigmoid(1))"),
    Operator("maximum", "torch.maximum({0}, {1})", 0.9, smooth=False),
    Operator("minimum", "torch.minimum({0}, {1})", 0.9, smooth=False),
    Operator("damp", "{0} / (1 + torch.abs({1}))", 2.0, "a / (1.0 + abs(b))", smooth=False, linear_in=(0,), infix=True,
             graph="div(0,shift(abs(1)))", even_in=(1,)),
    Operator("divide_root", "{0} * torch.rsqrt(1 + torch.square({1}))", 2.2, "a * rsqrt(1.0 + square(b))",
             linear_in=(0,), infix=True, graph="mul(0,rsqrt(shift(square(1))))", even_in=(1,)),
    Operator("logaddexp", "torch.logaddexp({0}, {1})", 2.6),
    Operator("hypot", "torch.sqrt(torch.square({0}) + torch.square({1}) + 0.1)", 2.5,
             "sqrt(square(a) + square(b) + 0.1)", graph="sqrt(shift(add(square(0),square(1))))", even_in=(0, 1)),
    Operator("squared_difference", "torch.square({0} - {1})", 1.2, "square(a - b)", graph="square(sub(0,1))"),
    Operator("lerp", "torch.lerp({0}, {1}, {c})", 1.0, linear=True, constants=(0.25, 0.4, 0.6)),
    Operator("phase", "{0} * torch.cos({1})", 1.6, "a * cos(b)", linear_in=(0,), angle=1, infix=True,
             graph="mul(0,cos(1))", even_in=(1,)),
)  # fmt: skip
"""Functions of two numbers."""

MASKED: tuple[Operator, ...] = (
    Operator("where", "torch.where({1}, {0}, {c})", 3.0, "where(b, a, c)", linear=True, constants=(-1.0, 0.0, 0.5),
             graph="where(1,0)"),
    Operator("where_scaled", "torch.where({1}, {0}, {c} * {0})", 3.5, "where(b, a, c * a)", linear=True,
             constants=(-0.5, 0.1, 0.3), graph="where(1,0,scale(0))"),
)  # fmt: skip
"""Functions with a mask as the second operand."""
