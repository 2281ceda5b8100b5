"""Shared parts of kernels in CUDA C++: reads and writes of elements, and a kernel's whole text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.codegen.naming import Constants, Names, stem
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, table_offset
from cudal1_data.kernelgen.ir import HALVES, Node
from cudal1_data.operators import device_text

TYPES = {
    "float32": "float",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
    "bool": "unsigned char",
    "int64": "long long",
}
"""C type of each dtype's elements."""
READS = {
    "float32": "{0}",
    "bool": "({0} ? 1.0f : 0.0f)",
    "int64": "((float){0})",
    "float16": "half_to_float({0})",
    "bfloat16": "__uint_as_float(((unsigned int){0}) << 16)",
}
_HALF = """__device__ __forceinline__ float half_to_float(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
"""
_WRAPPED = """__device__ __forceinline__ long long wrapped(long long place, long long size) {
    return place < 0 ? place + size : place;
}
"""
STORES = {
    "float16": """__device__ __forceinline__ unsigned short to_float16(float f) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
""",
    "bfloat16": """__device__ __forceinline__ unsigned short to_bfloat16(float f) {
    unsigned short h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
""",
}


@dataclass(frozen=True)
class Share:
    """Work divided among blocks."""

    count: int
    """Total number of elements, rows or columns."""
    per_block: int
    """Number of these per block."""
    per_text: str = ""
    """Text of `per_block` in a program, if not the number."""


@dataclass(frozen=True)
class CudaKernel:
    """The text of a kernel."""

    definition: str
    """Helpers and kernel, without the sizes that it names."""
    name: str
    """Its name."""
    grid: tuple[Share, ...]
    """Work of its blocks: elements, rows, or rows and columns of tiles. The numbers of blocks are multiplied."""
    block: tuple[int, int, int]
    """Threads of a block."""
    parameters: tuple[str, ...]
    """Types of its pointers, inputs first."""
    constants: dict[str, str]
    """Sizes that it names, with their Python expressions."""
    comment: str
    """Its description, in a sentence."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(-(-int(one.count) // one.per_block) for one in self.grid)


def wide_type(dtype: str, vector: int) -> str:
    """Return the type of several elements read at once."""
    return f"{'float' if dtype == 'float32' else 'ushort'}{vector}"


def stored(value: str, dtype: str) -> str:
    """Return a value's text as an element of a dtype."""
    if dtype == "int64":
        return f"(long long){value}"
    return value if dtype == "float32" else f"to_{dtype}({value})"


def whole_kernel(
    writer: Writer,
    name: str,
    lines: list[str],
    grid: tuple[Share, ...],
    block: tuple[int, int, int],
    *,
    comment: str,
    helpers: str = "",
    inputs: Sequence[tuple[str, str]] = (),
) -> CudaKernel:
    """Return a kernel made from its lines.

    Args:
        writer: Writer of the lines.
        name: Its name.
        lines: Its body.
        grid: Work of its blocks.
        block: Threads of a block.
        comment: Its description, in a sentence.
        helpers: Functions and constants that it needs.
        inputs: Names and dtypes of the tensors that it reads, if not the leaves.

    Raises:
        UnsuitableError: An input has a dtype that is not in `TYPES`.
    """
    kernel = writer.kernel
    given = list(inputs) or [(writer.known.pointer(leaf), leaf.dtype) for leaf in kernel.leaves]
    for pointer, dtype in given:
        if dtype not in TYPES:
            raise UnsuitableError(f"kernels read floats and masks; {pointer} holds {dtype}")
    kinds = [f"const {TYPES[dtype]}*" for _, dtype in given] + [f"{TYPES[node.dtype]}*" for node in kernel.outputs]
    names = [*(pointer for pointer, _ in given), *writer.known.outputs(len(kernel.outputs))]
    parameters = ", ".join(f"{kind} __restrict__ {one}" for kind, one in zip(kinds, names, strict=True))
    half = _HALF if any(dtype == "float16" for _, dtype in given) else ""
    half += "".join(STORES[kind] for kind in HALVES if any(node.dtype == kind for node in kernel.outputs))
    threads = block[0] * block[1]
    eights = {f"{kind}8": kind.replace("ushort", "unsigned short") for kind in ("float", "ushort")}
    body = "\n".join(lines)
    packs = "".join(
        f"struct __align__(16) {name} {{ {kind} part[8]; }};\n" for name, kind in eights.items() if f"{name} " in body
    )
    packs += _WRAPPED if "wrapped(" in body else ""
    shapes = "" if inputs else f"// {writer.known.shapes(kernel)}\n"
    text = f'extern "C" {{\n{packs}{half}{helpers}// {comment}\n{shapes}'
    bounds = f"{block[0]} * {block[1]}" if block[1] > 1 else str(threads)
    text += f"__global__ void __launch_bounds__({bounds}) {name}({parameters}) {{\n"
    text += "".join(f"{line}\n" if line.startswith("#") else f"    {line}\n" for line in lines) + "}\n}\n"
    constants = writer.constants.within(text)
    return CudaKernel(text, name, grid, block, tuple(kinds), constants, comment)


class Writer:
    """Writer of single elements' values."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[tuple[int, bool], str] = {}
        self.lines: list[str] = []
        self.vectors: dict[int, str] = {}
        self.known = Names()
        self.constants = Constants(kernel)

    def value(self, node: Node, aligned: bool) -> str:
        """Return the name of a node's value, after writing its lines."""
        key = (id(node), aligned)
        if key not in self.names:
            text = self.text(node, aligned)
            if node.kind == "pointwise" and text.isidentifier():  # a cast of a named value
                self.names[key] = text
                return text
            self.names[key] = self.known.fresh(stem(node))
            self.lines.append(f"const float {self.names[key]} = {text};")
        return self.names[key]

    def text(self, node: Node, aligned: bool) -> str:
        """Return the text of a node's value."""
        if any(node is leaf for leaf in self.kernel.leaves):
            return self.load(node, aligned)
        if node.kind == "count":
            return self.count(node, aligned)
        if node.kind == "gather":
            return self.looked_up(node, aligned)
        args = tuple(self.value(one, aligned) for one in node.operands)
        return device_text(node.expression, "cuda", args)

    def count(self, node: Node, aligned: bool) -> str:
        """Return an element's place along an axis."""
        return f"(float)({self.where(node, aligned)})"

    def where(self, node: Node, aligned: bool) -> str:
        """Return the offset of an element."""
        return self.kernel.offset(node, aligned, place="i", row="row", col="col")

    def looked_up(self, node: Node, aligned: bool) -> str:
        """Return the text that reads a table."""
        table, index, *counts = node.operands
        place = f"{self.known.pointer(index)}[{self.where(index, aligned)}]"
        place = f"wrapped({place}, {node.wraps})" if node.wraps else place
        where = table_offset(node, (place, *(self.where(one, aligned) for one in counts)))
        return READS[node.dtype].format(f"{self.known.pointer(table)}[{where}]")

    def load_vector(self, leaf: Node, vector: int, place: str, condition: str = "") -> str:
        """Return the line that reads several elements; `load` then returns the one at index `part`."""
        pointer, wide = self.known.pointer(leaf), wide_type(leaf.dtype, vector)
        name = f"{pointer.removesuffix('ptr')}x{vector}"
        element = f"reinterpret_cast<const {TYPES[leaf.dtype]}*>(&{name})[part]"
        self.vectors[id(leaf)] = READS[leaf.dtype].format(element)
        read = f"reinterpret_cast<const {wide}*>({pointer})[{place}]"
        return f"const {wide} {name} = {f'{condition} ? {read} : {wide}{{}}' if condition else read};"

    def load(self, leaf: Node, aligned: bool) -> str:
        """Return the text that reads an element."""
        if id(leaf) in self.vectors:
            return self.vectors[id(leaf)]
        where = self.where(leaf, aligned)
        if leaf.dtype not in READS:
            raise UnsuitableError(f"kernels read floats and masks; {self.known.pointer(leaf)} holds {leaf.dtype}")
        return READS[leaf.dtype].format(f"{self.known.pointer(leaf)}[{where}]")
