"""Loops over time in a reference: the body is read once, with leaves for the previous step's states."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import shapes
from cudal1_data.kernelgen.frontend.memory import Memory
from cudal1_data.kernelgen.frontend.values import Layer, Listed, Symbol, Value, opaque, parts_of, written
from cudal1_data.kernelgen.ir import Loop, Node, contiguous, walk

_MAX_COPIES = 16
"""Maximum number of steps of an unrolled loop."""


@dataclass
class Body:
    """A loop's body while it is read."""

    index: str
    """Name of the step's number in the body."""
    outside: dict[int, tuple[Node, Node]] = field(default_factory=dict[int, tuple[Node, Node]])
    """Leaf of each tensor from outside the loop, and the tensor, by its `id`."""

    def leaf_of(self, value: Value) -> Value:
        """Return the body's counterpart of a value from outside."""
        if isinstance(value, tuple):
            return tuple(self.leaf_of(one) for one in value)
        if isinstance(value, Listed):
            return None  # lists are not supported inside another loop
        if isinstance(value, Symbol) and value.of is not None:
            return replace(value, of=self._leaf(value.of))
        return self._leaf(value) if isinstance(value, Node) else value

    def _leaf(self, value: Node) -> Node:
        leaf = Node("input", value.dims, dtype=value.dtype)
        return self.outside.setdefault(id(value), (leaf, value))[0]

    def is_outside(self, node: Node) -> bool:
        """Return whether a node is the leaf of a tensor from outside."""
        return any(node is leaf for leaf, _ in self.outside.values())


class Follows(Protocol):
    """The part of the reader that loops need."""

    body: Body | None
    memory: Memory
    loops: int

    def value(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        """Return the value of an expression."""
        ...

    def follow(self, statement: ast.stmt, scope: dict[str, Value]) -> None:
        """Evaluate a statement."""
        ...

    def assign(self, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
        """Bind the names of a target."""
        ...


def items(name: str, args: Sequence[Value], *, most: int) -> tuple[Value, ...]:
    """Return what `range`, `enumerate` or `zip` gives.

    Args:
        name: One of them.
        args: Its arguments.
        most: Maximum number of integers.

    Raises:
        UnsuitableError: An argument is no list, or there are too many integers.
    """
    if name == "range":
        numbers = range(*shapes.ints(tuple(args)))
        if len(numbers) > most:
            raise UnsuitableError(f"a range has {len(numbers)} steps; templates follow up to {most}")
        return tuple(numbers)
    lists = [parts_of(one) for one in args]
    if name == "enumerate" and len(lists) == 1:
        return tuple(enumerate(lists[0]))
    if name == "zip":
        return tuple(zip(*lists, strict=False))
    raise UnsuitableError(f"{name} is read with lists only")


def follow(reader: Follows, statement: ast.For, scope: dict[str, Value]) -> None:
    """Read a loop: as a loop if all steps do the same, else unrolled if it has few steps.

    Raises:
        UnsuitableError: The loop is over neither a range nor a list, or a step is not supported.
    """
    is_range = isinstance(statement.iter, ast.Call) and ast.unparse(statement.iter.func) == "range"
    several = None if is_range or statement.orelse else reader.value(statement.iter, scope)
    if isinstance(several, tuple | Layer):
        for item in parts_of(several):
            reader.assign(statement.target, item, scope)
            for one in statement.body:
                reader.follow(one, scope)
        return
    steps = _range(reader, statement, scope)
    try:
        after = _once(reader, statement, scope, steps)
    except (UnsuitableError, LookupError, TypeError, AttributeError) as error:
        if len(steps) > _MAX_COPIES:
            raise UnsuitableError(f"the steps of a loop differ: {error}") from error
        after = dict(scope)
        for step in steps:
            after[ast.unparse(statement.target)] = step
            for one in statement.body:
                reader.follow(one, after)
    scope.clear()
    scope.update(after)


def _range(reader: Follows, statement: ast.For, scope: dict[str, Value]) -> range:
    match statement:
        case ast.For(target=ast.Name(), iter=ast.Call(func=ast.Name(id="range"), args=args, keywords=[]), orelse=[]):
            steps = range(*shapes.ints(tuple(reader.value(one, scope) for one in args)))
        case _:
            raise UnsuitableError(f"{ast.unparse(statement)[:60]!r} is no loop over a range or a list")
    if not steps:
        raise UnsuitableError("a loop has no step")
    return steps


def _once(reader: Follows, statement: ast.For, scope: dict[str, Value], steps: range) -> dict[str, Value]:
    """Read a body once for all steps; return the scope after the loop."""
    target, lists, assigned = ast.unparse(statement.target), _appended(statement), _assigned(statement)
    if any(scope[name] != () for name in lists) or target in assigned:
        raise UnsuitableError("a list has elements before the loop that fills it; templates read empty ones")
    reader.loops += 1
    body = Body(f"step_{reader.loops}")
    scope = {name: reader.memory.current(value) for name, value in scope.items()}
    inner = {name: body.leaf_of(value) for name, value in scope.items() if name not in assigned}
    first = {name: value for name in assigned if isinstance(value := scope.get(name), Node)}
    states = {name: Node("input", node.dims, dtype=node.dtype) for name, node in first.items()}
    inner |= {**states, target: Symbol(body.index, dtype="index")}
    around, reader.body = reader.body, body
    try:
        for one in statement.body:
            reader.follow(one, inner)
    finally:
        reader.body = around
    kept = tuple(_alone(name, reader.memory.current(inner[name])) for name in lists)
    nexts = tuple(_next(name, reader.memory.current(inner[name]), state) for name, state in states.items())
    used = {id(node) for node in walk(*nexts, *kept)}
    outside = [pair for pair in body.outside.values() if id(pair[0]) in used]
    leaves = tuple(leaf for leaf, _ in outside)
    loop = Loop(body.index, steps, tuple(states.values()), nexts, leaves, kept, {})
    node = Node("loop", (), operands=(*first.values(), *(one for _, one in outside)), loop=loop)
    after = {name: value for name, value in scope.items() if name not in (*assigned, target)}
    for number, (name, one) in enumerate(first.items()):
        after[name] = opaque(f"{{0}}_state{number}", one.dims, node, dtype=one.dtype)
    return after | {name: Listed(node, number) for number, name in enumerate(lists)}


def _alone(name: str, value: Value) -> Node:
    match value:
        case (Node() as node,):
            return node
        case _:
            raise UnsuitableError(f"a step of a loop gives no tensor, or several, for {name}; templates read one")


def _next(name: str, value: Value, state: Node) -> Node:
    if not isinstance(value, Node) or (value.dims, value.dtype) != (state.dims, state.dtype):
        raise UnsuitableError(f"{name} changes its shape or dtype from step to step of a loop")
    return value


def _assigned(statement: ast.For) -> list[str]:
    names = [one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    return [name for name in dict.fromkeys(names) if name != ast.unparse(statement.target)]


def _appended(statement: ast.For) -> list[str]:
    return list(
        dict.fromkeys(
            one.func.value.id
            for one in ast.walk(statement)
            if isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr == "append"
            and isinstance(one.func.value, ast.Name)
        )
    )


def part(value: Node, index: Sequence[Value], body: Body | None) -> Node:
    """Return a step's part of a tensor, `x[:, step]`; kernels read simple ones in place."""
    dims = shapes.indexed(value.dims, tuple(index))
    operands = [value]
    inner = ", ".join(written(one, operands) for one in index)
    text = f"{{0}}[{inner}]"
    places = [place for place, one in enumerate(index) if isinstance(one, Symbol)]
    whole = all(one == slice(None) for place, one in enumerate(index) if place not in places)
    if body is None or len(places) != 1 or not whole or not body.is_outside(value):
        return opaque(text, dims, *operands, dtype=value.dtype)
    symbol, (place,) = index[places[0]], places
    if not isinstance(symbol, Symbol) or symbol.text != body.index:
        return opaque(text, dims, *operands, dtype=value.dtype)
    for key, (leaf, tensor) in body.outside.items():
        if leaf is value and not tensor.text.endswith(".contiguous()"):
            body.outside[key] = (leaf, opaque("{0}.contiguous()", tensor.dims, tensor, dtype=tensor.dtype))
    strides = contiguous(value.dims)
    rest = strides[:place] + strides[place + 1 :]
    return Node("opaque", dims, text, (value,), dtype=value.dtype, strides=rest, pace=strides[place])


def joined(text: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node:
    """Return the tensor that `torch.stack` or `torch.cat` makes of a loop's list.

    Raises:
        UnsuitableError: The call is another.
    """
    listed = args[0]
    assert isinstance(listed, Listed)
    loop = listed.loop.loop
    assert loop is not None
    kept = loop.kept[listed.number]
    (axis,) = shapes.ints(args[1] if len(args) > 1 else named.get("dim", 0))
    call = f"{text}({{0}}_kept{listed.number}, dim={axis})"
    if text == "torch.stack":
        axis %= len(kept.dims) + 1
        dims = (*kept.dims[:axis], len(loop.steps), *kept.dims[axis:])
        node = opaque(call, dims, listed.loop, dtype=kept.dtype)
        loop.stacked[listed.number] = (node, axis)
        return node
    if text != "torch.cat":
        raise UnsuitableError(f"{text} of what a loop has listed is not read; templates read torch.stack and torch.cat")
    axis %= len(kept.dims)
    dims = (*kept.dims[:axis], kept.dims[axis] * len(loop.steps), *kept.dims[axis + 1 :])
    return opaque(call, dims, listed.loop, dtype=kept.dtype)
