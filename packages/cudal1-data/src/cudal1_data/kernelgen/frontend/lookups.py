"""Elements of a table at places that a tensor holds: kernels read them there, and PyTorch copies nothing before."""

from __future__ import annotations

import re

from cudal1_data.kernelgen.frontend import counts
from cudal1_data.kernelgen.frontend.layout import reshaped
from cudal1_data.kernelgen.frontend.values import Value, opaque
from cudal1_data.kernelgen.ir import FLOATS, Node, walk, with_operands
from cudal1_data.kernelgen.sizes import host_text

_RESHAPED = re.compile(r"\{1\}\.reshape\([^()]*\)")
"""The places in their own shape, in a call's text."""


def rows(table: Value, index: Value, text: str, *, wraps: bool = False) -> Node | None:
    """Return a table's rows at some places; None if PyTorch looks them up.

    Args:
        table: The table, of one or two axes.
        index: The places.
        text: The call, with `{0}` for the table and `{1}` for the places.
        wraps: Whether negative places count from the end.
    """
    if not isinstance(table, Node) or not isinstance(index, Node) or not _are_read(table, index):
        return None
    size, *width = table.dims
    added = size if wraps else 0
    if not width:
        return Node("gather", index.dims, text, (table, index), dtype=table.dtype, weights=(1,), wraps=added)
    column = counts.places((width[0],), index)
    if column is None:
        return None
    shape = ", ".join(map(host_text, index.dims))
    text = text.replace("{1}", f"{{1}}.reshape({shape})")
    operands = (table, reshaped(index, (*index.dims, 1)), column)
    weights = (width[0], 1)
    return Node("gather", (*index.dims, width[0]), text, operands, dtype=table.dtype, weights=weights, wraps=added)


def along(table: Value, axis: Value, index: Value) -> Node | None:
    """Return `torch.gather(table, axis, index)` of a matrix; None if PyTorch computes it."""
    if not isinstance(table, Node) or not isinstance(index, Node) or not _are_read(table, index):
        return None
    if len(table.dims) != 2 or len(index.dims) != 2 or axis not in (-2, -1, 0, 1):
        return None
    in_rows, width = axis in (-1, 1), table.dims[1]
    other = counts.places((index.dims[0], 1) if in_rows else index.dims[1:], index)
    if other is None:
        return None
    weights, text = (1, width) if in_rows else (width, 1), f"torch.gather({{0}}, {axis}, {{1}})"
    return Node("gather", index.dims, text, (table, index, other), dtype=table.dtype, weights=weights)


def as_calls(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the graph with lookups whose result kernels do not continue as calls into PyTorch."""
    order = walk(*roots)
    continued = {id(operand) for one in order if one.fusable for operand in one.operands}
    known: dict[int, Node] = {}
    for one in order:
        new = with_operands(one, known)
        if one.kind == "gather" and id(one) not in continued:
            table, index, *_ = new.operands
            text = _RESHAPED.sub("{1}", new.text, count=1) if index.text.startswith("{0}.reshape(") else new.text
            index = index.operands[0] if text != new.text else index
            new = opaque(text, one.dims, table, index, dtype=one.dtype)
        known[id(one)] = new
    return tuple(known[id(root)] for root in roots)


def _are_read(table: Node, index: Node) -> bool:
    """Return whether kernels can read a table at such places."""
    if (
        table.kind not in ("input", "parameter")
        or index.kind not in ("input", "opaque")
        or table.strides
        or index.strides
    ):
        return False
    return table.dtype in FLOATS and index.dtype == "int64" and bool(index.dims) and len(table.dims) in (1, 2)
