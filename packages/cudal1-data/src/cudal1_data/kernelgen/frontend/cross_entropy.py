"""Cross-entropy of rows of logits and a label for each: kernels find the label's logit while they go over the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cudal1_data.kernelgen.frontend import counts
from cudal1_data.kernelgen.frontend.layout import reshaped
from cudal1_data.kernelgen.frontend.operators import lowered, over
from cudal1_data.kernelgen.frontend.values import Value, pointwise
from cudal1_data.kernelgen.ir import FLOATS, Node

_AT_LABEL = "where(equal(a, b), c, 0.0)"
"""The third operand where the first two, a place and a label, are equal; else 0."""
_UNLESS_IGNORED = "where(less(a, 0.0), 0.0, b)"
"""The second operand unless the first, a label, is negative: `F.cross_entropy` ignores the label -100."""


def cross_entropy(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
    """Return the cross-entropy of a matrix of logits and a vector of labels; None if PyTorch computes it.

    Args:
        name: Last part of the function's name.
        args: Arguments by position.
        named: Arguments by name.
    """
    how = named.get("reduction", "mean")
    if name != "cross_entropy" or len(args) != 2 or set(named) - {"reduction"}:
        return None
    logits, labels = args
    if not isinstance(logits, Node) or not isinstance(labels, Node) or how not in ("mean", "sum", "none"):
        return None
    rows = logits.dims[:1]
    if len(logits.dims) != 2 or labels.dims != rows or labels.dtype != "int64" or logits.dtype not in FLOATS:
        return None
    place = counts.places(logits.dims[1:], logits)
    if place is None:
        return None
    wide = logits if logits.dtype == "float32" else pointwise("a", logits, dtype="float32")
    label = reshaped(labels, (*rows, 1))
    mine = over("sum", pointwise(_AT_LABEL, place, label, wide, dtype="float32"), (1,))
    loss = pointwise("a - b", lowered("logsumexp", wide, (1,), keepdim=True), mine)
    losses = reshaped(pointwise(_UNLESS_IGNORED, label, loss, dtype="float32"), rows)
    found = losses if how == "none" else over("sum", losses, (0,), keepdim=False)
    if how == "mean":
        count = over("sum", pointwise("where(less(a, 0.0), 0.0, 1.0)", labels, dtype="float32"), (0,), keepdim=False)
        found = pointwise("a / b", found, count)
    return found if logits.dtype == "float32" else pointwise("a", found, dtype=logits.dtype)
