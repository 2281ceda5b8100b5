"""Tensors of a generated program: text, structure, shape and sample values."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cudal1_data.generator import bounds, grid
from cudal1_data.generator.bounds import ANY, Interval
from cudal1_data.generator.grid import Grid
from cudal1_data.generator.structure import Node
from cudal1_data.generator.vocabulary import Operator

Dims = tuple[str, ...]
"""A shape, as names of constants; `1` for broadcast dimensions."""


_PLACE = re.compile(r"(?<=\()\{(?P<number>\d)\}(?=[,)])|(?<=, )\{(?P<later>\d)\}(?=[,)])|\{(?P<other>\d)\}")
"""A place for an operand: a call's first argument, a later one, or anywhere else."""


@dataclass(frozen=True)
class Value:
    """A tensor."""

    text: str
    """Its expression."""
    node: Node
    """Its structure."""
    dims: Dims
    """Its shape."""
    grid: Grid
    """Its sample values."""
    curved: frozenset[str] = frozenset()
    """Leaves that its gradients depend on."""
    infix: bool = False
    """Whether its text needs parentheses inside another."""
    nested: int = 0
    """Number of operators in the text."""
    bounds: Interval = ANY
    """Bounds of its elements for any inputs."""

    @property
    def atom(self) -> str:
        """Its text for use inside another."""
        return f"({self.text})" if self.infix else self.text

    @property
    def leaves(self) -> list[str]:
        """Inputs and parameters that it depends on."""
        return grid.leaves(self.grid)


def pointwise(operator: Operator, *operands: Value, constant: float | None = None) -> Value | None:
    """Apply a pointwise operator; return None if it is undefined on the sample values or does partly nothing."""
    extra = () if constant is None else (constant,)
    fixed = tuple(Interval(one, one) for one in extra)
    lies, _ = bounds.applied(operator.expression, *(one.bounds for one in operands), *fixed)
    idle = bounds.chooses(operator.expression) and bounds.applied(operator.expression, *map(usual, operands), *fixed)[1]
    if idle or any(is_even(operands[place].node) for place in operator.even_in):
        return None
    result = grid.apply(operator.function, *(one.grid for one in operands), constant=constant)
    if result is None or (len(operands) == 1 and grid.unchanged(operands[0].grid, result)):
        return None
    node = _build(_graph(operator.graph or _plain(operator.name, len(operands))), [one.node for one in operands])
    if undoes(node, [one.node for one in operands]):
        return None
    bent = set[str]().union(*(one.curved for one in operands))
    if not operator.linear:
        bent |= _bent(operands, operator.linear_in)
    return Value(
        text=filled(operator.text, *operands, constant=constant),
        node=node,
        dims=broadcast(*(one.dims for one in operands)),
        grid=result,
        curved=frozenset(bent),
        infix=operator.infix,
        nested=1 + sum(one.nested for one in operands),
        bounds=lies,
    )


def usual(value: Value) -> Interval:
    """Return the bounds of about 90 % of a value's elements, estimated from its samples."""
    return value.bounds & Interval(*grid.middle(value.grid.values))


_EXPONENTIAL = frozenset(
    {"exp", "sigmoid", "softplus", "softmax", "softmin", "log_softmax", "logaddexp", "logsigmoid", "silu", "mish"}
)
"""Operators that start with an exponential of their operand."""
_LOGARITHMIC = frozenset({"log", "log1p", "logsigmoid", "softplus", "log_softmax", "logaddexp"})
"""Operators that end with a logarithm."""
_WITHIN = frozenset({"neg", "scale", "shift"})
"""Operators through which an operator and its inverse still cancel, at least partly."""
_INVERSES = (
    (_EXPONENTIAL, _LOGARITHMIC),
    (frozenset({"log", "log1p"}), frozenset({"exp"})),
    (frozenset({"square"}), frozenset({"sqrt", "rsqrt"})),
    (frozenset({"sqrt", "rsqrt"}), frozenset({"square"})),
)
"""Operators and their inverses."""


def undoes(outer: Node, operands: Sequence[Node]) -> bool:
    """Return whether an operator undoes one of its operands, like the exponential of a logarithm.

    Args:
        outer: The result's structure; a compound operator is searched down to the operands.
        operands: The operands' structures.
    """
    ends = {id(one) for one in operands}
    if id(outer) in ends:
        return False
    below = [(one, id(one) in ends) for one in outer.operands]
    for one, reached in below:
        inner, direct = one, not reached
        while inner.operator in _WITHIN and inner.operands:
            direct &= id(inner) not in ends
            inner = inner.operands[0]
        own = direct and id(inner) not in ends  # inside the compound operator, as in sqrt(1 + square(0))
        if not own and any(outer.operator in some and inner.operator in others for some, others in _INVERSES):
            return True
    return any(undoes(one, operands) for one, _ in below)


def invariant(value: Value, names: Sequence[str]) -> bool:
    """Return whether the value's last operator is one of `names`, which the next operator cancels.

    A normalisation cancels a scale; one that subtracts the mean also cancels a shift.
    """
    return value.node.operator in names


def is_even(node: Node) -> bool:
    """Return whether an even function of this value is the same without its last operator."""
    return node.operator in ("abs", "neg")


def _bent(operands: Sequence[Value], linear_in: Sequence[int]) -> set[str]:
    """Return the leaves that the gradients of inputs depend on after a nonlinear operator.

    If it is linear in an operand, its gradients depend on that operand only if another operand depends on inputs.
    """
    live = [one.node.live for one in operands]
    return {
        name
        for place, one in enumerate(operands)
        if any(is_live for other, is_live in enumerate(live) if other != place or place not in linear_in)
        for name in one.leaves
    }


def filled(text: str, *operands: Value, constant: float | None = None) -> str:
    """Fill operands into a text with `{0}`, `{1}`; a whole argument of a call needs no parentheses."""

    def written(match: re.Match[str]) -> str:
        alone = match["number"] or match["later"]
        return operands[int(alone)].text if alone else operands[int(match["other"])].atom

    return _PLACE.sub(written, text).replace("{c}", str(constant))


def combine(
    name: str,
    text: str,
    dims: Dims,
    sample: Grid,
    *operands: Value,
    detail: str = "",
    heavy: bool = True,
    bends: bool = False,
    infix: bool = False,
    layer: bool = False,
    bounds: Interval = ANY,
) -> Value:
    """Return the result of any other operator.

    Args:
        name: The operator's name in the structure.
        text: The result's expression.
        dims: The result's shape.
        sample: Its sample values.
        operands: Its operands.
        detail: Addition to the name in the structure.
        heavy: Whether it needs a separate pass over memory.
        bends: Whether gradients depend on its operands; with several operands, it is linear in each.
        infix: Whether the text needs parentheses inside another.
        layer: Whether it is a layer of the model, with weights that gradients do not depend on yet.
        bounds: Bounds of its elements for any inputs.
    """
    bent = set[str]().union(*(one.curved for one in operands))
    if bends:
        bent |= _bent(operands, tuple(range(len(operands))) if len(operands) > 1 else ())
    if layer:
        bent.discard(grid.LAYERS)
    return Value(
        text=text,
        node=Node(name, tuple(one.node for one in operands), detail=detail, heavy=heavy),
        dims=dims,
        grid=sample,
        curved=frozenset(bent),
        infix=infix,
        nested=1 + sum(one.nested for one in operands),
        bounds=bounds,
    )


def broadcast(*shapes: Dims) -> Dims:
    """Return the broadcast shape.

    >>> broadcast(("ROWS", "COLS"), ("COLS",), ("ROWS", "1"))
    ('ROWS', 'COLS')
    """
    longest = max(shapes, key=len)
    padded = [("1",) * (len(longest) - len(shape)) + shape for shape in shapes]
    return tuple(next((dim for dim in column if dim != "1"), "1") for column in zip(*padded, strict=True))


def renamed(value: Value, name: str) -> Value:
    """Return the value as a variable of that name."""
    return replace(value, text=name, infix=False, nested=0)


def redrawn(value: Value, sample: Grid) -> Value:
    """Return the value with other sample values."""
    return replace(value, grid=sample)


Graph = int | tuple[str, tuple["Graph", ...]]


def _plain(name: str, count: int) -> str:
    return f"{name}({','.join(map(str, range(count)))})"


@functools.cache
def _graph(text: str) -> Graph:
    """Parse a structure such as `mul(0,sigmoid(1))`."""
    name, bracket, inner = text.partition("(")
    if not bracket:
        return int(name)
    parts: list[str] = []
    depth = start = 0
    for place, character in enumerate(inner):
        if character == "(":
            depth += 1
        elif character == ")" and depth:
            depth -= 1
        elif depth == 0 and character in ",)":
            parts.append(inner[start:place])
            start = place + 1
    return name, tuple(map(_graph, parts))


def _build(graph: Graph, operands: list[Node]) -> Node:
    if isinstance(graph, int):
        return operands[graph]
    name, below = graph
    return Node(name, tuple(_build(one, operands) for one in below))
