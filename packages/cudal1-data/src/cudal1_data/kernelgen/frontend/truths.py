"""Boolean tensors in a reference: comparisons, `&`, `|` and `~`, in kernels if possible."""

from __future__ import annotations

from typing import TypeGuard

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import counts, dtypes, shapes
from cudal1_data.kernelgen.frontend.layout import recounted, reshaped, rewritten
from cudal1_data.kernelgen.frontend.values import Value, opaque, pointwise, shape
from cudal1_data.kernelgen.ir import FLOATS, Dims, Node

_EXPRESSIONS = {"<": "less(a, b)", ">": "less(b, a)", "<=": "less_equal(a, b)", ">=": "less_equal(b, a)"}


def compared(sign: str, left: Value, right: Value) -> Node | None:
    """Return a comparison in a kernel; None if PyTorch makes it.

    PyTorch rounds a number to the tensor's dtype first. Integers are compared only with places: kernels compare in
        float32, which is exact for places, and rounding other integers keeps their order relative to places.
    """
    tensors = [one for one in (left, right) if isinstance(one, Node)]
    if sign not in _EXPRESSIONS:
        return None
    if all(one.dtype in FLOATS for one in tensors):
        kind = dtypes.promoted(left, right)
        left, right = (one if isinstance(one, Node) else dtypes.rounded(one, kind) for one in (left, right))
        return pointwise(_EXPRESSIONS[sign], counts.as_places(left), counts.as_places(right), dtype="bool")
    if len(tensors) == 2 and all(one.dtype == "int64" for one in tensors):
        known = [counts.as_places(one, whole=True) for one in tensors]
        if sum(one is not tensor for one, tensor in zip(known, tensors, strict=True)) == 1:
            return pointwise(_EXPRESSIONS[sign], *known, dtype="bool")
    return None


def joined(left: Value, right: Value, *, every: bool) -> Node:
    """Return `left & right`, or `left | right`.

    Args:
        left: Boolean tensor.
        right: Boolean tensor.
        every: Whether both must be true.

    Raises:
        UnsuitableError: An operand is no boolean tensor.
    """
    if not _is_truth(left) or not _is_truth(right):
        raise UnsuitableError("& or | has an operand that is not boolean; templates read only booleans there")
    known = [counts.as_places(one) for one in (left, right)]
    if any(isinstance(one, Node) and one.kind == "pointwise" for one in known):
        return pointwise("a * b" if every else "max(a, b)", *known, dtype="bool")
    return opaque(f"({{0}} {'&' if every else '|'} {{1}})", shape(left, right), left, right, dtype="bool")


def inverted(value: Value) -> Node:
    """Return `~value`.

    Raises:
        UnsuitableError: The value is no boolean tensor.
    """
    if not _is_truth(value):
        raise UnsuitableError("~ has an operand that is not boolean; templates read only booleans there")
    known = counts.as_places(value)
    if isinstance(known, Node) and known.kind == "pointwise":
        return pointwise("1.0 - a", known, dtype="bool")
    return opaque("(~{0})", value.dims, value, dtype="bool")


def viewed(node: Node, index: tuple[Value, ...]) -> Node | None:
    """Return `node[:, None]` in a kernel, as an operator on views of its operands; None for other indices."""
    if any(one is not None and one != slice(None) for one in index):
        return None

    def changed(dims: Dims) -> Dims:
        return shapes.indexed((1,) * (len(node.dims) - len(dims)) + dims, index)

    def leaf(one: Node) -> Node:
        return recounted(one, changed(one.dims)) if one.kind == "count" else reshaped(one, changed(one.dims))

    return rewritten(node, leaf, changed)


def _is_truth(value: Value) -> TypeGuard[Node]:
    return isinstance(value, Node) and value.dtype == "bool"
