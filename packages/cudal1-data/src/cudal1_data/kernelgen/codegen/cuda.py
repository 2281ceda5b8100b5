"""Kernels in CUDA C++: a thread for some elements, or a block or warp for each row.

No header is included, so that NVRTC builds them in a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep
from cudal1_data.kernelgen.ir import Node
from cudal1_data.operators import device_text

TYPES = {"float32": "float", "float16": "unsigned short", "bfloat16": "unsigned short", "bool": "unsigned char"}
"""How elements of each dtype are read."""
_READS = {
    "float32": "{0}",
    "bool": "({0} ? 1.0f : 0.0f)",
    "float16": "half_to_float({0})",
    "bfloat16": "__uint_as_float(((unsigned int){0}) << 16)",
}
_HALF = """__device__ __forceinline__ float half_to_float(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
"""
_JOIN = {"sum": "{0} + {1}", "max": "fmaxf({0}, {1})", "min": "fminf({0}, {1})"}
_IDENTITY = {"sum": "0.0f", "max": "(-1.0f / 0.0f)", "min": "(1.0f / 0.0f)"}


@dataclass(frozen=True)
class CudaKernel:
    """The text of a kernel."""

    definition: str
    """Helpers and kernel."""
    name: str
    """Its name."""
    grid: tuple[int, int, int]
    """Blocks."""
    block: tuple[int, int, int]
    """Threads of a block."""
    parameters: tuple[str, ...]
    """Types of its pointers, inputs first."""


def pointwise_kernel(kernel: Kernel, name: str, *, threads: int, vector: int) -> CudaKernel:
    """Write a kernel without rows.

    Args:
        kernel: What it computes.
        name: Its name.
        threads: Threads of a block.
        vector: Elements of a thread; float32 tensors of the whole shape are read and written so many at once.

    Raises:
        UnsuitableError: The vector does not divide the number of elements, or a tensor is too large.
    """
    if kernel.trailing or kernel.size % vector:
        raise UnsuitableError(f"expected elements without rows that {vector} divides, got {kernel.domain}")
    kernel.check_places()
    writer = _Writer(kernel)
    wide = vector > 1
    before: list[str] = []
    for place, leaf in enumerate(kernel.leaves):
        if wide and leaf.dims == kernel.domain and leaf.dtype == "float32" and not leaf.strides:
            before.append(f"const float{vector} wide{place} = reinterpret_cast<const float{vector}*>(in{place})[item];")
            writer.vectors[id(leaf)] = f"reinterpret_cast<const float*>(&wide{place})[part]"
    stores: list[str] = []
    for place, node in enumerate(kernel.outputs):
        value = writer.value(node, False)
        stores.append(
            f"reinterpret_cast<float*>(&made{place})[part] = {value};" if wide else f"out{place}[i] = {value};"
        )
    after = [f"reinterpret_cast<float{vector}*>(out{place})[item] = made{place};" for place in range(len(stores))]
    made = [f"float{vector} made{place};" for place in range(len(stores))]
    total = kernel.size // vector
    lines = [
        f"const unsigned int item = blockIdx.x * {threads}u + threadIdx.x;",
        f"if (item >= {total}u) return;",
        *before,
        *(made if wide else []),
        "#pragma unroll",
        f"for (unsigned int part = 0; part < {vector}u; ++part) {{",
        f"    const unsigned int i = item * {vector}u + part;",
        *(f"    {line}" for line in (*writer.lines, *stores)),
        "}",
        *(after if wide else []),
    ]
    return _whole(kernel, name, lines, (-(-total // threads), 1, 1), (threads, 1, 1), helpers="")


def row_kernel(kernel: Kernel, name: str, *, threads: int, per_block: int, unroll: int) -> CudaKernel:
    """Write a kernel in which a block, or a warp, computes a row.

    Args:
        kernel: What it computes.
        name: Its name.
        threads: Threads of a row; 32 for a warp.
        per_block: Rows of a block; more than one for warps only.
        unroll: Steps of a row's loops that are unrolled.

    Raises:
        UnsuitableError: The kernel has no rows, or a tensor is too large.
    """
    if not kernel.trailing or (per_block > 1 and threads != 32):
        raise UnsuitableError("expected rows, and several of them in a block for warps only")
    kernel.check_places()
    lines = _RowWriter(kernel, threads, unroll).write()
    begin = [
        f"const unsigned int lane = threadIdx.x, row = blockIdx.x * {per_block}u + threadIdx.y;",
        f"if (row >= {kernel.rows}u) return;",
    ]
    kinds = sorted({node.how for node in kernel.members if node.kind == "reduce"})
    helpers = "".join(_reduction(kind, threads) for kind in kinds) + (_scan(threads) if kernel.scans else "")
    grid = (-(-kernel.rows // per_block), 1, 1)
    return _whole(kernel, name, [*begin, *lines], grid, (threads, per_block, 1), helpers=helpers)


def loop_kernel(step: LoopStep, name: str, *, threads: int, unroll: int) -> CudaKernel:
    """Write a kernel in which a thread goes over all steps of a loop for one element.

    Args:
        step: The loop.
        name: Its name.
        threads: Threads of a block.
        unroll: Steps that are unrolled.

    Raises:
        UnsuitableError: A step needs more of the one before than the element at its own place, or has too many of them.
    """
    if step.whole is None:
        raise UnsuitableError("expected a loop whose elements do not need each other")
    loop, kernel = step.loop, step.whole
    kernel.check_places(*step.kept_dims)
    writer = _Writer(kernel)
    for number, state in enumerate(loop.states):
        writer.vectors[id(state)] = f"state{number}"
    begin = [
        f"float state{number} = {_READS[state.dtype].format(f'in{place}[i]')};"
        for number, state in enumerate(loop.states)
        for place, leaf in enumerate(kernel.leaves)
        if leaf is state
    ]
    for place, leaf in enumerate(kernel.leaves):
        if leaf.strides:
            where = kernel.offset(leaf, False, place="i", row="row", col="col")
            writer.vectors[id(leaf)] = _READS[leaf.dtype].format(f"in{place}[{where} + step * {leaf.pace}u]")
    for node in step.invariant:
        writer.value(node, False)
    begin += writer.lines
    writer.lines = []
    nexts = [f"state{number} = {writer.value(node, False)};" for number, node in enumerate(loop.nexts)]
    stores = [
        f"out{number}[{where}] = {writer.value(node, False)};"
        for number, (node, where) in enumerate(zip(loop.kept, step.places("i", "turn"), strict=True))
    ]
    final = [f"out{len(loop.kept) + place}[i] = state{number};" for place, number in enumerate(step.finals)]
    lines = [
        f"const unsigned int i = blockIdx.x * {threads}u + threadIdx.x;",
        f"if (i >= {kernel.size}u) return;",
        *begin,
        f"#pragma unroll {unroll}",
        f"for (unsigned int turn = 0; turn < {len(loop.steps)}u; ++turn) {{",
        f"    const unsigned int step = {loop.steps.start}u + turn * {loop.steps.step}u;",
        *(f"    {line}" for line in (*writer.lines, *stores, *nexts)),
        "}",
        *final,
    ]
    outputs = (*loop.kept, *(loop.nexts[number] for number in step.finals))
    grid = (-(-kernel.size // threads), 1, 1)
    return _whole(replace(kernel, outputs=outputs), name, lines, grid, (threads, 1, 1), helpers="")


def _whole(
    kernel: Kernel, name: str, lines: list[str], grid: tuple[int, int, int], block: tuple[int, int, int], helpers: str
) -> CudaKernel:
    for leaf in kernel.leaves:
        if leaf.dtype not in TYPES:
            raise UnsuitableError(f"expected floats and masks as inputs of kernels, got {leaf.dtype}")
    inputs = [f"const {TYPES[leaf.dtype]}*" for leaf in kernel.leaves]
    outputs = ["float*"] * len(kernel.outputs)
    names = [f"in{place}" for place in range(len(inputs))] + [f"out{place}" for place in range(len(outputs))]
    parameters = ", ".join(f"{kind} __restrict__ {one}" for kind, one in zip(inputs + outputs, names, strict=True))
    half = _HALF if any(leaf.dtype == "float16" for leaf in kernel.leaves) else ""
    threads = block[0] * block[1]
    text = f'extern "C" {{\n{half}{helpers}__global__ void __launch_bounds__({threads}) {name}({parameters}) {{\n'
    text += "".join(f"{line}\n" if line.startswith("#") else f"    {line}\n" for line in lines) + "}\n}\n"
    return CudaKernel(text, name, grid, block, (*inputs, *outputs))


class _Writer:
    """Writes values of single elements."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[tuple[int, bool], str] = {}
        self.lines: list[str] = []
        self.vectors: dict[int, str] = {}

    def value(self, node: Node, aligned: bool) -> str:
        key = (id(node), aligned)
        if key not in self.names:
            text = self.text(node, aligned)
            self.names[key] = f"v{len(self.names)}"
            self.lines.append(f"const float {self.names[key]} = {text};")
        return self.names[key]

    def text(self, node: Node, aligned: bool) -> str:
        if any(node is leaf for leaf in self.kernel.leaves):
            return self.load(node, aligned)
        if node.kind == "count":
            return self.count(node, aligned)
        args = tuple(self.value(one, aligned) for one in node.operands)
        return device_text(node.expression, "cuda", args)

    def count(self, node: Node, aligned: bool) -> str:
        return f"(float)({self.kernel.offset(node, aligned, place='i', row='row', col='col')})"

    def load(self, leaf: Node, aligned: bool) -> str:
        if id(leaf) in self.vectors:
            return self.vectors[id(leaf)]
        number = next(place for place, one in enumerate(self.kernel.leaves) if one is leaf)
        where = self.kernel.offset(leaf, aligned, place="i", row="row", col="col")
        if leaf.dtype not in _READS:
            raise UnsuitableError(f"expected floats and masks as inputs of kernels, got {leaf.dtype}")
        return _READS[leaf.dtype].format(f"in{number}[{where}]")


@dataclass
class _RowWriter:
    """Writes a row: a loop for each stage of reductions, values between the loops, and a loop that stores."""

    kernel: Kernel
    threads: int
    unroll: int
    lines: list[str] = field(default_factory=list[str])
    outer: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    inner: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    body: list[str] = field(default_factory=list[str])
    count: int = 0

    def write(self) -> list[str]:
        reductions = [node for node in self.kernel.members if node.kind == "reduce"]
        stages = {id(node): self._stage(node) for node in reductions}
        for stage in range(1, max(stages.values(), default=0) + 1):
            self._reduce([node for node in reductions if stages[id(node)] == stage])
        self._store()
        return self.lines

    def _stage(self, node: Node) -> int:
        below = max((self._stage(one) for one in node.operands if not self._read(one)), default=0)
        return below + (node.kind == "reduce")

    def _read(self, node: Node) -> bool:
        return any(node is leaf for leaf in self.kernel.leaves)

    def _reduce(self, nodes: list[Node]) -> None:
        self.inner, self.body = {}, []
        begin: list[str] = []
        for node in nodes:
            name = self._name("sum")
            # Both forms: a reduction that keeps its axes and one that loses them are the same number.
            self.outer[id(node), False] = self.outer[id(node), True] = name
            begin.append(f"float {name} = {_IDENTITY[node.how]};")
            value = self.value(node.operands[0], False)
            self.body.append(f"if (inside) {name} = {_JOIN[node.how].format(name, value)};")
        self.lines += begin
        self._loop()
        self.lines += [
            f"{self.outer[id(node), False]} = row_{node.how}({self.outer[id(node), False]});" for node in nodes
        ]

    def _store(self) -> None:
        self.inner, self.body = {}, []
        alone: list[str] = []
        for place, node in enumerate(self.kernel.outputs):
            lost = id(node) in self.kernel.squeezed
            where = self.kernel.offset(node, lost, place="i", row="row", col="col")
            value = self.value(node, lost)
            if self.kernel.by_row(node, lost):
                alone.append(f"if (lane == 0) out{place}[{where}] = {value};")
            else:
                self.body.append(f"if (inside) out{place}[{where}] = {value};")
        if self.body:
            self._loop()
        self.lines += alone

    def _loop(self) -> None:
        self.lines += [
            f"#pragma unroll {self.unroll}",
            f"for (unsigned int start = 0; start < {self.kernel.cols}u; start += {self.threads}u) {{",
            "    const unsigned int col = start + lane;",
            f"    const bool inside = col < {self.kernel.cols}u;",
            f"    const unsigned int i = row * {self.kernel.cols}u + col;",
            *(f"    {line}" for line in self.body),
            "}",
        ]

    def _name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def value(self, node: Node, aligned: bool) -> str:
        key = (id(node), aligned)
        if key in self.outer:
            return self.outer[key]
        if key in self.inner:
            return self.inner[key]
        by_row = self._by_row(node, aligned)
        text = self._text(node, aligned, by_row)
        known, lines = (self.outer, self.lines) if by_row else (self.inner, self.body)
        known[key] = self._name("v")
        lines.append(f"const float {known[key]} = {text};")
        return known[key]

    def _by_row(self, node: Node, aligned: bool) -> bool:
        return self.kernel.by_row(node, aligned)

    def _text(self, node: Node, aligned: bool, by_row: bool) -> str:
        if self._read(node):
            load = _Writer(self.kernel).load(node, aligned)
            return load if by_row else f"inside ? {load} : 0.0f"
        if node.kind == "count":
            return _Writer(self.kernel).count(node, aligned)
        if node.kind == "scan":
            carry = self._name("carry")
            self.lines.append(f"float {carry} = 0.0f;")
            value = self.value(node.operands[0], False)
            return f"row_scan(inside ? {value} : 0.0f, {carry})"
        args = tuple(self.value(one, aligned) for one in node.operands)
        return device_text(node.expression, "cuda", args)


def _reduction(how: str, threads: int) -> str:
    join = _JOIN[how].format("x", "__shfl_xor_sync(0xffffffffu, x, step)")
    warp = f"""#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = {join};
"""
    if threads == 32:
        return f"__device__ __forceinline__ float row_{how}(float x) {{\n{warp}    return x;\n}}\n"
    warps = threads // 32
    return f"""__device__ __forceinline__ float row_{how}(float x) {{
    __shared__ float parts[{warps}];
{warp}    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float whole = parts[0];
#pragma unroll
    for (int part = 1; part < {warps}; ++part) whole = {_JOIN[how].format("whole", "parts[part]")};
    return whole;
}}
"""


def _scan(threads: int) -> str:
    warp = """    const unsigned int place = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const float other = __shfl_up_sync(0xffffffffu, x, step);
        if (place >= step) x += other;
    }
"""
    head = "__device__ __forceinline__ float row_scan(float x, float& carry) {\n"
    if threads == 32:
        last = "    x += carry;\n    carry = __shfl_sync(0xffffffffu, x, 31);\n    return x;\n}\n"
        return head + warp + last
    warps = threads // 32
    return f"""{head}    __shared__ float ends[{warps}];
{warp}    __syncthreads();
    if (place == 31) ends[threadIdx.x / 32] = x;
    __syncthreads();
    float before = carry, whole = carry;
#pragma unroll
    for (int part = 0; part < {warps}; ++part) {{
        if (part < threadIdx.x / 32) before += ends[part];
        whole += ends[part];
    }}
    carry = whole;
    return x + before;
}}
"""
