"""Arithmetic and comparisons of a reference: of numbers as in Python, of floats in kernels, of others in PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import cast

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import calls, counts, dtypes, shapes, truths
from cudal1_data.kernelgen.frontend.values import Value, opaque, pointwise, shape, written
from cudal1_data.kernelgen.ir import FLOATS, Node
from cudal1_data.operators import BINARY

_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("add", "+"),
    ast.Sub: ("sub", "-"),
    ast.Mult: ("mul", "*"),
    ast.Div: ("div", "/"),
}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def combined(op: ast.operator, left: Value, right: Value) -> Value:
    """Return `left op right`.

    Raises:
        UnsuitableError: An operand is neither number nor tensor, or the operator is not supported.
    """
    if not isinstance(left, Node) and not isinstance(right, Node):
        return _number(op, left, right)
    if isinstance(op, ast.MatMult):
        assert isinstance(left, Node)
        assert isinstance(right, Node)
        dims = shapes.product(left.dims, right.dims)
        return opaque("({0} @ {1})", dims, left, right, dtype=dtypes.common((left, right)))
    if isinstance(op, ast.Pow):
        return calls.call("pow", "torch.pow", (left, right), {})
    if isinstance(op, ast.BitAnd | ast.BitOr):
        return truths.joined(left, right, every=isinstance(op, ast.BitAnd))
    if type(op) not in _ARITHMETIC:
        raise UnsuitableError(f"the operator {type(op).__name__} of tensors is not read; templates read + - * / ** @")
    name, sign = _ARITHMETIC[type(op)]
    kind = dtypes.divided(left, right) if sign == "/" else dtypes.promoted(left, right)
    counted = [counts.as_places(one, whole=True) for one in (left, right)]
    if kind not in FLOATS or not _masks(counted):
        return _called(sign, left, right, kind)
    return pointwise(BINARY[name], *counted, dtype=kind)


def compared(ops: Sequence[ast.cmpop], left: Value, right: Value) -> Value:
    """Return a comparison.

    Raises:
        UnsuitableError: Several are chained, or no operand is a tensor.
    """
    if len(ops) != 1 or not (isinstance(left, Node) or isinstance(right, Node)):
        raise UnsuitableError("several comparisons are chained; templates read one comparison of tensors")
    sign = _COMPARED[type(ops[0])]
    truth = truths.compared(sign, left, right)
    return _called(sign, left, right, "bool") if truth is None else truth


def negative(value: Value) -> Value:
    """Return `-value`."""
    if not isinstance(value, Node):
        return -cast("float", value)
    return pointwise("-a", value) if value.dtype in FLOATS else opaque("(-{0})", value.dims, value, dtype=value.dtype)


def _called(sign: str, left: Value, right: Value, kind: str) -> Node:
    operands: list[Node] = []
    text = f"({written(left, operands)} {sign} {written(right, operands)})"
    dims = shape(*(one for one in (left, right) if isinstance(one, Node)))
    return opaque(text, dims, *operands, dtype=kind)


def _masks(values: list[Value]) -> bool:
    """Return whether all tensors are floats or booleans that a kernel computes."""
    tensors = [one for one in values if isinstance(one, Node)]
    return all(one.dtype in FLOATS or (one.dtype == "bool" and one.kind == "pointwise") for one in tensors)


def _number(op: ast.operator, left: Value, right: Value) -> Value:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise UnsuitableError("arithmetic has an operand that is neither a number nor a tensor")
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return left // right
        case ast.Pow() if abs(right) < 64:
            return cast("float", left**right)
        case ast.LShift() if isinstance(left, int) and isinstance(right, int) and 0 <= right < 64:
            return left << right
        case _:
            raise UnsuitableError(f"the operator {type(op).__name__} is not read; templates read plain arithmetic")
