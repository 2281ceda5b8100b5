"""Merging of nested sums and products, with their numbers folded."""

from __future__ import annotations

from collections import Counter

from cudal1_data.tracing.canonical.graph import Edge, Graph, Node, fingerprint

_MAX_PASSES = 4
"""Maximum number of passes: each can make operands equal that the next one joins."""
LINEAR = ("mm", "bmm", "permute", "reshape", "repeat", "sum")
"""Operators through which a factor moves from operand to result."""

Spread = tuple[int, str]
"""A node, and the broadcast pattern of its value."""


def joined(graph: Graph) -> Graph:
    """Return the graph with chains joined, in passes until nothing changes or `_MAX_PASSES` is reached.

    `a + b + c` is one sum for any brackets. Its numbers are folded into one, or none if they sum to 0. Equal factors
    become a power. Nested powers become one power if that is the same function.
    """
    before = ""
    for _ in range(_MAX_PASSES):
        graph = _once(graph)
        after = fingerprint(graph)
        if after == before:
            break
        before = after
    return graph


def _once(graph: Graph) -> Graph:
    uses = graph.uses()
    made = _Rewriter(graph, uses)
    for place in sorted(uses):
        made.take(place)
    return Graph(tuple(made.nodes), tuple(made.edge(edge) for edge in graph.outputs))


class _Rewriter:
    """Copier of a graph, node by node in order, that joins chains."""

    def __init__(self, graph: Graph, uses: dict[int, int]) -> None:
        self.graph = graph
        self.uses = uses
        self.nodes: list[Node] = []
        self.places: dict[Node, int] = {}
        self.moved: dict[int, Edge] = {}
        self.chains: dict[int, tuple[Node, list[Spread], float | None]] = {}
        """Node, operands and number of a sum or product, by new place."""
        self.single: set[int] = set()
        """New places of nodes that are used once."""

    def edge(self, edge: Edge) -> Edge:
        source, how = edge
        if source is None:
            return edge
        place, inner = self.moved[source]
        return place, inner or how

    def take(self, place: int) -> None:
        node = self.graph.nodes[place]
        if node.op in ("add", "mul"):
            self.moved[place] = self.chain(node)
        elif node.op == "pow":
            self.moved[place] = self.power(node)
        elif node.op in LINEAR:
            self.moved[place] = self.linear(node)
        else:
            edges = tuple(self.edge(edge) for edge in node.edges)
            new = Node(node.op, node.attributes, edges, node.ordered, node.identity)
            self.moved[place] = (self.add(new), "")
        new_place = self.moved[place][0]
        if self.uses[place] == 1 and new_place is not None:
            self.single.add(new_place)

    def add(self, node: Node) -> int:
        if node not in self.places:
            self.places[node] = len(self.nodes)
            self.nodes.append(node)
        else:
            self.single.discard(self.places[node])
        return self.places[node]

    def chain(self, node: Node) -> Edge:
        """Return a sum or product, merged with nested ones that have no other user."""
        neutral = 0.0 if node.op == "add" else 1.0
        number: float | None = neutral
        values = iter(node.identity)
        operands: list[Spread] = []
        for source, how in (self.edge(edge) for edge in node.edges):
            if source is None:
                value = next(values)
                number = _with(node.op, number, value if isinstance(value, float) else None)
                continue
            inner = self.chains.get(source)
            if inner is not None and inner[0].op == node.op and not how and source in self.single:
                operands += inner[1]
                number = _with(node.op, number, inner[2])
            else:
                operands.append((source, how))
        if node.op == "mul":
            operands = self.powers(operands)
        if number == neutral and len(operands) == 1 and not operands[0][1]:
            return operands[0]
        return self.finished(node.op, operands, number, neutral), ""

    def finished(self, op: str, operands: list[Spread], number: float | None, neutral: float) -> int:
        """Add a sum or product."""
        edges: list[Edge] = sorted(operands)
        identity: tuple[object, ...] = ()
        if number != neutral:
            edges.append((None, "-1" if op == "mul" and number == -1.0 else "c"))
            identity = (number,)
        new = Node(op, (), tuple(edges), ordered=False, identity=identity)
        place = self.add(new)
        self.chains[place] = (new, sorted(operands), number)
        return place

    def linear(self, node: Node) -> Edge:
        """Return a linear operator, with its operands' factors moved to its result."""
        factor: float | None = 1.0
        edges: list[Edge] = []
        for source, how in (self.edge(edge) for edge in node.edges):
            inner = self.chains.get(source) if source is not None else None
            if inner is None or inner[0].op != "mul" or inner[2] == 1.0 or (len(inner[1]) == 1 and inner[1][0][1]):
                edges.append((source, how))
                continue
            factor = _with("mul", factor, inner[2])
            lone = len(inner[1]) == 1
            edges.append((inner[1][0][0] if lone else self.finished("mul", inner[1], 1.0, 1.0), how))
        made = self.add(Node(node.op, node.attributes, tuple(edges), node.ordered, node.identity))
        if factor == 1.0:
            return made, ""
        self.single.add(made)
        return self.finished("mul", [(made, "")], factor, 1.0), ""

    def powers(self, operands: list[Spread]) -> list[Spread]:
        """Return factors with positive integer powers of the same base merged."""
        exponents: Counter[Spread] = Counter()
        for source, how in operands:
            node = self.nodes[source]
            base = node.edges[0][0] if node.op == "pow" and not node.edges[0][1] else None
            exponent = float(node.attributes[0]) if base is not None else 1.0
            if base is not None and exponent > 0 and exponent % 1 == 0:
                exponents[base, how] += int(exponent)
            else:
                exponents[source, how] += 1
        return [
            (source if count == 1 else self.add(Node("pow", (f"{count:g}",), ((source, ""),))), how)
            for (source, how), count in exponents.items()
        ]

    def power(self, node: Node) -> Edge:
        """Return a power; a power of a power is merged if that is the same function."""
        ((source, how),) = [self.edge(edge) for edge in node.edges]
        exponent = float(node.attributes[0])
        inner = self.nodes[source] if source is not None else None
        if inner is not None and inner.op == "pow" and not how:
            first = float(inner.attributes[0])
            if first % 2 != 0 or exponent % 1 == 0:  # the root of a square is the absolute value
                exponent *= first
                ((source, how),) = inner.edges
        if exponent == 1.0 and not how:
            return source, how
        return self.add(Node("pow", (f"{exponent:g}",), ((source, how),))), ""


def _with(op: str, number: float | None, other: float | None) -> float | None:
    """Fold a number into another; None (depends on sizes) stays None."""
    if number is None or other is None:
        return None
    result = number + other if op == "add" else number * other
    for plain in (0.0, 1.0, -1.0):
        if abs(result - plain) < 1e-9:
            return plain
    return result
