"""Kernels in Triton: a tile of elements, or tiles of whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep
from cudal1_data.kernelgen.ir import Node
from cudal1_data.operators import device_text

_MOST_TILE = 65536
"""Elements of a tile of rows: above, registers run out."""
IDENTITY = {"sum": "0.0", "max": '-float("inf")', "min": 'float("inf")'}


@dataclass(frozen=True)
class TritonKernel:
    """The text of a kernel."""

    definition: str
    """The kernel itself."""
    call: str
    """The line that runs it, `{args}` standing for its tensors."""


def triton_head(definitions: Sequence[str]) -> str:
    """Return the imports that kernels need."""
    device = "from triton.language.extra import libdevice\n" if any("libdevice." in one for one in definitions) else ""
    return f"import triton\nimport triton.language as tl\n{device}"


def triton_kernel(kernel: Kernel, name: str, *, block: int, warps: int, stages: int, rows: int) -> TritonKernel:
    """Write a kernel.

    Args:
        kernel: What it computes.
        name: Its name.
        block: Elements of a program, where there are no rows.
        warps: Warps of a program.
        stages: Stages of loads.
        rows: Rows of a program.

    Raises:
        UnsuitableError: A tile of whole rows would be too large, or a tensor is.
    """
    kernel.check_places()
    writer = TileWriter(kernel)
    tile = 1 << max(kernel.cols - 1, 1).bit_length() if kernel.trailing else block
    if kernel.trailing and rows * tile > _MOST_TILE:
        raise UnsuitableError(f"expected tiles of up to {_MOST_TILE} elements, got {rows} x {tile}")
    ins = [f"in{place}" for place in range(len(kernel.leaves))]
    outs = [f"out{place}" for place in range(len(kernel.outputs))]
    lines = writer.begin()
    body = writer.body()
    text = ["@triton.jit", f"def {name}({', '.join([*ins, *outs])}, ROWS: tl.constexpr, BLOCK: tl.constexpr):"]
    text += [f"    {line}" for line in (*lines, *body)]
    programs = -(-kernel.rows // rows) if kernel.trailing else -(-kernel.size // block)
    tuned = f"ROWS={rows}, BLOCK={tile}, num_warps={warps}, num_stages={stages}"
    return TritonKernel("\n".join(text) + "\n", f"{name}[({programs},)]({{args}}, {tuned})")


def triton_loop(step: LoopStep, name: str, *, block: int, warps: int, stages: int) -> TritonKernel:
    """Write a kernel in which a program goes over all steps of a loop for a tile of elements.

    Args:
        step: The loop.
        name: Its name.
        block: Elements of a program.
        warps: Warps of a program.
        stages: Stages of loads.

    Raises:
        UnsuitableError: A step needs more of the one before than the element at its own place, or has too many of them.
    """
    if step.whole is None:
        raise UnsuitableError("expected a loop whose elements do not need each other")
    loop, kernel = step.loop, step.whole
    kernel.check_places(*step.kept_dims)
    writer = TileWriter(kernel)
    begin = writer.begin()
    for place, leaf in enumerate(kernel.leaves):
        if any(leaf is state for state in loop.states):
            number = next(number for number, state in enumerate(loop.states) if state is leaf)
            begin.append(f"state{number} = tl.load(in{place} + place, mask=inside, other=0.0)")
            writer.names[id(leaf), False] = f"state{number}"
    for node in step.invariant:
        writer.value(node, False)
    begin += writer.lines
    writer.lines = []
    for leaf in kernel.leaves:
        if leaf.strides:
            writer.paces[id(leaf)] = f" + step * {leaf.pace}"
    nexts = [f"state{number} = {writer.value(node, False)}" for number, node in enumerate(loop.nexts)]
    stores = [
        f"tl.store(out{number} + {where.replace(' / ', ' // ')}, {writer.value(node, False)}, mask=inside)"
        for number, (node, where) in enumerate(zip(loop.kept, step.places("place", "turn"), strict=True))
    ]
    final = [
        f"tl.store(out{len(stores) + place} + place, state{number}, mask=inside)"
        for place, number in enumerate(step.finals)
    ]
    body = [f"step = {loop.steps.start} + turn * {loop.steps.step}", *writer.lines, *stores, *nexts]
    lines = [*begin, f"for turn in range({len(loop.steps)}):", *(f"    {line}" for line in body), *final]
    names = [f"in{place}" for place in range(len(kernel.leaves))]
    names += [f"out{place}" for place in range(len(stores) + len(final))]
    head = f"@triton.jit\ndef {name}({', '.join(names)}, BLOCK: tl.constexpr):\n"
    call = f"{name}[({-(-kernel.size // block)},)]({{args}}, BLOCK={block}, num_warps={warps}, num_stages={stages})"
    return TritonKernel(head + "".join(f"    {line}\n" for line in lines), call)


class TileWriter:
    """Writes the values of a tile, line by line."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[tuple[int, bool], str] = {}
        self.lines: list[str] = []
        self.paces: dict[int, str] = {}
        """By `id` of a leaf what is added to its places."""
        self.members = {id(node) for node in kernel.members}
        self.stem = "in"
        """How parameters that it reads are called."""

    def begin(self) -> list[str]:
        """Return the lines that say which elements a program has."""
        if not self.kernel.trailing:
            return [
                "place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                f"inside = place < {self.kernel.size}",
            ]
        return [
            "row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]",
            "col = tl.arange(0, BLOCK)[None, :]",
            f"there = row < {self.kernel.rows}",
            f"inside = there & (col < {self.kernel.cols})",
            f"place = row * {self.kernel.cols} + col",
        ]

    def body(self) -> list[str]:
        """Return the lines that compute and store."""
        for place, node in enumerate(self.kernel.outputs):
            lost = id(node) in self.kernel.squeezed
            value = self.value(node, lost)
            by_row = self.kernel.by_row(node, lost)
            where = self._offset(node, lost)
            self.lines.append(f"tl.store(out{place} + {where}, {value}, mask={'there' if by_row else 'inside'})")
        return self.lines

    def value(self, node: Node, aligned: bool) -> str:
        """Return the name of a node's value; its lines are written before."""
        key = (id(node), aligned)
        if key not in self.names:
            text = self._text(node, aligned)
            self.names[key] = f"v{len(self.names)}"
            self.lines.append(f"{self.names[key]} = {text}")
        return self.names[key]

    def _text(self, node: Node, aligned: bool) -> str:
        if any(node is leaf for leaf in self.kernel.leaves):
            return self._load(node, aligned)
        if node.kind == "count":
            return f"({self._offset(node, aligned)}).to(tl.float32)"
        if node.kind == "pointwise":
            args = tuple(self.value(one, aligned) for one in node.operands)
            return device_text(node.expression, "triton", args)
        value = self.value(node.operands[0], False)
        if node.kind == "scan":
            return f"tl.cumsum(tl.where(inside, {value}, 0.0), 1)"
        return f"tl.{node.how}(tl.where(inside, {value}, {IDENTITY[node.how]}), 1)[:, None]"

    def _load(self, node: Node, aligned: bool) -> str:
        place = next(number for number, leaf in enumerate(self.kernel.leaves) if leaf is node)
        mask = "there" if self.kernel.by_row(node, aligned) else "inside"
        load = f"tl.load({self.stem}{place} + {self._offset(node, aligned)}, mask={mask}, other=0.0)"
        if node.dtype == "bool":
            return load.replace("other=0.0", "other=0") + ".to(tl.float32)"
        return load if node.dtype == "float32" else load + ".to(tl.float32)"

    def _offset(self, node: Node, aligned: bool) -> str:
        text = self.kernel.offset(node, aligned, place="place", row="row", col="col").replace(" / ", " // ")
        blank = "row * 0" if self.kernel.by_row(node, aligned) else "place * 0"
        return (blank if text == "0" else text) + self.paces.get(id(node), "")
