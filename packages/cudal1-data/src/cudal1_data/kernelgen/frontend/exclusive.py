"""Sums of all earlier elements, written as prefix sums behind a zero: kernels compute them without joining tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cudal1_data.kernelgen.frontend.values import Value, pointwise
from cudal1_data.kernelgen.ir import FLOATS, Node, broadcast

_ZEROS = re.compile(r"torch\.zeros(?:_like)?\(")
_UP_TO = re.compile(r".*\[(?:\.\.\., |(?::, )*):[^:,\[\]]+\]")
"""Elements from the first to another one of the last axis."""


def exclusive_sums(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return `torch.cat((zeros, sums), dim)` as prefix sums minus the elements; None if it joins other tensors.

    Args:
        name: Last part of the function's name.
        args: Arguments by position.
        named: Arguments by name.
    """
    parts, dim = args[0] if args else None, args[1] if len(args) > 1 else named.get("dim", 0)
    if name != "cat" or not isinstance(parts, tuple) or len(parts) != 2:
        return None
    zeros, sums = parts
    if not isinstance(zeros, Node) or not isinstance(sums, Node) or not zeros.dims or zeros.dims[-1] != 1:
        return None
    if dim not in (-1, len(sums.dims) - 1) or _ZEROS.match(zeros.text) is None:
        return None
    if zeros.dtype != sums.dtype or sums.dtype not in FLOATS:
        return None
    scan = sums if sums.kind == "scan" else _longer(sums)
    if scan is None or scan.kind != "scan" or scan.how != "sum":
        return None
    terms = _whole(scan.operands[0]) if scan is sums else scan.operands[0]
    if terms is None:
        return None
    wide = terms if terms.dtype == "float32" else pointwise("a", terms, dtype="float32")
    total = Node("scan", wide.dims, operands=(wide,), how="sum", trailing=1)
    found = pointwise("a - b", total, wide)
    return found if sums.dtype == "float32" else pointwise("a", found, dtype=sums.dtype)


def _longer(node: Node) -> Node | None:
    """Return the tensor of which a tensor is all but the last element of the last axis; None for another tensor."""
    if node.kind != "opaque" or len(node.operands) != 1 or _UP_TO.fullmatch(node.text) is None:
        return None
    (longer,) = node.operands
    return longer if longer.dims and (*longer.dims[:-1], longer.dims[-1] - 1) == node.dims else None


def _whole(node: Node) -> Node | None:
    """Return the tensor of which a tensor is all but the last element of the last axis, with operators on both."""
    if not node.dims or node.dims[-1] == 1:
        return node
    if node.kind != "pointwise":
        return _longer(node)
    operands = [_whole(one) for one in node.operands]
    found = tuple(one for one in operands if one is not None)
    return replace(node, dims=broadcast(*(one.dims for one in found)), operands=found) if all(operands) else None
