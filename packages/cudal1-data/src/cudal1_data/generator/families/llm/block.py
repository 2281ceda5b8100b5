"""Writer of a language model's block: inputs and weights in the task's dtype, sensitive steps in a wider one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cudal1_data.generator import grid
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.program import Layout, Program
from cudal1_data.generator.shapes import near
from cudal1_data.generator.structure import LEAVES, Node
from cudal1_data.generator.values import Dims, Value

_PASSES = frozenset(
    {
        "matmul",
        "mean",
        "sum",
        "softmax",
        "log_softmax",
        "logsumexp",
        "amax",
        "amin",
        "topk",
        "cumsum",
        "argmax",
        "gather",
    }
    | {"index_put"}
)
"""Operators that need a separate pass over memory."""
_SMALL, _LARGE = 32, 131072
"""The range of usual sizes."""
_MOVED_GB = (0.5, 0.7, 0.9, 1.2)
"""Gigabytes that a fused kernel moves on a GPU, for memory-bound blocks."""


def node(name: str, *operands: Node, detail: str = "") -> Node:
    """Return an operator of the structure."""
    return Node(name, operands, detail, heavy=name in _PASSES)


class Block:
    """Writer of one block into a program.

    Half precision is used as in a model, to store tensors and compute products. Norms, softmax and rotations are
    computed in torch's default dtype: float32, or float64 for the judge's oracle.

    Args:
        program: The task.
        draw: Choices.
    """

    def __init__(self, program: Program, draw: Draw) -> None:
        self.program = program
        self.draw = draw
        self.half = program.dtype != "float32"
        self._values: dict[int, Value] = {}
        self._knows_wide = False

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return 2 if self.half else 4

    def input(self, name: str, *dims: str, text: str = "", layout: Layout = "contiguous") -> Node:
        """Add an input in the task's dtype; its values are normal unless `text` is given.

        A transposed input has its second and third dimension swapped in memory.
        """
        return self._known(self.program.input(name, dims, text=text, layout=layout, axes=(1, 2)))

    def raw(self, name: str, dims: Dims, *lines: str, kind: str = "x") -> Node:
        """Add an input with its own code, regardless of the task's dtype.

        Args:
            name: Its name in `forward`.
            dims: Its shape.
            lines: Lines of `get_inputs`; the last one assigns the name.
            kind: `x` for floating-point numbers, `i` for integers.
        """
        return self._known(self.program.raw(name, dims, lines, kind))

    def weight(self, name: str, *dims: str, text: str = "") -> Node:
        """Add a parameter in the task's dtype; by default a matrix that preserves the magnitude of its operand."""
        made = text or f"torch.randn({', '.join(dims)}) / {dims[-1]}**0.5"
        return self._known(self.program.parameter(name, dims, text=made, kind="full"))

    def _known(self, value: Value) -> Node:
        self._values[id(value.node)] = value
        return value.node

    def line(self, text: str) -> None:
        """Add a line to `forward`."""
        self.program.line(text)

    def wide(self, text: str) -> str:
        """Return a value's text in the dtype of sensitive steps."""
        if not self.half:
            return text
        if not self._knows_wide:
            self._knows_wide = True
            self.line("wide = torch.get_default_dtype()")
        return f"{text}.to(wide)"

    def narrow(self, text: str, like: str) -> str:
        """Return a value's text in the task's dtype, which is that of the tensor `like`."""
        return f"{text}.to({like}.dtype)" if self.half else text

    def returns(self, *outputs: tuple[str, Dims, Node]) -> None:
        """Set text, shape and structure of each output of `forward`."""
        self.program.returns(*(self._output(*one) for one in outputs))

    def _output(self, text: str, dims: Dims, root: Node) -> Value:
        below = [self._values[id(one)].grid for one in _leaves(root)]
        return Value(text, root, dims, grid.mixed(self.program.draw, *below))

    def size(self, name: str, cpu: int, cuda: int | None = None) -> int:
        """Set a constant, by default the same for both devices; return its GPU value."""
        self.program.size(name, cpu, cpu if cuda is None else cuda)
        return cpu if cuda is None else cuda

    def rows(self, name: str, cpu: float, cuda: float, *, least: int = 1) -> None:
        """Set a constant to usual sizes near the targets of both devices."""
        self.size(name, *(self._usual(wanted, least) for wanted in (cpu, cuda)))

    def _usual(self, wanted: float, least: int) -> int:
        if wanted < _SMALL:
            return max(least, round(wanted))
        above = max(0, round(math.log2(wanted / _LARGE)))  # the table of sizes ends at _LARGE
        return near(self.draw, wanted / 2**above, odd=0.0) << above

    def moved_elements(self, *, half: float = 1.0, single: float = 1.0) -> float:
        """Return the number of elements of all tensors of a memory-bound block on a GPU.

        Args:
            half: Share of the usual number in half precision; small for references with much intermediate traffic.
            single: The same in single precision.
        """
        return self.draw.one(_MOVED_GB) * (half if self.half else single) * 1e9 / self.item_bytes


def _leaves(root: Node) -> Iterator[Node]:
    """Yield each leaf below once."""
    seen: set[int] = set()
    waiting: list[Node] = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if one.operator in LEAVES:
            yield one
        waiting.extend(one.operands)


def chosen(draw: Draw, options: Sequence[str], weights: Sequence[int]) -> str:
    """Return one of the options, drawn in proportion to their weights."""
    return draw.one([option for option, weight in zip(options, weights, strict=True) for _ in range(weight)])
