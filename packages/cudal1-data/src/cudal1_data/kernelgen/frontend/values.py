"""Values of a reference's expressions besides numbers: tensors, layers, dtypes."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.ir import FLOATS, Dims, Node, broadcast
from cudal1_data.kernelgen.sizes import Ratio, host_text


@dataclass(frozen=True)
class Layer:
    """A layer of the model, as constructed."""

    name: str
    """`self.conv`; empty until it is assigned to a member."""
    kind: str
    """Class in `torch.nn`, or of the file."""
    args: tuple[Value, ...]
    """Arguments by position."""
    kwargs: dict[str, Value]
    """Arguments by name."""
    of_file: bool = False
    """Whether the file defines its class."""

    def argument(self, place: int, name: str, default: Value = None) -> Value:
        """Return an argument given by position or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


@dataclass(frozen=True, eq=False)
class Module:
    """The model, or a member whose class the file defines."""

    name: str
    """`self`, or `self.norm`."""
    methods: dict[str, ast.FunctionDef]
    """Its class's methods by name."""
    attributes: dict[str, Value] = field(default_factory=dict[str, "Value"])
    """What its constructor assigns."""

    def member(self, name: str) -> Value:
        """Return what the constructor assigns to a name.

        Raises:
            UnsuitableError: It assigns nothing.
        """
        if name not in self.attributes:
            raise UnsuitableError(f"{self.name}.{name} is unknown; templates read members that __init__ assigns")
        return self.attributes[name]


@dataclass(frozen=True)
class Symbol:
    """A dtype, or a property of a tensor that only PyTorch calls need."""

    text: str
    """Its text, with `{0}` for the tensor."""
    of: Node | None = None
    """The tensor."""
    dtype: str = ""
    """Name of the dtype, if it is one."""


@dataclass(frozen=True)
class Listed:
    """A list filled by a loop."""

    loop: Node
    """The loop."""
    number: int
    """Number of the list in the loop."""


Value = Node | Layer | Module | Symbol | Listed | int | float | bool | str | None | slice | tuple["Value", ...]


def pointwise(expression: str, *operands: Value, dtype: str = "") -> Node:
    """Return a pointwise node; numeric operands become part of the expression.

    The default dtype is that of the floating-point operands, or float32 if they have several or none.

    Raises:
        UnsuitableError: An operand is neither tensor nor number, or shapes do not broadcast.
    """
    nodes: list[Node] = []
    names: dict[str, str] = {}
    for letter, operand in zip("abc", operands, strict=False):
        if isinstance(operand, Node):
            names[letter] = "abc"[len(nodes)]
            nodes.append(operand)
        elif isinstance(operand, Ratio):
            names[letter] = f"({operand.kernel})"
        elif isinstance(operand, int | float) and operand == operand:
            names[letter] = f"({float(operand)!r})" if operand < 0 else repr(float(operand))
        else:
            raise UnsuitableError(
                f"{expression!r} has {operand if isinstance(operand, float) else f'a {type(operand).__name__}'};"
                " templates read tensors and numbers there"
            )
    text = "".join(names.get(part, part) for part in _split(expression))
    floats = {one.dtype for one in nodes if one.dtype in FLOATS and one.dims} or {one.dtype for one in nodes}
    kind = dtype or (floats.pop() if len(floats) == 1 and floats <= set(FLOATS) else "float32")
    return Node("pointwise", shape(*nodes), operands=tuple(nodes), expression=text, dtype=kind)


def shape(*nodes: Node) -> Dims:
    """Return the shape of a pointwise operator's result.

    Raises:
        UnsuitableError: The shapes do not broadcast.
    """
    try:
        return broadcast(*(node.dims for node in nodes))
    except ValueError as error:
        raise UnsuitableError(str(error)) from error


def opaque(text: str, dims: Dims, *operands: Node, dtype: str = "float32") -> Node:
    """Return a node that stays a call into PyTorch."""
    return Node("opaque", dims, text=text, operands=operands, dtype=dtype)


def written(value: Value, operands: list[Node], *, by_name: bool = False) -> str:
    """Return a value's text in an opaque call; tensors are appended to `operands`.

    Args:
        value: The value.
        operands: The call's tensors so far.
        by_name: Whether sizes are written as the reference's constants instead of numbers.

    Raises:
        UnsuitableError: The value cannot be written.
    """
    match value:
        case Node():
            if value not in operands:
                operands.append(value)
            return f"{{{operands.index(value)}}}"
        case Symbol(text=text, of=of):
            return text if of is None else text.format(written(of, operands))
        case tuple():
            inner = ", ".join(written(one, operands, by_name=by_name) for one in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case slice():
            ends = ["" if end is None else host_text(end) for end in (value.start, value.stop)]
            return ":".join(ends) + (f":{host_text(value.step)}" if value.step is not None else "")
        case float() if value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        case Layer():
            return value.name
        case int() if by_name and not isinstance(value, bool):
            return host_text(value)
        case _:
            return repr(value)


def parts_of(value: Value) -> tuple[Value, ...]:
    """Return the parts of a list, a tuple, an `nn.ModuleList` or an `nn.Sequential`.

    Raises:
        UnsuitableError: The value is another.
    """
    if isinstance(value, Layer) and value.kind in ("ModuleList", "Sequential"):
        return value.args
    if not isinstance(value, tuple):
        raise UnsuitableError(
            "a list or tuple is needed (get_inputs, several results, *values), and another value is given"
        )
    return value


def tensors(value: Value) -> list[Node]:
    """Return the tensors of a value: itself, those of a list, or the one that a symbol belongs to."""
    match value:
        case Node():
            return [value]
        case Symbol(of=Node() as of):
            return [of]
        case tuple():
            return [one for part in value for one in tensors(part)]
        case _:
            return []


def _split(expression: str) -> list[str]:
    """Split an expression so that `a`, `b`, `c` are separate parts."""
    parts: list[str] = [""]
    for place, character in enumerate(expression):
        before = expression[place - 1] if place else " "
        after = expression[place + 1] if place + 1 < len(expression) else " "
        alone = (
            character in "abc" and not (before.isalnum() or before in "._") and not (after.isalnum() or after == "_")
        )
        parts.extend([character, ""] if alone else [])
        if not alone:
            parts[-1] += character
    return parts
