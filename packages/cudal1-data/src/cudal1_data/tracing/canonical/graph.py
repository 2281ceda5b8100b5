"""An operator graph without names, and its fingerprint.

Two graphs have the same fingerprint when one becomes the other by renaming its nodes. (Colour refinement decides it:
graphs that refinement cannot tell apart are taken for equal, which for directed graphs with labelled edges as
small as these needs a construction on purpose.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Edge = tuple[int | None, str]
"""What a node takes: the node that made it (None for a number) and how it is taken (how it spreads, the number)."""


@dataclass(frozen=True)
class Node:
    """One operator."""

    op: str
    """What it does."""
    attributes: tuple[str, ...] = ()
    """What of its settings is part of the mathematics."""
    edges: tuple[Edge, ...] = ()
    """What it takes."""
    ordered: bool = True
    """Whether the order of `edges` means anything."""
    identity: tuple[object, ...] = ()
    """What tells it from other nodes of one graph and is left out of the fingerprint: sizes, values of numbers."""

    @property
    def sources(self) -> tuple[int, ...]:
        """The nodes that it takes from."""
        return tuple(source for source, _ in self.edges if source is not None)


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which sources come first, and what is returned."""

    nodes: tuple[Node, ...]
    outputs: tuple[Edge, ...]

    def alive(self) -> set[int]:
        """Return the nodes that an output needs."""
        found: set[int] = set()
        todo = [source for source, _ in self.outputs if source is not None]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo.extend(self.nodes[node].sources)
        return found

    def uses(self) -> dict[int, int]:
        """Return how often the outputs and what they need take from each node."""
        counts = dict.fromkeys(self.alive(), 0)
        for node in list(counts):
            for source in self.nodes[node].sources:
                counts[source] += 1
        for source, _ in self.outputs:
            if source is not None:
                counts[source] += 1
        return counts

    def operators(self) -> list[str]:
        """Return the operators that the outputs need with their attributes, in order, without inputs and state."""
        chosen = (self.nodes[node] for node in sorted(self.alive()) if self.nodes[node].edges)
        return [" ".join(filter(None, (node.op, *node.attributes))) for node in chosen]


def fingerprint(graph: Graph) -> str:
    """Return 32 hexadecimal digits that graphs share when they differ only in names and order of nodes.

    >>> x, y = Node("input", identity=(0,)), Node("input", identity=(1,))
    >>> square = Graph((x, Node("mul", (), ((0, ""), (0, "")), ordered=False)), ((1, ""),))
    >>> product = Graph((x, y, Node("mul", (), ((0, ""), (1, "")), ordered=False)), ((2, ""),))
    >>> swapped = Graph((x, y, Node("mul", (), ((1, ""), (0, "")), ordered=False)), ((2, ""),))
    >>> fingerprint(square) == fingerprint(product), fingerprint(product) == fingerprint(swapped)
    (False, True)
    """
    alive = sorted(graph.alive())
    colours = dict.fromkeys(alive, "")
    for _ in range(3):
        colours = _downwards(graph, alive, _upwards(graph, alive, colours))
    ends = [colours[source] + label if source is not None else label for source, label in graph.outputs]
    return _hash([*sorted(colours.values()), "|", *ends])


def _upwards(graph: Graph, alive: Sequence[int], colours: dict[int, str]) -> dict[int, str]:
    """Colour each node by its own colour and by what it is made of."""
    found: dict[int, str] = {}
    for place in alive:
        node = graph.nodes[place]
        parts = [(found[source] if source is not None else "") + ":" + label for source, label in node.edges]
        parts = parts if node.ordered else sorted(parts)
        found[place] = _hash([colours[place], node.op, *node.attributes, "(", *parts])
    return found


def _downwards(graph: Graph, alive: Sequence[int], colours: dict[int, str]) -> dict[int, str]:
    """Colour each node by its own colour and by what is made of it."""
    taken: dict[int, list[str]] = {place: [] for place in alive}
    for position, (source, label) in enumerate(graph.outputs):
        if source is not None:
            taken[source].append(f"output {position}:{label}")
    found: dict[int, str] = {}
    for place in reversed(alive):
        found[place] = _hash([colours[place], *sorted(taken[place])])
        node = graph.nodes[place]
        for position, (source, label) in enumerate(node.edges):
            if source is not None:
                taken[source].append(f"{found[place]}:{position if node.ordered else '-'}:{label}")
    return found


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]
