"""Tensors that share memory, and what stands for a tensor after it was changed in place.

`nn.ReLU(inplace=True)` returns its operand, changed. Programs compute the result as a tensor of its own: who uses the
operand afterwards gets that result. A view of the operand changes with it; programs that use one are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.values import Symbol, Value, tensors
from cudal1_data.kernelgen.ir import Node, walk

_SHARING = (
    *("view", "reshape", "flatten", "transpose", "t", "permute", "squeeze", "unsqueeze", "select", "narrow", "expand"),
    *("expand_as", "contiguous", "to", "float", "half", "bfloat16", "bool", "long", "chunk", "split", "einsum"),
)
"""Functions whose result may be a view of an argument, or the argument itself."""


@dataclass
class Memory:
    """What a reader knows about the memory of tensors."""

    groups: dict[int, list[Node]] = field(default_factory=dict[int, list[Node]])
    """Tensors that may share memory, by the `id` of each."""
    changed: dict[int, tuple[Node, Node | None]] = field(default_factory=dict[int, tuple[Node, Node | None]])
    """By `id`: a tensor that was changed in place, and what it is now; None for a view of such a tensor."""

    def called(self, name: str, args: Sequence[Value], result: Value) -> Value:
        """Return a call's result, after noting whether it may share memory with its arguments."""
        if name in _SHARING:
            self.share(*tensors(tuple(args)), *tensors(result))
        return result

    def share(self, *nodes: Node) -> None:
        """Note that tensors may share memory."""
        members = {id(one): one for node in nodes for one in self.groups.get(id(node), [node])}
        group = list(members.values())
        for key in members:
            self.groups[key] = group

    def change(self, node: Node, result: Node) -> None:
        """Note that a tensor was changed in place."""
        for one in self.groups.get(id(node), [node]):
            self.changed[id(one)] = (one, result if one is node else None)

    def apply(self, node: Node, result: Node, name: str) -> None:
        """Note that a layer changed its operand in place.

        Raises:
            UnsuitableError: The operand is kept from call to call, or from step to step of a loop.
        """
        shared = self.groups.get(id(node), [node])
        kept = any(one.kind == "parameter" or (one.kind == "input" and not one.text) for one in shared)
        if kept or all(one.kind != "input" for one in walk(node)):
            raise UnsuitableError(f"{name} changes in place a tensor that is used again in a later step or call")
        self.change(node, result)

    def current(self, value: Value) -> Value:
        """Return what stands for a value now.

        Raises:
            UnsuitableError: It is a view of a tensor that was changed in place.
        """
        match value:
            case Node():
                now: Node | None = value
                while now is not None and id(now) in self.changed:
                    now = self.changed[id(now)][1]
                if now is None:
                    raise UnsuitableError("a view of a tensor is used after the tensor was changed in place")
                return now
            case tuple():
                return tuple(self.current(one) for one in value)
            case Symbol(of=Node() as of):
                now = self.changed.get(id(of), (of, of))[1]
                return value if now is of else replace(value, of=self._tensor(of))
            case _:
                return value

    def _tensor(self, node: Node) -> Node:
        now = self.current(node)
        assert isinstance(now, Node)
        return now
