"""Which keys masks leave to a query, as far as that follows from places: blocks that are hidden are not visited."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.ir import Node, walk

LINEAR = re.compile(r"a(?: [*/] (?:b|[\d.]+|\([^()-]*(?:\([^()-]*\))?[^()-]*\)))?|[\d.]+ \* a")
"""Expressions whose value is the first operand times something else, which is positive where it is a number."""
_HIDDEN = "where(a, b, (-inf))"


@dataclass(frozen=True)
class Visible:
    """The keys that masks leave to a query, as far as they follow from places: query - behind < key < query + ahead."""

    ahead: int | None
    """The least of all such bounds; None where there is none."""
    behind: int | None
    """The least of all such bounds; None where there is none."""
    exact: bool
    """Whether nothing else can hide a key."""

    @property
    def first_key(self) -> bool:
        """Whether each query sees the first key: then no running maximum is -inf behind the first block."""
        return self.exact and self.behind is None and (self.ahead is None or self.ahead > 0)


@dataclass(frozen=True)
class _Place:
    """A number that follows from where an element lies: query * times_query + key * times_key + constant."""

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
"""Stands for a condition that does not follow from places."""
_Known = _Place | tuple[_Place, ...] | None
"""A number, or the numbers that are all positive where a condition holds; None where neither is known."""


def visible(logits: Node | None, weights: Node, others: Sequence[Node]) -> Visible:
    """Return which keys masks leave to a query, as far as a kernel can tell from places alone.

    Args:
        logits: What weights of 0 come from where it is -inf: what goes into a softmax or a sigmoid; None where that is
            not known.
        weights: The weights.
        others: Tensors besides the scores that weights are made of.
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
    """Return what a node is before it was cast."""
    return uncast(node.operands[0]) if node.kind == "pointwise" and node.expression == "a" else node


def below_sigmoid(terms: Node) -> Node | None:
    """Return what goes into a sigmoid: its weights are 0 where that is -inf."""
    node = uncast(terms)
    while node.kind == "pointwise" and LINEAR.fullmatch(node.expression) and len(node.operands) == 1:
        node = uncast(node.operands[0])
    return node.operands[0] if node.expression == "sigmoid(a)" else None


def _kept_infinite(node: Node) -> list[Node]:
    """Return the masks that make a node -inf: behind them are only sums, positive multiples and other masks."""
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
    """Return what is known of a number or a condition that places decide."""
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
        case ast.BinOp(left=left, op=ast.Mult(), right=right):  # of truth values: both hold
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
    if isinstance(large, tuple):  # truth values are 0 and 1
        return large if number and 0 <= small.constant < 1 else None
    if large is None or large.absolute:
        return None
    if small.absolute:
        inner = _Place(small.query, small.key, small.constant)
        sides = (large.plus(inner, -1), large.plus(inner, 1))
    else:
        sides = (large.plus(small, -1),)
    return tuple(one for one in sides if one is not None)
