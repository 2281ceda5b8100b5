"""The structure of a task: its operators and their connections, without shapes, numbers, dtypes and layouts.

Splits depend on `key`, which is coarser than the text of a structure: two tasks have the same key if they differ only
in an axis, in parameters versus inputs, or in the places of inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from cudal1_data.task import Split

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "logaddexp"})
"""Operators whose operands may be swapped."""

LEAVES = ("x", "w", "i", "mask")
"""Kinds of leaves: input, parameter, integer input, boolean input."""

_SHARES: tuple[tuple[Split, int], ...] = (("train", 80), ("validation", 10), ("test", 10))
"""Splits with their percentages of all structures."""


@dataclass(frozen=True, eq=False)
class Node:
    """An operator with its operands, or a leaf. Nodes compare by identity: a value used twice is one node."""

    operator: str
    """Name of the operator, or the kind of leaf."""
    operands: tuple[Node, ...] = ()
    """Operands."""
    detail: str = ""
    """Addition to the name in the text (an axis, a kernel size); not in the key."""
    heavy: bool = False
    """Whether it needs a separate pass over memory: a reduction, product, scan, window or indirect access."""
    live: bool = field(init=False)
    """Whether it depends on a floating-point input."""
    key: str = field(init=False)
    """Digest of the operators from here down, without details or distinction of leaves."""

    def __post_init__(self) -> None:
        """Compute the key, and whether the node is live, from the operands."""
        object.__setattr__(self, "live", self.operator == "x" or any(one.live for one in self.operands))
        name = "leaf" if self.operator in LEAVES else self.operator
        below = [one.key for one in self.operands]
        if self.operator in COMMUTATIVE:
            below.sort()
        text = f"{name}({','.join(below)})"
        object.__setattr__(self, "key", hashlib.sha256(text.encode()).hexdigest()[:32])


def text_of(*roots: Node) -> str:
    """Return outputs in canonical form: operands in order, leaves numbered, repeated parts by number.

    >>> x, y = Node("x"), Node("x")
    >>> text_of(Node("relu", (Node("add", (Node("mul", (x, y)), x)),)))
    'relu(add(x0,mul(x0,x1)))'
    """
    names: dict[int, str] = {}
    counts: dict[str, int] = {}

    def write(node: Node) -> str:
        if id(node) in names:
            return names[id(node)]
        kind = node.operator if node.operator in LEAVES else "#"
        number = counts.get(kind, 0)
        counts[kind] = number + 1
        names[id(node)] = f"{kind}{number}"
        if node.operator in LEAVES:
            return names[id(node)]
        operands = sorted(node.operands, key=_order) if node.operator in COMMUTATIVE else node.operands
        detail = f"[{node.detail}]" if node.detail else ""
        return f"{node.operator}{detail}({','.join(map(write, operands))})"

    return "; ".join(map(write, roots))


def _order(node: Node) -> tuple[bool, str]:
    return node.operator not in LEAVES, node.key


def nodes(*roots: Node) -> list[Node]:
    """Return every operator once, without leaves."""
    seen: dict[int, Node] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if id(node) not in seen and node.operator not in LEAVES:
            seen[id(node)] = node
            waiting.extend(node.operands)
    return list(seen.values())


def marked_key(roots: Sequence[Node], marked: Node) -> str:
    """Return the digest of a structure with one leaf marked; it is equal for equivalent leaves."""
    known: dict[int, str] = {}

    def key(node: Node) -> str:
        if id(node) not in known:
            name = "marked" if node is marked else "leaf" if node.operator in LEAVES else node.operator
            below = [key(one) for one in node.operands]
            if node.operator in COMMUTATIVE:
                below.sort()
            known[id(node)] = hashlib.sha256(f"{name}({','.join(below)})".encode()).hexdigest()
        return known[id(node)]

    return "/".join(map(key, roots))


def split_of(*roots: Node) -> Split:
    """Return the split of a structure, from a hash of its key: no structure is in two splits."""
    return split_by("/".join(sorted(root.key for root in roots)))


def heavy_of(*roots: Node) -> str:
    """Return the set of a structure's operators that need a separate pass, sorted; `none` if there are none.

    >>> x = Node("x")
    >>> heavy_of(Node("relu", (Node("linear", (Node("sum", (x,), heavy=True), Node("w")), heavy=True),)))
    'linear+sum'
    """
    return "+".join(sorted({node.operator for node in nodes(*roots) if node.heavy})) or "none"


def split_by(name: str) -> Split:
    """Return the split for a name, from a hash of it."""
    text = f"split/{name}"
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % 100
    for name, share in _SHARES:
        if place < share:
            return name
        place -= share
    raise AssertionError("shares add up to 100")


def difficulty(*roots: Node) -> int:
    """Return the number of operators, plus three for each that needs a separate pass over memory.

    A pointwise operator is easily fused into its neighbours; a pass has to be planned.
    """
    return sum(1 + 3 * node.heavy for node in nodes(*roots))


def level_of(score: int) -> int:
    """Return the level for a difficulty: 1 up to 9, 2 up to 18, else 3."""
    return 1 if score <= 9 else 2 if score <= 18 else 3
