"""Intervals of an operator's results, and detection of choices that are always decided the same way.

An absolute value of a nonnegative operand, a clamp beyond its operand's range, a maximum of values with disjoint
ranges: these do nothing. `applied` reports them, also inside a compound operator.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from cudal1_data.operators import EXPRESSIONS, FUNCTIONS


@dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high`."""

    low: float = -math.inf
    high: float = math.inf

    def __and__(self, other: Interval) -> Interval:
        """Return the intersection."""
        return Interval(max(self.low, other.low), min(self.high, other.high))

    def __or__(self, other: Interval) -> Interval:
        """Return the smallest interval around both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


ANY = Interval()
POSITIVE = Interval(0.0)
UNIT = Interval(0.0, 1.0)

_KNOWN: dict[str, Interval] = {
    "silu": Interval(-0.2785),
    "gelu": Interval(-0.17),
    "gelu_tanh": Interval(-0.1701),
    "mish": Interval(-0.3089),
    "hardswish": Interval(-0.375),
    "logsigmoid": Interval(high=0.0),
    "softplus": POSITIVE,
    "softsign": Interval(-1.0, 1.0),
    "elu": Interval(-1.0),
    "selu": Interval(-1.7581),
    "huber": POSITIVE,
    "smooth_l1": POSITIVE,
    "binary_cross_entropy_with_logits": POSITIVE,
}
"""Bounds that interval arithmetic misses, because the expressions use an operand more than once."""
_SMOOTH = frozenset({"softplus", "mish", "logsigmoid", "logaddexp", "softsign", "binary_cross_entropy_with_logits"})
"""Rows whose choices only keep numbers in range: these never count as idle."""
_MONOTONE: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "atan": math.atan,
    "erf": math.erf,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
}
_LIMITS = {
    "exp": (0.0, math.inf),
    "expm1": (-1.0, math.inf),
    "log": (-math.inf, math.inf),
    "log1p": (-math.inf, math.inf),
    "sqrt": (0.0, math.inf),
    "tanh": (-1.0, 1.0),
    "atan": (-math.pi / 2, math.pi / 2),
    "erf": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "softplus": (0.0, math.inf),
}
"""Limits of monotone functions at both ends of their domain."""


def applied(expression: str, *operands: Interval) -> tuple[Interval, bool]:
    """Apply an expression of `cudal1_data.operators` to intervals.

    Args:
        expression: Expression over `a`, `b`, `c`.
        operands: Interval of each.

    Returns:
        Interval of the results, and whether a choice within the expression is always decided the same way.

    >>> applied("abs(a)", Interval(0.0, 2.0))
    (Interval(low=0.0, high=2.0), True)
    >>> applied("min(max(a, -b), b)", Interval(-3.0, 1.0), Interval(2.0, 2.0))
    (Interval(low=-2.0, high=1.0), True)
    """
    reader = _Reader(dict(zip("abc", operands, strict=False)))
    return reader.of(_parsed(expression)), reader.idle


@functools.cache
def chooses(expression: str) -> bool:
    """Return whether an expression contains a choice that could do nothing.

    >>> chooses("a * sigmoid(b)"), chooses("elu(a)")
    (False, True)
    """
    calls = [one.func for one in ast.walk(_parsed(expression)) if isinstance(one, ast.Call)]
    names = {one.id for one in calls if isinstance(one, ast.Name)}
    return any(
        name in _CHOICES or (name not in FUNCTIONS and name not in _SMOOTH and chooses(EXPRESSIONS[name]))
        for name in names
    )


@functools.cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


@functools.cache
def _same(one: ast.expr, other: ast.expr) -> bool:
    return ast.dump(one) == ast.dump(other)


class _Reader:
    def __init__(self, operands: dict[str, Interval]) -> None:
        self.operands = operands
        self.idle = False

    def of(self, node: ast.expr) -> Interval:
        match node:
            case ast.Name(id=name):
                return self.operands[name]
            case ast.Constant(value=float(value)):
                return Interval(value, value)
            case ast.UnaryOp(operand=inner):
                one = self.of(inner)
                return Interval(-one.high, -one.low)
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Mult) and _same(left, right):
                    return _product(_magnitude(self.of(left)), _magnitude(self.of(left)))
                return _arithmetic(op, self.of(left), self.of(right))
            case ast.Call(func=ast.Name(id=name), args=inner):
                return self.call(name, [self.of(one) for one in inner])
            case _:
                raise AssertionError(f"expected an expression over a, b, c, got {ast.unparse(node)}")

    def call(self, name: str, given: list[Interval]) -> Interval:
        if name not in FUNCTIONS:
            inner, idle = applied(EXPRESSIONS[name], *given)
            self.idle |= idle and name not in _SMOOTH
            return inner & _KNOWN.get(name, ANY)
        if name in _MONOTONE:
            return Interval(_value(name, given[0].low, 0), _value(name, given[0].high, 1))
        if name in ("sin", "cos"):
            return _wave(name, given[0])
        if name == "rsqrt":
            low, high = given[0].low, given[0].high
            return Interval(0.0 if math.isinf(high) else high**-0.5, math.inf if low <= 0.0 else low**-0.5)
        result, decided = _CHOICES[name](*given)
        self.idle |= decided
        return result


def _value(name: str, x: float, end: int) -> float:
    low, high = _LIMITS[name]
    if math.isinf(x):
        return low if x < 0 else high
    try:
        return _MONOTONE[name](x)
    except (ValueError, OverflowError):
        return (low, high)[end]


def _wave(name: str, one: Interval) -> Interval:
    """Return the interval of a sine within pi/2 or a cosine within pi of zero, else [-1, 1]."""
    if name == "sin" and -math.pi / 2 <= one.low and one.high <= math.pi / 2:
        return Interval(math.sin(one.low), math.sin(one.high))
    if name == "cos" and -math.pi <= one.low and one.high <= math.pi:
        ends = math.cos(one.low), math.cos(one.high)
        return Interval(min(ends), 1.0 if one.low <= 0.0 <= one.high else max(ends))
    return Interval(-1.0, 1.0)


def _magnitude(one: Interval) -> Interval:
    if one.low >= 0.0:
        return one
    return Interval(0.0, max(-one.low, one.high)) if one.high > 0.0 else Interval(-one.high, -one.low)


def _product(one: Interval, other: Interval) -> Interval:
    ends = [0.0 if 0.0 in (x, y) else x * y for x in (one.low, one.high) for y in (other.low, other.high)]
    return Interval(min(ends), max(ends))


def _arithmetic(op: ast.operator, one: Interval, other: Interval) -> Interval:
    match op:
        case ast.Add():
            return Interval(one.low + other.low, one.high + other.high)
        case ast.Sub():
            return Interval(one.low - other.high, one.high - other.low)
        case ast.Mult():
            return _product(one, other)
        case _ if other.low <= 0.0 <= other.high:
            return ANY
        case _:
            return _product(one, Interval(1.0 / other.high, 1.0 / other.low))


def _larger(one: Interval, other: Interval) -> tuple[Interval, bool]:
    result = Interval(max(one.low, other.low), max(one.high, other.high))
    return result, one.low >= other.high or other.low >= one.high


def _smaller(one: Interval, other: Interval) -> tuple[Interval, bool]:
    result = Interval(min(one.low, other.low), min(one.high, other.high))
    return result, one.low >= other.high or other.low >= one.high


def _less(one: Interval, other: Interval) -> tuple[Interval, bool]:
    return UNIT, one.high <= other.low or one.low >= other.high


def _absolute(one: Interval) -> tuple[Interval, bool]:
    return _magnitude(one), one.low >= 0.0 or one.high <= 0.0


def _chosen(condition: Interval, one: Interval, other: Interval) -> tuple[Interval, bool]:
    return one | other, condition.low == condition.high


_CHOICES: dict[str, Callable[..., tuple[Interval, bool]]] = {
    "abs": _absolute,
    "max": _larger,
    "min": _smaller,
    "less": _less,
    "where": _chosen,
}
