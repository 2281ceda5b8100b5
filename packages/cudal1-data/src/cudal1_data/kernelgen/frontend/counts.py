"""Tensors that depend only on places, which a kernel computes instead of loading.

A causal mask, a window around the diagonal and a distance between two places come from `arange` or a triangle of ones.
They are replaced by pointwise operators over places, in float32, which is exact for integers up to 2**24.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cudal1_data.kernelgen.frontend.layout import recounted, rewritten
from cudal1_data.kernelgen.frontend.values import Value, pointwise
from cudal1_data.kernelgen.ir import Dims, Node, walk

_MOST = 2**20
"""Maximum number that is replaced, so that a few sums of such numbers are exact."""
_RANGE = re.compile(r"torch\.arange\((?:(\d+), )?(\d+), device=\{0\}\.device\)")
_BOOL = r"(?:, dtype=torch\.bool)?"
_ONES = re.compile(rf"torch\.ones\(\(?\d+, \d+\)?{_BOOL}, device=\{{0\}}\.device{_BOOL}\)")
_VIEW = re.compile(r"\{0\}\[(?:None|:)(?:, (?:None|:))*\]")
_BEHIND = re.compile(r"\{0\}\[[^:,\[\]]+:\]")
"""The last elements of a tensor."""
_SIDES = re.compile(r"\((\{\d\}|\d+) ([-+<>]=?) (\{\d\}|\d+)\)")
_SCALED = re.compile(r"\((?:(-?\d+) \* \{0\}|\{0\} (?:\* (-?\d+)|/ (\d+)))\)")
"""Places multiplied or divided by a number."""
_POWER = re.compile(r"torch\.pow\((\d+(?:\.\d+)?), \{0\}\)")
"""A number to the power of a tensor, as in the slopes of ALiBi."""
_ABSOLUTE = ("{0}.abs()", "torch.abs({0})")
_TRIANGLE = re.compile(r"(?:\{0\}\.|torch\.)(tril|triu)\((?:\{0\})?(?:, )?(?:diagonal=)?(-?\d+)?\)")
_EXPRESSIONS = {
    "+": "a + b",
    "-": "a - b",
    "<": "less(a, b)",
    ">": "less(b, a)",
    "<=": "less(a, b + 1.0)",
    ">=": "less(b, a + 1.0)",
}


def as_places(value: Value, *, whole: bool = False) -> Value:
    """Return a pointwise replacement of a PyTorch call, or the value itself if there is none.

    Args:
        value: Any value; a mask or other tensor that depends only on places is replaced.
        whole: Whether to replace integers, too; they become float32.
    """
    dtypes = ("bool", "float32", "int64") if whole else ("bool", "float32")
    if not isinstance(value, Node) or value.kind != "opaque" or value.dtype not in dtypes:
        return value
    return _twin(value) or value


def _twin(node: Node) -> Node | None:
    text, operands = node.text, node.operands
    if (counted := _RANGE.fullmatch(text)) is not None:
        first, (size,) = int(counted[1] or 0), node.dims
        whole = places(node.dims, node) if max(first, size) <= _MOST else None
        return whole if whole is None or first == 0 else pointwise("a + b", whole, first)
    if _VIEW.fullmatch(text) and operands[0].kind == "opaque":
        inner = _twin(operands[0])
        return None if inner is None else _viewed(inner, text[4:-1].split(", "), len(operands[0].dims))
    if _BEHIND.fullmatch(text) and len(operands[0].dims) == 1 and operands[0].kind == "opaque":
        inner = _twin(operands[0])
        first, whole = operands[0].dims[0] - node.dims[0], places(node.dims, node)
        return None if inner is None or inner.kind != "count" or whole is None else pointwise("a + b", whole, first)
    if text == "(~{0})":
        inner = _twin(operands[0]) if operands[0].kind == "opaque" else None
        return None if inner is None else pointwise("1.0 - a", inner, dtype="bool")
    if (scaled := _SCALED.fullmatch(text)) is not None and operands[0].dtype == "int64":
        inner, times = _twin(operands[0]), int(scaled[1] or scaled[2] or scaled[3])
        if inner is None or not 0 < abs(times) <= _MOST:
            return None
        return pointwise("a / b" if scaled[3] else "a * b", inner, times, dtype="float32")
    if (power := _POWER.fullmatch(text)) is not None and operands[0].dtype == "float32" and float(power[1]) > 0:
        inner = operands[0] if operands[0].kind == "pointwise" else _twin(operands[0])
        if inner is None or not all(one.kind in ("count", "pointwise") for one in walk(inner)):
            return None
        return pointwise("exp(a * b)", inner, math.log(float(power[1])))
    if text in _ABSOLUTE and node.dtype == "int64":
        inner = _twin(operands[0])
        return None if inner is None else pointwise("abs(a)", inner)
    if (sides := _SIDES.fullmatch(text)) is not None and all(one.dtype == "int64" for one in operands):
        left, right = (_side(one, operands) for one in (sides[1], sides[3]))
        if left is None or right is None:
            return None
        return pointwise(_EXPRESSIONS[sides[2]], left, right, dtype="bool" if node.dtype == "bool" else "float32")
    if (side := _TRIANGLE.fullmatch(text)) is not None and _ONES.fullmatch(operands[0].text):
        return triangle(node, lower=side[1] == "tril", diagonal=int(side[2] or 0))
    return None


def _viewed(node: Node, index: Sequence[str], rank: int) -> Node | None:
    """Return operators over places after an index such as `[:, None]`; None if an axis of places has length one."""
    if any(one.kind == "count" and one.size == 1 for one in walk(node)):
        return None

    def changed(dims: Dims) -> Dims:
        left = [*(1,) * (rank - len(dims)), *dims]
        return (*(1 if one == "None" else left.pop(0) for one in index), *left)

    return rewritten(node, lambda one: recounted(one, changed(one.dims)), changed)


def triangle(node: Node, *, lower: bool, diagonal: int) -> Node | None:
    """Return a mask of one side of a diagonal of matrices; None if they are too large.

    Args:
        node: The matrices, in its last two axes.
        lower: Whether the side is below the diagonal.
        diagonal: Offset above the main diagonal; places on the diagonal are true.
    """
    rows, cols = node.dims[-2:]
    row, col = places((rows, 1), node), places((cols,), node)
    if row is None or col is None or max(rows, cols, abs(diagonal)) > _MOST:
        return None
    if lower:  # col <= row + diagonal
        return pointwise("less(a, b)", col, pointwise("a + b", row, diagonal + 1), dtype=node.dtype)
    return pointwise("less(a, b)", pointwise("a + b", row, diagonal - 1), col, dtype=node.dtype)


def _side(text: str, operands: tuple[Node, ...]) -> Node | int | None:
    if text.isdigit():
        return int(text) if int(text) <= _MOST else None
    node = operands[int(text[1:-1])]
    return _twin(node) if node.kind == "opaque" else None


def places(dims: Dims, made_by: Node) -> Node | None:
    """Return the places along the only axis longer than 1; None if there is no input or not one such axis."""
    place = next((one for one in walk(made_by) if one.kind == "input" and one.text), None)
    if place is None or sum(size != 1 for size in dims) != 1:
        return None
    index = ", ".join(":" if size != 1 else "None" for size in dims)
    view = f"[{index}]" if len(dims) > 1 else ""
    text = f"torch.arange({max(dims)}, dtype=torch.float32, device={place.text}.device){view}"
    return Node("count", dims, text=text)
