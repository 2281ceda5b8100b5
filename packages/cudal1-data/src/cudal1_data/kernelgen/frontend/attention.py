"""`F.scaled_dot_product_attention`, read as the two products and the softmax that it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import counts, dtypes, shapes
from cudal1_data.kernelgen.frontend.operators import fused
from cudal1_data.kernelgen.frontend.values import Value, opaque, pointwise
from cudal1_data.kernelgen.ir import FLOATS, Node
from cudal1_data.operators import BINARY, SPECIAL

_SETTINGS = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def attention(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return attention as products and a softmax; None for another call.

    Args:
        name: Last part of the function's name.
        args: Arguments by position.
        named: Arguments by name.

    Raises:
        UnsuitableError: It has a mask, dropout or shared heads.
    """
    if name != "scaled_dot_product_attention":
        return None
    given = {**dict(zip(("query", "key", "value", *_SETTINGS), args, strict=False)), **named}
    query, key, value = (given.pop(one, None) for one in ("query", "key", "value"))
    causal, scale = given.pop("is_causal", False), given.pop("scale", None)
    if not isinstance(causal, bool) or not (scale is None or isinstance(scale, int | float)) or any(given.values()):
        raise UnsuitableError(f"{name} is read with is_causal and scale only, not with a mask, dropout or shared heads")
    if not isinstance(query, Node) or not isinstance(key, Node) or not isinstance(value, Node):
        raise UnsuitableError(f"{name} has no three tensors")
    kind = dtypes.common((query, key, value))
    *heads, depth = (*query.dims[:-2], query.dims[-1])
    wanted = (*heads, value.dims[-2], depth)
    if kind not in FLOATS or len(query.dims) < 3 or key.dims != wanted or value.dims[:-1] != wanted[:-1]:
        raise UnsuitableError(f"{name} is read with tensors of floats with the same heads, not {key.dims}")
    keys = opaque("{0}.transpose(-2, -1)", shapes.swapped(key.dims, -2, -1), key, dtype=kind)
    scores = opaque("({0} @ {1})", shapes.product(query.dims, keys.dims), query, keys, dtype=kind)
    scores = pointwise(BINARY["mul"], scores, depth**-0.5 if scale is None else scale, dtype=kind)
    if causal:
        mask = counts.triangle(scores, lower=True, diagonal=0)
        if mask is None:
            raise UnsuitableError(f"{name} has a causal mask whose places templates cannot count")
        scores = pointwise(SPECIAL["where"], replace(mask, dtype="bool"), scores, float("-inf"), dtype=kind)
    weights = fused("softmax", (scores,), {"dim": -1})
    assert isinstance(weights, Node)
    return opaque("({0} @ {1})", query.dims[:-1] + value.dims[-1:], weights, value, dtype=kind)
