"""Operators moved past views, so that a view does not separate kernels.

A group norm computes in a shape of its own; casts before it and operators behind it have the tensor's shape. A kernel
has one shape, so they are rewritten to the norm's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from cudal1_data.kernelgen.frontend.layout import recounted, reshaped
from cudal1_data.kernelgen.ir import Dims, Node, walk, with_operands

_VIEW = re.compile(r"\{0\}\.(?:reshape|view|flatten|unflatten|squeeze|unsqueeze)\(|torch\.(?:flatten|reshape)\(\{0\}")


def without_views_between(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the graph with pointwise operators moved past views; a graph with loops is unchanged.

    Operators that need only inputs and parameters move behind the view that follows them. Operators behind a view of a
    computed tensor move before it.
    """
    order = walk(*roots)
    if any(one.kind == "loop" for one in order):
        return roots
    uses = Counter(id(one) for one in (*roots, *(operand for node in order for operand in node.operands)))
    # Tensors that a call into PyTorch reads, which are written anyway.
    calls = [one for one in order if one.kind == "opaque" and not one.strides and not _is_view(one)]
    read = {id(operand) for one in calls for operand in one.operands}
    known: dict[int, Node] = {}
    written: set[int] = set()
    for one in order:
        new = with_operands(one, known)
        if _is_view(new):
            source = new.operands[0]
            if _is_view(source):
                new = reshaped(source.operands[0], new.dims)
            elif source.kind == "pointwise" and uses[id(one.operands[0])] == 1 and _needs_only_leaves(source):
                new = _carried(source, source.dims, new.dims) or new
        elif new.kind == "pointwise":
            new = _before_view(new, written)
        known[id(one)] = new
        if id(one) in read:
            written.add(id(new))
    changed = tuple(known[id(root)] for root in roots)
    # Kernels write no booleans.
    unsuitable = any(_is_view(one) and one.operands[0].fusable and one.dtype == "bool" for one in walk(*changed))
    return roots if unsuitable else changed


def _before_view(node: Node, written: Collection[int]) -> Node:
    """Return an operator behind a view of a tensor that kernels compute as a view of the operator on that tensor.

    Args:
        node: The operator.
        written: `id`s of tensors that are written anyway; a view of them is read.
    """
    for view in node.operands:
        if _is_view(view) and view.dims == node.dims and view.operands[0].fusable:
            source = view.operands[0]
            operands = [_on(one, node.dims, source.dims, written) for one in node.operands]
            if all(operands):
                moved = replace(node, dims=source.dims, operands=tuple(one for one in operands if one))
                return reshaped(moved, node.dims)
    return node


def _on(node: Node, old: Dims, new: Dims, written: Collection[int]) -> Node | None:
    """Return an operand in the other shape; None if that would separate it from the kernel that computes it."""
    if _is_view(node) and node.dims == old and node.operands[0].dims == new:
        return node.operands[0]
    if id(node) in written and node.dims == old:
        return reshaped(node, new)
    return _carried(node, old, new) if _needs_only_leaves(node) else None


def _needs_only_leaves(node: Node) -> bool:
    """Return whether a tensor is a leaf, or views of leaves and pointwise operators on them."""
    return node.leaf or ((node.kind == "pointwise" or _is_view(node)) and all(map(_needs_only_leaves, node.operands)))


def _carried(node: Node, old: Dims, new: Dims) -> Node | None:
    """Return a tensor that broadcasts to a shape as one that broadcasts to another view of that shape.

    Args:
        node: The tensor; pointwise operators between it and its leaves are rewritten.
        old: The shape.
        new: The other shape, with the elements in the same order.

    Returns:
        The tensor; None if it repeats a part of an axis.
    """
    dims = carried_dims(node.dims, old, new)
    if dims is None:
        return None
    if node.kind == "pointwise":
        operands = [_carried(one, old, new) for one in node.operands]
        return replace(node, dims=dims, operands=tuple(one for one in operands if one)) if all(operands) else None
    if node.kind == "count":
        return recounted(node, dims) if sum(size != 1 for size in dims) == 1 else None
    if _is_view(node) and not node.operands[0].strides:
        return reshaped(node.operands[0], dims)
    return reshaped(node, dims)


def carried_dims(dims: Dims, old: Dims, new: Dims) -> Dims | None:
    """Return the shape in `new` of a tensor that broadcasts to `old`; None if there is none.

    >>> carried_dims((6, 1), (2, 6, 5), (2, 3, 2, 5)), carried_dims((3, 2, 1), (2, 3, 2, 5), (2, 6, 5))
    ((3, 2, 1), (6, 1))
    >>> carried_dims((3, 1, 1), (2, 3, 2, 5), (2, 6, 5)) is None
    True
    """
    groups = _groups(old, new)
    if groups is None:
        return None
    padded = (1,) * (len(old) - len(dims)) + dims
    found = [1] * len(new)
    for befores, afters in groups:
        whole = {padded[axis] != 1 for axis in befores}
        if len(whole) > 1:
            return None
        for axis in afters if True in whole else ():
            found[axis] = new[axis]
    first = next((axis for axis, size in enumerate(found) if size != 1), len(new))
    return tuple(found[first:])


def _groups(old: Dims, new: Dims) -> list[tuple[list[int], list[int]]] | None:
    """Return the smallest groups of axes longer than 1 with the same elements in both shapes; None for other shapes."""
    groups: list[tuple[list[int], list[int]]] = []
    left, right = ([axis for axis, size in enumerate(dims) if size != 1] for dims in (old, new))
    while left and right:
        befores, afters = [left.pop(0)], [right.pop(0)]
        before, after = int(old[befores[0]]), int(new[afters[0]])
        while before != after:
            if before < after and left:
                befores.append(left.pop(0))
                before *= old[befores[-1]]
            elif before > after and right:
                afters.append(right.pop(0))
                after *= new[afters[-1]]
            else:
                return None
        groups.append((befores, afters))
    return None if left or right else groups


def _is_view(node: Node) -> bool:
    return node.kind == "opaque" and not node.strides and len(node.operands) == 1 and bool(_VIEW.match(node.text))
