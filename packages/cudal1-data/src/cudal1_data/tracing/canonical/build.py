"""Building an operator graph node by node: equal nodes are one, numbers stay with who takes them, shapes fall away.

A tensor's sizes leave three traces, none of which is a size:

- how an operand spreads over a result: one letter for each group of dimensions, `k` where the operand has them, `b`
  where it is repeated (a bias of channels in an image: `bkb`);
- which dimensions an operator works along: `d` for these, `k` for others (softmax over rows: `kd`);
- `reshape`, where dimensions are joined or divided.

Adding or removing a dimension of size one is no operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast

from cudal1_data.tracing.canonical.graph import Edge, Graph, Node

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A value in the graph."""

    node: int
    """The node that makes it."""
    shape: Shape
    """Its sizes, 1 where it is repeated to reach `full`."""
    full: Shape
    """The sizes that the program sees."""


@dataclass(frozen=True)
class Number:
    """A value that is one number everywhere."""

    value: float | None
    """The number; None for one that depends on the sizes."""


Value = Tensor | Number


def label(value: float | None) -> str:
    """Return how a number appears in a graph: those that change what an operator is, by name; any other as `c`.

    >>> [label(number) for number in (1.0, 0, -1, float("-inf"), 0.044715, None)]
    ['1', '0', '-1', '-inf', 'c', 'c']
    """
    return f"{value:g}" if value is not None and (value in (0.0, 1.0, -1.0) or math.isinf(value)) else "c"


def along(shape: Shape, dims: Iterable[int]) -> str:
    """Return which dimensions an operator works along.

    >>> along((8, 3, 32, 32), [1]), along((8, 3, 32, 32), [0, -1, -2]), along((4, 4), [-1])
    ('kdk', 'dkd', 'kd')
    """
    chosen = {dim % len(shape) for dim in dims} if shape else set[int]()
    return _groups("d" if dim in chosen else "k" for dim, size in enumerate(shape) if size != 1)


def spread(shape: Shape, over: Shape) -> str:
    """Return how a tensor spreads over a result of the same rank; nothing where it has all of it.

    >>> spread((1, 3, 1, 1), (8, 3, 32, 32)), spread((1, 5), (4, 5)), spread((4, 5), (4, 5))
    ('bkb', 'bk', '')
    """
    pairs = [(mine, all_) for mine, all_ in zip(shape, over, strict=True) if all_ != 1]
    letters = _groups("k" if mine == all_ else "b" for mine, all_ in pairs)
    return "" if letters in ("k", "") else letters


def _groups(letters: Iterable[str]) -> str:
    return "".join(letter for letter, _ in groupby(letters))


def padded(shape: Shape, rank: int) -> Shape:
    """Return a shape with ones before it, up to a rank."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def core(shape: Shape) -> Shape:
    """Return the sizes that are not one."""
    return tuple(size for size in shape if size != 1)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that shapes of one rank spread to."""
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*shapes, strict=True))


@dataclass
class Builder:
    """A graph under construction."""

    nodes: list[Node] = field(default_factory=list[Node])
    places: dict[Node, int] = field(default_factory=dict[Node, int])
    reshaped: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """What each `reshape` was made from."""

    def add(self, node: Node) -> int:
        """Return the place of a node, a new one where there is none like it."""
        if node not in self.places:
            self.places[node] = len(self.nodes)
            self.nodes.append(node)
        return self.places[node]

    def leaf(self, op: str, shape: Shape, *attributes: str) -> Tensor:
        """Return a value that is made from nothing, unlike any other."""
        return Tensor(self.add(Node(op, attributes, identity=(len(self.nodes),))), shape, shape)

    def whole(self, value: Tensor) -> Tensor:
        """Return a tensor all of whose elements are there: what repeats it becomes an operator."""
        if core(value.shape) == core(value.full):
            return Tensor(value.node, value.full, value.full)
        how = spread(padded(value.shape, len(value.full)), value.full)
        node = self.add(Node("repeat", (), ((value.node, how),), identity=(value.full,)))
        return Tensor(node, value.full, value.full)

    def operator(
        self,
        op: str,
        values: Sequence[Value],
        shape: Shape,
        *attributes: str,
        identity: tuple[object, ...] = (),
    ) -> Tensor:
        """Add an operator that takes whole tensors in order."""
        edges: list[Edge] = []
        for value in values:
            edges.append((None, label(value.value)) if isinstance(value, Number) else (self.whole(value).node, ""))
        numbers = tuple(value.value for value in values if isinstance(value, Number))
        node = Node(op, attributes, tuple(edges), identity=(*identity, *numbers))
        return Tensor(self.add(node), shape, shape)

    def pointwise(
        self, op: str, values: Sequence[Value], full: Shape, *attributes: str, ordered: bool = True
    ) -> Tensor:
        """Add an operator that works element by element, before any `reshape` that does not change it."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        before = self._before_reshape(tensors)
        if before is not None:
            moved = iter(before)
            inner = [next(moved) if isinstance(value, Tensor) else value for value in values]
            made = self.pointwise(op, inner, broadcast([one.shape for one in before]), *attributes, ordered=ordered)
            return self.reshape(made, full)
        rank = max(len(one.full) for one in tensors)
        shape = broadcast([padded(one.shape, rank) for one in tensors])
        edges = tuple(
            (None, label(value.value))
            if isinstance(value, Number)
            else (value.node, spread(padded(value.shape, rank), shape))
            for value in values
        )
        numbers = tuple(value.value for value in values if isinstance(value, Number))
        node = self.add(Node(op, attributes, edges, ordered, numbers))
        return Tensor(node, shape, padded(full, rank))

    def _before_reshape(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the operands as they were before they were reshaped, where the operator may as well run there.

        It may where all that were reshaped had one shape and got one shape, and any other operand spreads along the
        last dimension alone, which the reshape left as it was.
        """
        rank = max(len(one.full) for one in tensors)
        sources = [self.reshaped.get(one.node) for one in tensors]
        shapes = {(source.shape, core(one.shape)) for one, source in zip(tensors, sources, strict=True) if source}
        if len(shapes) != 1:
            return None
        ((old, new),) = shapes
        result: list[Tensor] = []
        for one, source in zip(tensors, sources, strict=True):
            if source is not None:
                result.append(source)
                continue
            size = one.shape[-1] if one.shape else 1
            if core(one.shape) != core((size,)) or (size != 1 and not (old[-1] == size == (new or (1,))[-1])):
                return None
            shape = padded((size,), len(old))
            result.append(Tensor(one.node, shape, shape))
        return result if rank else None

    def reshape(self, value: Tensor, full: Shape) -> Tensor:
        """Join or divide dimensions."""
        value = self.whole(value)
        if core(value.shape) == core(full):
            return Tensor(value.node, full, full)
        source = self.reshaped.get(value.node, value)
        if core(source.shape) == core(full):
            return Tensor(source.node, full, full)
        node = self.add(Node("reshape", (), ((source.node, ""),), identity=(core(full),)))
        self.reshaped[node] = source
        return Tensor(node, full, full)

    def permute(self, value: Tensor, order: Sequence[int]) -> Tensor:
        """Put dimensions into another order."""
        moved = tuple(value.shape[dim] for dim in order)
        full = tuple(value.full[dim] for dim in order)
        kept = [dim for dim in order if value.shape[dim] != 1]
        if kept == sorted(kept):
            return Tensor(value.node, moved, full)
        node = self.nodes[value.node]
        if node.op == "state":  # a weight that is kept the other way round
            return Tensor(value.node, moved, full)
        ranks = {dim: rank for rank, dim in enumerate(sorted(kept))}
        places = [ranks[dim] for dim in kept]
        if node.op == "permute":
            inner = cast("tuple[int, ...]", node.identity[0])
            places = [inner[place] for place in places]
            value = Tensor(node.sources[0], moved, full)
            if places == sorted(places):
                return Tensor(value.node, moved, full)
        made = Node("permute", (_turn(places),), ((value.node, ""),), identity=(tuple(places),))
        return Tensor(self.add(made), moved, full)

    def reduce(self, op: str, value: Tensor, dims: Iterable[int], full: Shape, *, keeps: bool = False) -> Tensor:
        """Reduce dimensions to one element; over dimensions of size one that is no operation (unless `keeps`)."""
        value = self.whole(value)
        chosen = {dim % len(value.shape) for dim in dims} if value.shape else set[int]()
        how = along(value.shape, chosen)
        if "d" not in how and not keeps:
            return Tensor(value.node, full, full)
        node = self.add(Node(op, (how,), ((value.node, ""),), identity=(tuple(sorted(chosen)),)))
        return Tensor(node, full, full)

    def graph(self, outputs: Iterable[Value | None]) -> Graph:
        """Return the graph that makes these values; how the last ones are cut into dimensions does not count."""
        ends: list[Edge] = []
        for value in outputs:
            if isinstance(value, Tensor):
                whole = self.whole(value)
                ends.append((self.reshaped.get(whole.node, whole).node, ""))
            else:
                ends.append((None, "none" if value is None else label(value.value)))
        return Graph(tuple(self.nodes), tuple(ends))


def _turn(places: Sequence[int]) -> str:
    """Return an order of dimensions; what stays together counts once, and what stays in front does not count.

    >>> _turn([1, 0]), _turn([0, 1, 3, 2]), _turn([0, 2, 3, 1])
    ('10', '10', '10')
    """
    runs = [run for place, run in enumerate(places) if place == 0 or run != places[place - 1] + 1]
    ranks = {run: rank for rank, run in enumerate(sorted(runs))}
    order = [ranks[run] for run in runs]
    while order and order[0] == 0:
        order = [rank - 1 for rank in order[1:]]
    return "".join(map(str, order))
