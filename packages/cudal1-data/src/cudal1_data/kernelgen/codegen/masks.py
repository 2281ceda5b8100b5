"""Keys that masks leave visible to a query, as far as places determine it: kernels skip hidden blocks."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.ir import Node, walk

LINEAR = re.compile(r"a(?: [*/] (?:b|[\d.]+|\([^()-]*(?:\([^()-]*\))?[^()-]*\)))?|[\d.]+ \* a")
"""Expressions that multiply or divide the first operand by something; a number there is positive."""
_HIDDEN = "where(a, b, (-inf))"


@dataclass(frozen=True)
class Visible:
    """The keys that a query can see, as far as places determine it: query - behind < key < query + ahead."""

    ahead: int | None
    """The smallest such bound, or None."""
    behind: int | None
    """The smallest such bound, or None."""
    exact: bool
    """Whether nothing else can hide a key."""

    @property
    def first_key(self) -> bool:
        """Whether each query sees the first key: then no running maximum is -inf after the first block."""
        return self.exact and self.behind is None and (self.ahead is None or self.ahead > 0)


@dataclass(frozen=True)
class _Place:
    """A linear function of an element's places, with factors of query and key, possibly its absolute value."""

    query: float
    key: float
    constant: float
    absolute: bool = False

    def plus(self, other: _Place, sign: int) -> _Place | None:
        if self.absolute or other.absolute:
            return None
        return _Place(
            self.query + sign * other.query, self.key + sign * other.key, self.constant + sign * other.constant
        )


_UNKNOWN = _Place(0, 0, 0)
"""A condition that places do not determine."""
_Known = _Place | tuple[_Place, ...] | None
"""A number, or for a condition the numbers that are all positive if it holds; None if unknown."""


def visible(logits: Node | None, weights: Node, others: Sequence[Node]) -> Visible:
    """Return the keys that masks leave visible to a query, as far as places determine it.

    Args:
        logits: Input of the softmax or sigmoid, whose weights are 0 where it is -inf; None if unknown.
        weights: The weights.
        others: Tensors besides the scores from which weights are computed.
    """
    ahead: list[int] = []
    behind: list[int] = []
    exact = not any(leaf.dims and leaf.dims[-1] != 1 for leaf in others)
    hidden = [node for node in walk(weights) if _HIDDEN in node.expression]
    followed: list[Node] = []
    for node in _kept_infinite(logits) if logits is not None else ():
        if node.expression == _HIDDEN:
            followed.append(node)
            conditions = _known(node.operands[0])
            exact = exact and isinstance(conditions, tuple)
            for one in conditions if isinstance(conditions, tuple) else ():
                whole = one.constant == int(one.constant)
                if (one.query, one.key) == (1, -1) and whole:
                    ahead.append(int(one.constant))
                elif (one.query, one.key) == (-1, 1) and whole:
                    behind.append(int(one.constant))
                else:
                    exact = False
    exact = exact and all(any(one is other for other in followed) for one in hidden)
    return Visible(min(ahead, default=None), min(behind, default=None), exact)


def uncast(node: Node) -> Node:
    """Return a node without casts."""
    return uncast(node.operands[0]) if node.kind == "pointwise" and node.expression == "a" else node


def below_sigmoid(terms: Node) -> Node | None:
    """Return the input of a sigmoid, or None: its weights are 0 where the input is -inf."""
    node = uncast(terms)
    while node.kind == "pointwise" and LINEAR.fullmatch(node.expression) and len(node.operands) == 1:
        node = uncast(node.operands[0])
    return node.operands[0] if node.expression == "sigmoid(a)" else None


def _kept_infinite(node: Node) -> list[Node]:
    """Return the masks that make a node -inf: only sums, positive multiples and other masks follow them."""
    node = uncast(node)
    below: list[Node] = []
    if node.kind == "pointwise":
        if node.expression in ("a + b", "a - b", _HIDDEN):
            below = [node.operands[1]] if node.expression == _HIDDEN else list(node.operands[:1])
            below += [node.operands[1]] if node.expression == "a + b" else []
        elif len(node.operands) == 1 and LINEAR.fullmatch(node.expression):
            below = [node.operands[0]]
    found = [one for each in below for one in _kept_infinite(each)]
    return [node, *found] if node.expression == _HIDDEN else found


def _known(node: Node) -> _Known:
    """Return a number or condition as far as places determine it."""
    if node.kind == "count":
        if node.dims[-1] != 1:
            return _Place(0, 1, 0)
        return _Place(1, 0, 0) if len(node.dims) > 1 and node.dims[-2] != 1 else None
    if node.kind != "pointwise":
        return None
    return _evaluated(ast.parse(node.expression, mode="eval").body, node.operands)


def _evaluated(tree: ast.expr, operands: Sequence[Node]) -> _Known:
    match tree:
        case ast.Name(id="a" | "b" | "c" as name):
            return _known(operands["abc".index(name)])
        case ast.Constant(value=int() | float() as number):
            return _Place(0, 0, float(number))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            one, other = _evaluated(left, operands), _evaluated(right, operands)
            if not isinstance(one, _Place) or not isinstance(other, _Place):
                return None
            return one.plus(other, 1 if isinstance(op, ast.Add) else -1)
        case ast.Call(func=ast.Name(id="abs"), args=[inner]):
            one = _evaluated(inner, operands)
            return _Place(one.query, one.key, one.constant, True) if isinstance(one, _Place) else None
        case ast.Call(func=ast.Name(id="less"), args=[left, right]):
            return _less(_evaluated(left, operands), _evaluated(right, operands))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):  # of conditions: both hold
            sides = [_evaluated(one, operands) for one in (left, right)]
            if not any(isinstance(one, tuple) for one in sides):
                return None
            return tuple(each for one in sides for each in (one if isinstance(one, tuple) else (_UNKNOWN,)))
        case _:
            return None


def _less(small: _Known, large: _Known) -> _Known:
    if not isinstance(small, _Place):
        return None
    number = (small.query, small.key, small.absolute) == (0, 0, False)
    if isinstance(large, tuple):  # conditions are 0 or 1
        return large if number and 0 <= small.constant < 1 else None
    if large is None or large.absolute:
        return None
    if small.absolute:
        inner = _Place(small.query, small.key, small.constant)
        sides = (large.plus(inner, -1), large.plus(inner, 1))
    else:
        sides = (large.plus(small, -1),)
    return tuple(one for one in sides if one is not None)
