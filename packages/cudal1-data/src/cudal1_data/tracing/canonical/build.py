"""Builder of an operator graph: equal nodes are merged, numbers belong to their users, shapes are dropped.

Only three properties of a tensor's shape remain, none of them a size:

- how an operand broadcasts: one letter for each group of dimensions, `k` if the operand has them, `b` if it is
  repeated (a bias of channels in an image: `bkb`);
- which dimensions an operator works along: `d` for these, `k` for others (softmax over rows: `kd`);
- `reshape`, if dimensions are joined or split.

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
    """Its node."""
    shape: Shape
    """Its sizes, 1 in dimensions that are repeated to reach `full`."""
    full: Shape
    """Its shape in the program."""


@dataclass(frozen=True)
class Number:
    """A value that is one number everywhere."""

    value: float | None
    """The number; None for one that depends on the sizes."""


Value = Tensor | Number


def label(value: float | None) -> str:
    """Return a number's label in a graph: its value if it changes what an operator is, else `c`.

    >>> [label(number) for number in (1.0, 0, -1, float("-inf"), 0.044715, None)]
    ['1', '0', '-1', '-inf', 'c', 'c']
    """
    return f"{value:g}" if value is not None and (value in (0.0, 1.0, -1.0) or math.isinf(value)) else "c"


def along(shape: Shape, dims: Iterable[int]) -> str:
    """Return the pattern of the dimensions that an operator works along.

    >>> along((8, 3, 32, 32), [1]), along((8, 3, 32, 32), [0, -1, -2]), along((4, 4), [-1])
    ('kdk', 'dkd', 'kd')
    """
    chosen = {dim % len(shape) for dim in dims} if shape else set[int]()
    return _groups("d" if dim in chosen else "k" for dim, size in enumerate(shape) if size != 1)


def spread(shape: Shape, over: Shape) -> str:
    """Return the broadcast pattern of a tensor over a result of the same rank; empty if nothing is repeated.

    >>> spread((1, 3, 1, 1), (8, 3, 32, 32)), spread((1, 5), (4, 5)), spread((4, 5), (4, 5))
    ('bkb', 'bk', '')
    """
    pairs = [(mine, all_) for mine, all_ in zip(shape, over, strict=True) if all_ != 1]
    letters = _groups("k" if mine == all_ else "b" for mine, all_ in pairs)
    return "" if letters in ("k", "") else letters


def _groups(letters: Iterable[str]) -> str:
    return "".join(letter for letter, _ in groupby(letters))


def padded(shape: Shape, rank: int) -> Shape:
    """Return a shape padded in front with ones to a rank."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def core(shape: Shape) -> Shape:
    """Return the sizes other than one."""
    return tuple(size for size in shape if size != 1)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast of shapes of the same rank."""
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*shapes, strict=True))


@dataclass
class Builder:
    """A graph under construction."""

    nodes: list[Node] = field(default_factory=list[Node])
    places: dict[Node, int] = field(default_factory=dict[Node, int])
    reshaped: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The source tensor of each `reshape` node."""

    def add(self, node: Node) -> int:
        """Return the place of a node; add the node if there is none like it."""
        if node not in self.places:
            self.places[node] = len(self.nodes)
            self.nodes.append(node)
        return self.places[node]

    def leaf(self, op: str, shape: Shape, *attributes: str) -> Tensor:
        """Return a new value without inputs, distinct from all others."""
        return Tensor(self.add(Node(op, attributes, identity=(len(self.nodes),))), shape, shape)

    def whole(self, value: Tensor) -> Tensor:
        """Return a tensor with all elements: its repetition becomes an operator."""
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
        """Add an operator on whole tensors in order."""
        edges: list[Edge] = []
        for value in values:
            edges.append((None, label(value.value)) if isinstance(value, Number) else (self.whole(value).node, ""))
        numbers = tuple(value.value for value in values if isinstance(value, Number))
        node = Node(op, attributes, tuple(edges), identity=(*identity, *numbers))
        return Tensor(self.add(node), shape, shape)

    def pointwise(
        self, op: str, values: Sequence[Value], full: Shape, *attributes: str, ordered: bool = True
    ) -> Tensor:
        """Add an elementwise operator, moved before a `reshape` of its operands if possible."""
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
        """Return the operands before their reshape, if the operator can run there; else None.

        It can if all reshaped operands share their old and new shape, and other operands vary only along the last
        dimension, which the reshape keeps.
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
        """Join or split dimensions."""
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
        """Reorder dimensions."""
        moved = tuple(value.shape[dim] for dim in order)
        full = tuple(value.full[dim] for dim in order)
        kept = [dim for dim in order if value.shape[dim] != 1]
        if kept == sorted(kept):
            return Tensor(value.node, moved, full)
        node = self.nodes[value.node]
        if node.op == "state":  # a weight stored transposed
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
        """Reduce dimensions; over dimensions of size one this is no operation (unless `keeps`)."""
        value = self.whole(value)
        chosen = {dim % len(value.shape) for dim in dims} if value.shape else set[int]()
        how = along(value.shape, chosen)
        if "d" not in how and not keeps:
            return Tensor(value.node, full, full)
        node = self.add(Node(op, (how,), ((value.node, ""),), identity=(tuple(sorted(chosen)),)))
        return Tensor(node, full, full)

    def graph(self, outputs: Iterable[Value | None]) -> Graph:
        """Return the graph of these outputs; a last `reshape` does not count."""
        ends: list[Edge] = []
        for value in outputs:
            if isinstance(value, Tensor):
                whole = self.whole(value)
                ends.append((self.reshaped.get(whole.node, whole).node, ""))
            else:
                ends.append((None, "none" if value is None else label(value.value)))
        return Graph(tuple(self.nodes), tuple(ends))


def _turn(places: Sequence[int]) -> str:
    """Return an order of dimensions; adjacent ones count once, and unmoved leading ones do not count.

    >>> _turn([1, 0]), _turn([0, 1, 3, 2]), _turn([0, 2, 3, 1])
    ('10', '10', '10')
    """
    runs = [run for place, run in enumerate(places) if place == 0 or run != places[place - 1] + 1]
    ranks = {run: rank for rank, run in enumerate(sorted(runs))}
    order = [ranks[run] for run in runs]
    while order and order[0] == 0:
        order = [rank - 1 for rank in order[1:]]
    return "".join(map(str, order))
