"""Writer of a task in KernelBench's form: constants, `Model`, `get_inputs`, `get_init_inputs`."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from cudal1_data.generator import grid, structure
from cudal1_data.generator.bounds import ANY, POSITIVE, UNIT, Interval
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.grid import Grid, Kind
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Dims, Value, renamed
from cudal1_data.task import Device, Size

Dtype = Literal["float32", "bfloat16", "float16"]
Layout = Literal["contiguous", "transposed", "channels_last"]

_CAST = {"bfloat16": ".bfloat16()", "float16": ".half()"}
_BOUNDS: dict[str, Interval] = {"mask": UNIT, "positive": POSITIVE}
"""Bounds of an input's elements by kind; other kinds are unbounded."""
_ACROSS_NS = 6.0
"""Time to combine an element of a transposed tensor with one of a contiguous tensor."""
_NAMES = (*"huvspredfonl", *(f"h{number}" for number in range(2, 100)))
_CONSTANT = re.compile(r"\b[A-Z][A-Z0-9_]*\b")


@dataclass
class Program:
    """A task while it is being written.

    Args:
        draw: Choices of dtype, layout and sample values.
        backward: Whether the task computes its inputs' gradients.
    """

    draw: Draw
    backward: bool = False
    dtype: Dtype = "float32"
    title: str = ""
    """Addition to the family in the task's name."""
    layouts: set[Layout] = field(default_factory=set[Layout])
    """Layouts of inputs other than contiguous."""
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The constants for the CPU and for a GPU."""
    cost_ns: float = 0.0
    """Approximate time of the pointwise work per element of the main tensor on one core."""
    outputs: list[Value] = field(default_factory=list[Value])
    _members: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _inputs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _leaves: list[str] = field(default_factory=list[str])
    _floats: dict[str, Value] = field(default_factory=dict[str, Value])
    _lines: list[str] = field(default_factory=list[str])
    _taken: set[str] = field(default_factory=lambda: {"F", "torch", "self", "grad", "out"})

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return 4 if self.dtype == "float32" else 2

    @property
    def flops_per_ns(self) -> float:
        """Floating-point operations per nanosecond of a product on one core.

        In half precision this is the rate without half-precision instructions; with them it is 50 times as high.
        """
        return 60.0 if self.dtype == "float32" else 2.0

    def moved(self, dims: Dims) -> int:
        """Return the number of floating-point inputs and outputs of a shape, which a fused kernel must move."""
        return sum(one.dims == dims for one in (*self._floats.values(), *self.outputs))

    def size(self, name: str, cpu: int, cuda: int) -> str:
        """Set a constant at the top of the file."""
        self.sizes[name] = (cpu, cuda)
        return name

    def size_on(self, device: Device) -> Size:
        """Return the constants for a device."""
        return {name: both[device == "cuda"] for name, both in self.sizes.items()}

    def input(
        self,
        name: str,
        dims: Dims,
        *,
        kind: Kind = "full",
        text: str = "",
        layout: Layout = "contiguous",
        axes: tuple[int, int] = (-2, -1),
    ) -> Value:
        """Add a floating-point or boolean input.

        Args:
            name: Its name in `forward`.
            dims: Its shape.
            kind: Distribution of its values.
            text: Its expression in `get_inputs`; by default from its kind.
            layout: Its memory layout.
            axes: Axes swapped in a transposed layout.
        """
        *before, expression = [text] if text else _made(name, dims, kind)
        operator = "mask" if kind == "mask" else "x"
        if operator == "x":
            expression = self._stored(expression)
        lines = [*before, f"{name} = {expression}"]
        if layout == "channels_last":
            lines.append(f"{name} = {name}.contiguous(memory_format=torch.channels_last)")
        elif layout == "transposed":
            swap = f".transpose({axes[0]}, {axes[1]})"
            lines.append(f"{name} = {name}{swap}.contiguous(){swap}")
        if layout != "contiguous":
            self.layouts.add(layout)
        if layout == "transposed":
            self.cost_ns += _ACROSS_NS
        value = Value(name, Node(operator), dims, self._leaf(name, kind), bounds=_BOUNDS.get(kind, ANY))
        self._inputs[name] = lines
        if operator == "x":
            self._floats[name] = value
        return value

    def raw(self, name: str, dims: Dims, lines: Sequence[str], kind: str) -> Value:
        """Add an input with its own code.

        Args:
            name: Its name in `forward`.
            dims: Its shape.
            lines: Lines of `get_inputs`; one of them assigns the name.
            kind: Kind of leaf in the structure.
        """
        self._inputs[name] = list(lines)
        return Value(name, Node(kind), dims, self._leaf(name, "full"))

    def free(self, names: Sequence[str]) -> str:
        """Return the first unused name."""
        return next(name for name in names if name not in self._taken)

    def layout(self) -> Layout:
        """Choose a layout for a large input: one in four is transposed."""
        return "transposed" if self.draw.child("layout", len(self._inputs)).chance(0.25) else "contiguous"

    def index(self, name: str, dims: Dims, below: str) -> Value:
        """Add an integer input with values from 0 up to a constant."""
        self._inputs[name] = [f"{name} = torch.randint({below}, ({', '.join(dims)}{',' * (len(dims) == 1)}))"]
        return Value(name, Node("i"), dims, self._leaf(name, "full"))

    def parameter(self, name: str, dims: Dims, *, text: str = "", kind: Kind = "row") -> Value:
        """Add a parameter of the model; its values are normal by default."""
        shape = ", ".join(dims)
        sample = self._leaf(name, kind)
        self.member(name, f"nn.Parameter({text or f'torch.randn({shape})'})")
        return Value(f"self.{name}", Node("w"), dims, sample, bounds=_BOUNDS.get(kind, ANY))

    def _stored(self, expression: str) -> str:
        """Return a new tensor's text with a cast to the task's dtype."""
        cast = _CAST.get(self.dtype, "")
        return (f"({expression})" if cast and _is_infix(expression) else expression) + cast

    def _leaf(self, name: str, kind: Kind) -> Grid:
        assert name not in self._taken, f"expected a new name, got {name} twice"
        self._taken.add(name)
        self._leaves.append(name)
        return grid.leaf(name, self.draw.child("leaf", name), kind)

    @contextmanager
    def uncounted(self) -> Generator[None]:
        """Exclude the block's work from `cost_ns`, because it has few elements."""
        before = self.cost_ns
        yield
        self.cost_ns = before

    def member(self, name: str, text: str) -> str:
        """Set an attribute in the model's constructor, in the task's dtype; return its text in `forward`.

        Args:
            name: The attribute.
            text: `nn.Parameter(...)`, or a layer of `torch.nn`; pools take no dtype.
        """
        self._taken.add(name)
        if self.dtype in _CAST and text.startswith("nn.Parameter("):
            text = f"nn.Parameter({self._stored(text.removeprefix('nn.Parameter(').removesuffix(')'))})"
        elif self.dtype in _CAST and "Pool" not in text:
            text = f"{text.removesuffix(')')}, dtype=torch.{self.dtype})"
        self._members.append((name, text))
        return f"self.{name}"

    def line(self, text: str) -> None:
        """Add a line to `forward`."""
        self._lines.append(text)

    def keep(self, value: Value, name: str = "") -> Value:
        """Assign a value to a variable, unless it is one."""
        if value.nested == 0:
            return value
        name = name or self.free(_NAMES)
        self._taken.add(name)
        self._lines.append(f"{name} = {value.text}")
        return renamed(value, name)

    def returns(self, *values: Value) -> None:
        """Set the outputs of `forward`."""
        self.outputs = list(values)

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return list(self._inputs)

    @property
    def roots(self) -> list[Node]:
        """The structure."""
        return [value.node for value in self.outputs]

    def unused(self) -> list[str]:
        """Names of inputs and parameters that no output depends on."""
        used = {name for value in self.outputs for name in value.leaves}
        return [name for name in self._leaves if name not in used]

    def wanted(self) -> list[str]:
        """Return the inputs whose gradients a backward task returns; of equivalent inputs, the first."""
        marked: dict[str, str] = {}
        for name, value in self._floats.items():
            marked.setdefault(structure.marked_key(self.roots, value.node), name)
        return list(marked.values())

    def source(self) -> str:
        """Return the program's text, at the CPU's sizes."""
        parts = [
            self._imports(),
            "".join(f"{name} = {both[0]}\n" for name, both in self.sizes.items()),
            "\nclass Model(nn.Module):\n" + self._constructor() + self._forward(),
            "\ndef get_inputs():\n" + self._get_inputs(),
            "\ndef get_init_inputs():\n" + f"    return [{', '.join(self._arguments())}]\n",
        ]
        return "\n".join(parts)

    def _imports(self) -> str:
        text = "\n".join([*self._lines, *(value.text for value in self.outputs)])
        first = "import math\n\n" if "math." in text else ""
        functional = "import torch.nn.functional as F\n" if "F." in text else ""
        return f"{first}import torch\nimport torch.nn as nn\n{functional}"

    def _arguments(self) -> list[str]:
        used = [name for _, text in self._members for name in _CONSTANT.findall(text) if name in self.sizes]
        return list(dict.fromkeys(used))

    def _constructor(self) -> str:
        if not self._members:
            return ""
        arguments = self._arguments()
        lines = [f"    def __init__({', '.join(['self', *(name.lower() for name in arguments)])}):"]
        lines.append("        super().__init__()")
        for name, text in self._members:
            lowered = _CONSTANT.sub(lambda match: match[0].lower() if match[0] in arguments else match[0], text)
            lines.append(f"        self.{name} = {lowered}")
        return "\n".join(lines) + "\n\n"

    def _forward(self) -> str:
        if self.backward:
            return self._gradients()
        return _function("forward", ["self", *self._inputs], self._body())

    def _body(self) -> list[str]:
        """Return the lines of the computation, without a variable that is only returned."""
        result = ", ".join(value.text for value in self.outputs)
        name, _, text = self._lines[-1].partition(" = ") if self._lines else ("", "", "")
        if name == result:
            return [*self._lines[:-1], f"return {text}"]
        return [*self._lines, f"return {result}"]

    def _gradients(self) -> str:
        wanted = self.wanted()
        compute = _function("compute", ["self", *self._inputs], self._body())
        names = ", ".join(wanted)
        body = [
            "with torch.enable_grad():",
            *(f"    {name} = {name}.detach().requires_grad_()" for name in wanted),
            f"    out = self.compute({', '.join(self._inputs)})",
            f"return torch.autograd.grad(out, [{names}], grad)" + ("" if len(wanted) > 1 else "[0]"),
        ]
        return compute + "\n" + _function("forward", ["self", *self._inputs, "grad"], body)

    def _get_inputs(self) -> str:
        lines = [line for group in self._inputs.values() for line in group]
        names = list(self._inputs)
        if self.backward:
            cast = _CAST.get(self.dtype, "")
            lines.append(f"grad = torch.randn({', '.join(self.outputs[0].dims)}){cast}")
            names.append("grad")
        return "".join(f"    {line}\n" for line in lines) + f"    return [{', '.join(names)}]\n"


def _function(name: str, arguments: list[str], body: list[str]) -> str:
    return f"    def {name}({', '.join(arguments)}):\n" + "".join(f"        {line}\n" for line in body)


def _made(name: str, dims: Dims, kind: Kind) -> list[str]:
    """Return the lines that make an input; the last lacks the assignment."""
    shape = ", ".join(dims)
    if kind == "mask":
        return [f"torch.rand({shape}) < 0.7"]
    if kind == "positive":
        return [f"torch.rand({shape}) + 0.5"]
    if kind in ("uneven", "tilted"):
        line = ", ".join((*dims[:-1], "1") if kind == "uneven" else dims[-1:])
        return [f"{name} = torch.randn({shape}) * (0.5 + torch.rand({line}))", f"{name} + 3 * torch.rand({line}) - 1.5"]
    return [f"torch.randn({shape})"]


def _is_infix(text: str) -> bool:
    """Return whether an operator is outside all parentheses."""
    while (outer := re.sub(r"\([^()]*\)", "", text)) != text:
        text = outer
    return bool(re.search(r" [-+*/<] ", text))
