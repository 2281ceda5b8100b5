"""Norms as rows: they compute in float32, and round their result once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cudal1_data.kernelgen.frontend import shapes
from cudal1_data.kernelgen.frontend.layout import reshaped
from cudal1_data.kernelgen.frontend.operators import normalized
from cudal1_data.kernelgen.frontend.values import Value, pointwise
from cudal1_data.kernelgen.ir import FLOATS, HALVES, Node

_ARGUMENTS = {
    "layer_norm": ("shape", "weight", "bias", "eps"),
    "rms_norm": ("shape", "weight", "eps"),
    "group_norm": ("num_groups", "weight", "bias", "eps"),
    "instance_norm": ("running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"),
}
"""Functions of `torch.nn.functional`, with the names of their arguments after the tensor."""


def function(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return the result of a functional norm; None if it is none, or not supported."""
    x = args[0] if args else None
    if name not in _ARGUMENTS or not isinstance(x, Node) or x.dtype not in FLOATS:
        return None
    given = dict(zip(_ARGUMENTS[name], args[1:], strict=False))
    given |= {"shape" if key == "normalized_shape" else key: value for key, value in named.items()}
    weight, bias, eps = given.get("weight"), given.get("bias"), given.get("eps", None if name == "rms_norm" else 1e-5)
    plain = (
        given.get("running_mean") is None and given.get("running_var") is None and given.get("use_input_stats", True)
    )
    if (
        set(given) - set(_ARGUMENTS[name])
        or not plain
        or not all(one is None or isinstance(one, Node) for one in (weight, bias))
    ):
        return None
    scale = (weight if isinstance(weight, Node) else None, bias if isinstance(bias, Node) else None)
    if any(one is not None and one.dtype != x.dtype for one in scale):
        return None
    if name == "instance_norm":
        return instances(x, *scale, eps=eps) if len(x.dims) > 2 else None
    if name == "group_norm":
        return groups(x, shapes.ints(given["num_groups"])[0], *scale, eps=eps)
    count = len(shapes.ints(given["shape"]))
    return rows(x, count, *scale, eps=eps, centred=name == "layer_norm")


def rows(x: Node, count: int, weight: Node | None, bias: Node | None, *, eps: Value, centred: bool = True) -> Node:
    """Return a norm of the last `count` axes, scaled and shifted by element; an `eps` of None is float32's."""
    result = normalized(_wide(x), count, eps if eps is not None else 2.0**-23, centred=centred)
    return _narrow(_scaled(result, weight, bias), x)


def groups(x: Node, count: int, weight: Node | None, bias: Node | None, *, eps: Value) -> Node:
    """Return a group norm: rows are a sample's groups, whose channels and places are the trailing axes of a view."""
    channels = x.dims[1]
    viewed = (x.dims[0], count, channels // count, math.prod(x.dims[2:]))
    result = normalized(reshaped(_wide(x), viewed), 2, eps)
    parts = [None if one is None else reshaped(one, (count, channels // count, 1)) for one in (weight, bias)]
    return _narrow(reshaped(_scaled(result, *parts), x.dims), x)


def instances(x: Node, weight: Node | None, bias: Node | None, *, eps: Value) -> Node:
    """Return an instance norm: rows are a sample's channels."""
    inner = len(x.dims) - 2
    parts = [None if one is None else reshaped(one, (x.dims[1], *(1,) * inner)) for one in (weight, bias)]
    return _narrow(_scaled(normalized(_wide(x), inner, eps), *parts), x)


def _scaled(x: Node, weight: Node | None, bias: Node | None) -> Node:
    x = x if weight is None else pointwise("a * b", x, weight)
    return x if bias is None else pointwise("a + b", x, bias)


def _wide(x: Node) -> Node:
    return pointwise("a", x, dtype="float32") if x.dtype in HALVES else x


def _narrow(x: Node, like: Node) -> Node:
    return pointwise("a", x, dtype=like.dtype) if like.dtype in HALVES else x
