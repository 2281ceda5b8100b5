"""Pieces of a tensor along an axis, and tensors joined from pieces.

Kernels read pieces in place. An operator on a joined tensor is applied to its pieces, in the kernels that compute
them; PyTorch joins them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import shapes
from cudal1_data.kernelgen.frontend.layout import recounted, rewritten
from cudal1_data.kernelgen.frontend.values import Value, opaque, pointwise
from cudal1_data.kernelgen.ir import FLOATS, PLACES, Dims, Node, contiguous, joined_pieces, walk, with_operands
from cudal1_data.kernelgen.sizes import host_text

_EXPANDED = re.compile(r"\{0\}\.expand\(")

_IN_PLACE = "{0}.contiguous()["
_WINDOW = 9
"""Maximum number of elements of a window that a kernel reads one by one."""


@dataclass(frozen=True)
class _Piece:
    """Elements `start`, `start + step`, ... of an axis, `length` in all."""

    axis: int
    """The axis, counted from the last, which is -1."""
    start: int
    step: int
    length: int
    whole: bool = False
    """Whether it has all such elements up to the end."""

    def dims(self, dims: Dims) -> Dims:
        """Return the shape of the piece of a tensor; an axis of size 1 is kept."""
        place = len(dims) + self.axis
        if place < 0 or dims[place] == 1:
            return dims
        return (*dims[:place], self.length, *dims[place + 1 :])

    def index(self) -> str:
        """Return the index in Python."""
        if self.whole:
            return f"..., {host_text(self.start)}::{host_text(self.step)}" + ", :" * (-1 - self.axis)
        stop = self.start + (self.length - 1) * self.step + 1 if self.step > 1 else self.start + self.length
        first = host_text(self.start) if self.start else ""
        text = f"{first}:{host_text(stop)}" + (f":{host_text(self.step)}" if self.step > 1 else "")
        return "..., " + text + ", :" * (-1 - self.axis)


def expanded(index: tuple[Value, ...], rank: int) -> tuple[Value, ...]:
    """Return an index with its `...` replaced by whole axes."""
    place = next(place for place, one in enumerate(index) if getattr(one, "dtype", "") == "ellipsis")
    count = rank - sum(one is not None for one in index) + 1
    return (*index[:place], *[slice(None)] * count, *index[place + 1 :])


def sliced(value: Node, index: tuple[Value, ...]) -> Node | None:
    """Return the piece that an index takes; None if it is not a piece of one axis."""
    taken = [place for place, one in enumerate(index) if one != slice(None)]
    if len(taken) != 1 or len(index) != len(value.dims) or not isinstance(one := index[taken[0]], slice):
        return None
    (place,) = taken
    size = value.dims[place]
    start, stop, step = one.indices(size)
    if step < 1 or stop <= start or value.dtype not in FLOATS:
        return None
    given = one.start if isinstance(one.start, int) and one.start >= 0 else start
    if step == 1:
        length = (size if one.stop is None else one.stop if one.stop >= 0 else size + one.stop) - given
        assert length == stop - start
    else:
        length = len(range(start, stop, step))
        whole = size // step
        length = whole if whole == length else length
    return _taken(value, _Piece(place - len(value.dims), given, step, length))


def narrowed(value: Node, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return the piece `value.narrow(dim, start, length)`; None if kernels do not read it in place."""
    given: dict[str, Value] = {**dict(zip(("dim", "start", "length"), args, strict=False)), **named}
    start, length = given.get("start"), given.get("length")
    if not isinstance(start, int) or not isinstance(length, int) or start < 0:
        return None
    place = shapes.axis(value, given.get("dim"))
    index: list[Value] = [slice(None)] * len(value.dims)
    index[place] = slice(start or None, start + length if start else length)
    return sliced(value, tuple(index))


def chunks(name: str, value: Node, args: Sequence[Value], named: Mapping[str, Value], *, in_place: bool) -> Value:
    """Return the equal parts of `value.chunk(count, dim)` or `value.split(size, dim)`.

    Args:
        name: The method's name.
        value: The tensor.
        args: Arguments by position after it.
        named: Arguments by name.
        in_place: Whether kernels may read the parts in place.

    Raises:
        UnsuitableError: The parts differ in size.
    """
    given: dict[str, Value] = {**dict(zip(("number", "dim"), args, strict=False)), **named}
    number = given.get("number", given.get("chunks" if name == "chunk" else "split_size"))
    (asked, *others), place = shapes.ints(number), shapes.axis(value, given.get("dim", 0))
    size = value.dims[place]
    if asked < 1 or size % asked or any(one != asked for one in others):
        raise UnsuitableError(f"{name} takes {size} elements apart by {number!r}; templates read equal parts")
    count, length = (asked, size // asked) if name == "chunk" else (size // asked, asked)
    if in_place and value.dtype in FLOATS:
        found = [_Piece(place - len(value.dims), part * length, 1, length) for part in range(int(count))]
        return tuple(_taken(value, piece) for piece in found)
    dims = (*value.dims[:place], length, *value.dims[place + 1 :])
    text = f"{{0}}.chunk({int(count)}, dim={place})"
    return tuple(opaque(f"{text}[{part}]", dims, value, dtype=value.dtype) for part in range(int(count)))


def pooled(x: Node, dims: Dims, window: Sequence[int], stride: Sequence[int], *, average: bool) -> Node | None:
    """Return averages or maxima of windows without padding, from a piece per window element.

    Args:
        x: A batch of maps.
        dims: The shape of the result.
        window: The window's size along each of the last axes.
        stride: Distance of windows along these axes.
        average: Whether elements are averaged; otherwise their maximum is taken.

    Returns:
        The node; None if windows are large, or overlap over a computed tensor.
    """
    overlap = any(one < size for one, size in zip(stride, window, strict=True))
    if math.prod(window) > _WINDOW or x.dtype not in FLOATS or (overlap and x.kind == "pointwise"):
        return None
    if average and x.dtype != "float32":  # added in float32, and rounded once
        wide = pooled(pointwise("a", x, dtype="float32"), dims, window, stride, average=True)
        return None if wide is None else pointwise("a", wide, dtype=x.dtype)
    first, rank = len(dims) - len(window), len(window)
    lengths = dims[first:]
    total: Node | None = None
    for places in itertools.product(*map(range, window)):
        part = x
        for axis, (start, step) in enumerate(zip(places, stride, strict=True)):
            size, length = x.dims[first + axis], lengths[axis]
            fits = step > 1 and len(range(start, int(size), step)) == int(length)
            part = _taken(part, _Piece(axis - rank, start, step, length, fits))
        total = part if total is None else pointwise("a + b" if average else "max(a, b)", total, part)
    assert total is not None
    return pointwise("a * b", total, 1.0 / math.prod(window)) if average else total


def _taken(value: Node, piece: _Piece) -> Node:
    """Return a piece of a tensor; operators between it and its leaves are rewritten."""

    def leaf(one: Node) -> Node:
        dims = piece.dims(one.dims)
        if dims == one.dims:
            return _apart(one) if one.kind == "reduce" else one
        if one.kind == "count":
            places = recounted(one, dims)
            scaled = pointwise("a * b", places, piece.step) if piece.step > 1 else places
            return pointwise("a + b", scaled, piece.start) if piece.start else scaled
        if (part := _part(one, piece)) is not None:
            return part
        if one.strides and one.text.startswith(_IN_PLACE):  # a piece of a piece
            strides = list(one.strides)
            strides[piece.axis] *= piece.step
            return replace(one, dims=dims, text=f"{one.text}[{piece.index()}]", strides=tuple(strides))
        strides = list(contiguous(one.dims))
        strides[piece.axis] *= piece.step
        text = f"{_IN_PLACE}{piece.index()}]"
        return Node("opaque", dims, text=text, operands=(one,), dtype=one.dtype, strides=tuple(strides))

    return rewritten(value, leaf, piece.dims)


def _part(node: Node, piece: _Piece) -> Node | None:
    """Return the tensor that equals a piece of joined tensors, if any."""
    joined = joined_pieces(node)
    for one in joined or ():
        if (one.axis, one.start, one.step, one.node.dims) == (
            piece.axis,
            piece.start,
            piece.step,
            piece.dims(node.dims),
        ):
            return one.node
    return None


def _apart(node: Node) -> Node:
    """Return a reduction of rows joined from two parts as separate reductions of the parts."""
    if node.trailing != 1 or not node.keepdim or node.how in PLACES:
        return node
    rows = node.operands[0]
    found = [one for one in walk(rows) if one.kind == "opaque" and len(joined_pieces(one) or ()) == 2]
    parts = joined_pieces(found[0]) if len(found) == 1 else None
    if parts is None or any(one.axis != -1 or one.step != 1 for one in parts) or parts[1].node.dims[-1] != 1:
        return node
    first, second = (_taken(rows, _Piece(-1, one.start, 1, one.node.dims[-1])) for one in parts)
    whole = replace(node, operands=(first,))
    join = {"sum": "a + b", "max": "max(a, b)", "min": "min(a, b)"}[node.how]
    return pointwise(join, whole, _unexpanded(second), dtype=node.dtype)


def _unexpanded(node: Node) -> Node:
    """Return a value per row without `expand`: kernels repeat values themselves."""

    def leaf(one: Node) -> Node:
        return one.operands[0] if one.kind == "opaque" and _EXPANDED.match(one.text) else one

    return rewritten(node, leaf, lambda dims: dims)


def sunk(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the graph with operators on joined tensors applied to their pieces."""
    order = walk(*roots)
    uses = Counter(id(one) for one in (*roots, *(operand for node in order for operand in node.operands)))
    known: dict[int, Node] = {}
    for one in order:
        new = with_operands(one, known)
        alone = one.kind == "pointwise" and len(one.operands) == 1 and uses[id(one.operands[0])] == 1
        if alone and _is_made(joined := new.operands[0]):
            parts = tuple(_below(one, part) for part in joined.operands)
            new = replace(joined, operands=parts, dtype=one.dtype)
        known[id(one)] = new
    return tuple(known[id(root)] for root in roots)


def _below(operator: Node, part: Node) -> Node:
    """Apply an operator to a piece, which may itself be joined."""
    if _is_made(part):
        return replace(part, operands=tuple(_below(operator, one) for one in part.operands), dtype=operator.dtype)
    return replace(operator, dims=part.dims, operands=(part,))


def _is_made(node: Node) -> bool:
    """Return whether kernels compute at least one piece of a joined tensor."""
    pieces = joined_pieces(node)
    return pieces is not None and any(one.node.kind == "pointwise" for one in pieces)
