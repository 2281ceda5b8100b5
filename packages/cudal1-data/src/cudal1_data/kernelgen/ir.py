"""The graph of a reference: leaves, fusable operators, and all other calls as text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from cudal1_data.kernelgen.sizes import Table, host_text

Dims = tuple[int, ...]
"""A shape."""

Kind = Literal["input", "parameter", "count", "pointwise", "gather", "reduce", "scan", "opaque", "loop"]
How = Literal["", "sum", "product", "max", "min", "argmax", "argmin"]
PLACES = {"argmax": "max", "argmin": "min"}
"""Reductions whose result is the first place of an extreme, with the extreme's reduction."""
HALVES = ("float16", "bfloat16")
"""Dtypes that kernels read and write but compute in float32."""
FLOATS = ("float32", *HALVES)
"""Dtypes that kernels write."""


@dataclass(frozen=True)
class Window:
    """The window of a convolution or pool, with one number for each axis of its maps."""

    edges: Dims
    """Number of its elements."""
    stride: Dims
    """Step between windows; in a transposed convolution between the results of neighbouring elements."""
    padding: Dims
    """Zeros around the maps; in a transposed convolution elements cut off around the result."""
    dilation: Dims
    """Distance of its elements."""
    groups: int
    """Groups of channels."""
    transposed: bool
    """Whether the convolution is transposed."""


@dataclass(frozen=True, eq=False)
class Node:
    """A tensor of the reference. Nodes compare by identity: a tensor used twice is one node."""

    kind: Kind
    """`opaque` stays a call into PyTorch; `pointwise`, `gather`, `reduce` and `scan` can be part of a kernel; `loop`
    repeats an inner graph; `count` is each element's place along its one axis, which kernels compute. `gather` reads a
    table, its first operand, at places that its second operand names, and its third one, a count, if any."""
    dims: Dims
    """Shape."""
    text: str = ""
    """Leaf: its text in `forward`; opaque node or gather: a call with `{0}`, `{1}` for operands."""
    operands: tuple[Node, ...] = ()
    """Its operands."""
    expression: str = ""
    """Pointwise node: expression over `a`, `b`, `c` (`operators.py`)."""
    how: How = ""
    """Reduction, scan or pool: its operation; only scans have products, and only reductions places of extremes."""
    trailing: int = 0
    """Reduction or scan: number of the operand's last axes that it covers."""
    keepdim: bool = False
    """Reduction: whether these axes are kept, with size 1."""
    dtype: str = "float32"
    """Dtype of its values: float32, float16, bfloat16, bool, int64."""
    strides: Dims = ()
    """Opaque node that is part of a contiguous tensor: its strides, so that kernels read it in place."""
    pace: int = 0
    """With `strides`: distance in elements between the parts of successive steps."""
    weights: Dims = ()
    """Gather: elements of the table between successive indices, and between successive counts."""
    wraps: int = 0
    """Gather: what is added to negative indices; 0 if there are none."""
    loop: Loop | None = None
    """Loop: its data."""
    window: Window | None = None
    """Opaque node that is a convolution of its operands, maps, weight and bias (if any), or a pool of maps, with `how`
    (a sum is divided by the elements of a window): its window."""

    @property
    def fusable(self) -> bool:
        """Whether it can be part of a kernel."""
        return self.kind in ("pointwise", "gather", "reduce", "scan")

    @property
    def leaf(self) -> bool:
        """Whether it is an input, a parameter or a count."""
        return self.kind in ("input", "parameter", "count")

    @property
    def placed(self) -> bool:
        """Whether it is a leaf, or a leaf in another shape, which costs nothing."""
        return self.leaf or (self.text.startswith("{0}.reshape(") and self.operands[0].leaf)

    @property
    def swapped(self) -> bool:
        """Whether it is read in place and elements adjacent in memory follow its last axis but one."""
        return len(self.strides) > 1 and self.strides[-2] == 1 != self.strides[-1]

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop over time: states passed from step to step, and lists that each step appends a tensor to.

    The loop's node has the states' first values as operands, then the tensors from outside.
    """

    index: str
    """Name of the step's number in nodes of the body."""
    steps: range
    """The numbers of the steps."""
    states: tuple[Node, ...]
    """Leaves of the body for the states."""
    nexts: tuple[Node, ...]
    """Next value of each state."""
    outside: tuple[Node, ...]
    """Leaves of the body for tensors from outside."""
    kept: tuple[Node, ...]
    """Node appended to each list."""
    stacked: dict[int, tuple[Node, int]]
    """The node that stacks a list, and its axis of steps, by number of the list."""


@dataclass(frozen=True)
class Reference:
    """A reference program as read."""

    head: str
    """Imports and constants."""
    constructor: str
    """The text of `__init__`; empty if there is none."""
    methods: tuple[str, ...]
    """Names of the arguments of `forward`."""
    roots: tuple[Node, ...]
    """Its outputs."""
    several: bool
    """Whether it returns a tuple."""
    sizes: Table = field(default_factory=lambda: Table(""))
    """Python expression of each size, by name in kernels (`sizes.py`)."""


def broadcast(*shapes: Dims) -> Dims:
    """Return the broadcast shape.

    >>> broadcast((4, 8), (8,), (4, 1))
    (4, 8)

    Raises:
        ValueError: The shapes do not broadcast.
    """
    length = max(map(len, shapes))
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    # Of two equal sizes, prefer a Size, which has the reference's expression.
    result = tuple(max(column, key=lambda size: (size, type(size) is not int)) for column in zip(*padded, strict=True))
    for shape in padded:
        if any(size not in (1, whole) for size, whole in zip(shape, result, strict=True)):
            raise ValueError(f"shapes {shapes} cannot be broadcast")
    return result


@dataclass(frozen=True)
class Piece:
    """A tensor joined with others: elements of one axis of the whole."""

    node: Node
    """The tensor."""
    axis: int
    """Axis of the whole, counted from the last, which is -1."""
    start: int
    """Place of its first element."""
    step: int
    """Distance of its elements."""

    @property
    def index(self) -> str:
        """Its index in the whole, in Python."""
        length = self.node.dims[self.axis]
        stop = self.start + length if self.step == 1 else None
        text = f"{host_text(self.start) if self.start else ''}:{host_text(stop) if stop is not None else ''}"
        return "[..., " + text + (f":{host_text(self.step)}" if self.step > 1 else "") + ", :" * (-1 - self.axis) + "]"


_CONCATENATED = re.compile(r"torch\.cat\(\(((?:\{\d\}(?:, )?)+),?\), (?:dim=)?(-?\d+)\)")
_INTERLEAVED = re.compile(r"torch\.stack\(\(((?:\{\d\}(?:, )?)+)\), dim=-1\)\.flatten\(-2\)")


def joined_pieces(node: Node) -> tuple[Piece, ...] | None:
    """Return the tensors that a call joins, with their places; None for another node."""
    if node.kind != "opaque" or not node.text.startswith("torch."):
        return None
    count = len(node.operands)
    if (found := _CONCATENATED.fullmatch(node.text)) is not None and found[1].count("{") == count:
        axis = int(found[2]) % len(node.dims) - len(node.dims)
        start, pieces = 0, list[Piece]()
        for one in node.operands:
            pieces.append(Piece(one, axis, start, 1))
            start = one.dims[axis] + start if start else one.dims[axis]
        return tuple(pieces)
    if (found := _INTERLEAVED.fullmatch(node.text)) is not None and found[1].count("{") == count:
        return tuple(Piece(one, -1, place, count) for place, one in enumerate(node.operands))
    return None


def contiguous(dims: Dims) -> Dims:
    """Return the strides of a contiguous tensor.

    >>> contiguous((2, 3, 5))
    (15, 5, 1)
    """
    return tuple(math.prod(dims[place + 1 :]) for place in range(len(dims)))


def with_operands(node: Node, known: Mapping[int, Node]) -> Node:
    """Return a node with its operands replaced by those known for their `id`s; the node itself if all are the same."""
    operands = tuple(known[id(one)] for one in node.operands)
    same = all(old is new for old, new in zip(node.operands, operands, strict=True))
    return node if same else replace(node, operands=operands)


def walk(*roots: Node) -> list[Node]:
    """Return every node once, operands before their users."""
    seen: dict[int, Node] = {}
    done: list[Node] = []

    def visit(node: Node) -> None:
        if id(node) not in seen:
            seen[id(node)] = node
            for operand in node.operands:
                visit(operand)
            done.append(node)

    for root in roots:
        visit(root)
    return done
