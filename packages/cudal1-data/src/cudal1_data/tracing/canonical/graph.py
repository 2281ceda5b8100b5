"""An operator graph without names, and its fingerprint.

Two graphs have the same fingerprint if one becomes the other by renaming its nodes. Colour refinement decides this:
graphs that it cannot distinguish count as equal, but directed graphs this small with labelled edges collide only by
deliberate construction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Edge = tuple[int | None, str]
"""A node's input: its source node (None for a number), and its broadcast pattern or number."""


@dataclass(frozen=True)
class Node:
    """One operator."""

    op: str
    """Name of the operation."""
    attributes: tuple[str, ...] = ()
    """Settings that are part of the mathematics."""
    edges: tuple[Edge, ...] = ()
    """Inputs."""
    ordered: bool = True
    """Whether the order of `edges` matters."""
    identity: tuple[object, ...] = ()
    """Sizes and values of numbers: they distinguish nodes of one graph, but are not in the fingerprint."""

    @property
    def sources(self) -> tuple[int, ...]:
        """The source nodes of its inputs."""
        return tuple(source for source, _ in self.edges if source is not None)


@dataclass(frozen=True)
class Graph:
    """Nodes, sources first, and the outputs."""

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
        """Return how often the outputs and the alive nodes use each alive node."""
        counts = dict.fromkeys(self.alive(), 0)
        for node in list(counts):
            for source in self.nodes[node].sources:
                counts[source] += 1
        for source, _ in self.outputs:
            if source is not None:
                counts[source] += 1
        return counts

    def operators(self) -> list[str]:
        """Return the operators that the outputs need, with attributes, in order, without inputs and state."""
        chosen = (self.nodes[node] for node in sorted(self.alive()) if self.nodes[node].edges)
        return [" ".join(filter(None, (node.op, *node.attributes))) for node in chosen]


def fingerprint(graph: Graph) -> str:
    """Return 32 hexadecimal digits, equal for graphs that differ only in names and order of nodes.

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
    """Colour each node by its own colour and those of its inputs."""
    found: dict[int, str] = {}
    for place in alive:
        node = graph.nodes[place]
        parts = [(found[source] if source is not None else "") + ":" + label for source, label in node.edges]
        parts = parts if node.ordered else sorted(parts)
        found[place] = _hash([colours[place], node.op, *node.attributes, "(", *parts])
    return found


def _downwards(graph: Graph, alive: Sequence[int], colours: dict[int, str]) -> dict[int, str]:
    """Colour each node by its own colour and those of its users."""
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
