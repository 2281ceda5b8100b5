"""Tensors in another layout: axes reordered, a long axis split in two, or elements repeated.

Only leaves change; kernels read them in place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from cudal1_data.kernelgen.ir import Dims, Node, contiguous, walk, with_operands
from cudal1_data.kernelgen.sizes import host_text

_LAYOUT = re.compile(r"\{0\}\.(reshape|contiguous|permute|unsqueeze)\(")
"""Calls that compute nothing, so that equal ones on one tensor can be merged."""


def moved(node: Node, order: tuple[int, ...]) -> Node:
    """Return a tensor with its axes reordered; operators between it and its leaves are rewritten.

    Args:
        node: The tensor.
        order: The old axis of each new axis.
    """

    def leaf(one: Node) -> Node:
        padded = (1,) * (len(order) - len(one.dims)) + one.dims
        dims = tuple(padded[place] for place in order)
        if one.kind == "count":
            return recounted(one, dims)
        if one.kind == "opaque" and one.text.startswith("{0}.reshape(") and one.operands[0].dims == dims:
            return one.operands[0]  # a reduction of the moved tensor: only axes of size 1 are moved
        if [place for place in order if padded[place] != 1] == [
            place for place, size in enumerate(padded) if size != 1
        ]:
            return one if dims == one.dims else reshaped(one, dims)
        whole = contiguous(padded)
        view = f".reshape({_listed(padded)})" if padded != one.dims else ""
        text = f"{{0}}.contiguous(){view}.permute({_listed(order)})"
        strides = tuple(whole[place] for place in order)
        return Node("opaque", dims, text=text, operands=(one,), dtype=one.dtype, strides=strides)

    def looked_up(one: Node) -> Node:
        table, *places = one.operands
        operands = (table, *(moved(place, order) for place in places))
        back = _listed(tuple(order.index(place) for place in range(len(order))))
        text = one.text.replace("{1}", f"{{1}}.permute({back})") + f".permute({_listed(order)})"
        return replace(one, dims=tuple(one.dims[place] for place in order), operands=operands, text=text)

    def either(one: Node) -> Node:
        return looked_up(one) if one.kind == "gather" and len(one.dims) == len(order) else leaf(one)

    return rewritten(node, either, lambda dims: tuple(_padded(dims, len(order))[place] for place in order))


def recounted(count: Node, dims: Dims) -> Node:
    """Return places along another axis."""
    index = ", ".join(":" if size != 1 else "None" for size in dims)
    return Node("count", dims, text=count.text.partition("[")[0] + (f"[{index}]" if len(dims) > 1 else ""))


def split(node: Node, parts: int) -> Node:
    """Return a tensor with its last axis split into `parts` parts; operators above its leaves are rewritten."""

    def changed(dims: Dims) -> Dims:
        if not dims:
            return dims
        return (*dims[:-1], 1, 1) if dims[-1] == 1 else (*dims[:-1], parts, dims[-1] // parts)

    return rewritten(node, lambda one: reshaped(one, changed(one.dims)) if one.dims else one, changed)


def repeated(node: Node, first: int, times: int) -> Node | None:
    """Return a tensor with its elements repeated; pointwise operators above its leaves are rewritten.

    Args:
        node: The tensor.
        first: Number of the first axis along which elements are repeated.
        times: How often each one is.

    Returns:
        The tensor; None if such an axis has one element, or kernels compute places in it.
    """
    rank = len(node.dims)
    if 1 in node.dims[first:] or any(one.kind == "count" for one in walk(node)):
        return None

    def apart(dims: Dims, more: Callable[[int], int]) -> Dims:
        """Put an axis behind each axis to repeat."""
        kept = max(0, len(dims) - (rank - first))
        return (*dims[:kept], *(one for size in dims[kept:] for one in (size, more(size))))

    def changed(dims: Dims) -> Dims:
        return apart(dims, lambda size: 1 if size == 1 else times)

    def leaf(one: Node) -> Node:
        dims = changed(one.dims)
        if times not in dims:
            return reshaped(one, dims)
        base = one.text if one.strides else "{0}.contiguous()"
        text = f"{base}[..., {', '.join([':, None'] * (rank - first))}].expand({_listed(dims)})"
        strides = apart(one.strides or contiguous(one.dims), lambda _: 0)
        operands = one.operands if one.strides else (one,)
        return Node("opaque", dims, text=text, operands=operands, dtype=one.dtype, strides=strides, pace=one.pace)

    found = rewritten(node, leaf, changed)
    if not found.fusable:  # so that operators behind the view below can move before it
        found = Node("pointwise", found.dims, operands=(found,), expression="a", dtype=node.dtype)
    return reshaped(found, (*node.dims[:first], *(size * times for size in node.dims[first:])))


def reshaped(node: Node, dims: Dims) -> Node:
    """Return the tensor with another shape; unchanged if it has that shape."""
    if dims == node.dims:
        return node
    return Node("opaque", dims, text=f"{{0}}.reshape({_listed(dims) or '()'})", operands=(node,), dtype=node.dtype)


def rewritten(node: Node, leaf: Callable[[Node], Node], changed: Callable[[Dims], Dims]) -> Node:
    """Return a tensor with its pointwise operators rewritten.

    Args:
        node: The tensor.
        leaf: Replacement of the operators' leaves.
        changed: Replacement of shapes.
    """
    known: dict[int, Node] = {}
    for one in walk(node):
        if one.kind == "pointwise":
            operands = tuple(known[id(each)] for each in one.operands)
            known[id(one)] = replace(one, dims=changed(one.dims), operands=operands)
        else:
            known[id(one)] = leaf(one)
    return known[id(node)]


def merged(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the graph with equal operators merged; a graph with loops is unchanged."""
    order = walk(*roots)
    if any(one.kind == "loop" for one in order):
        return roots
    known: dict[int, Node] = {}
    first: dict[object, Node] = {}
    for one in order:
        new = with_operands(one, known)
        if one.fusable or (one.kind == "opaque" and _LAYOUT.match(one.text)):
            facts = (one.kind, one.dims, one.text, one.expression, one.how, one.trailing, one.keepdim, one.dtype)
            places = (one.strides, one.pace, one.weights, one.wraps)
            new = first.setdefault((facts, places, tuple(map(id, new.operands))), new)
        known[id(one)] = new
    return tuple(known[id(root)] for root in roots)


def _padded(dims: Dims, count: int) -> Dims:
    return (1,) * (count - len(dims)) + dims


def _listed(sizes: Dims) -> str:
    return ", ".join(map(host_text, sizes))
