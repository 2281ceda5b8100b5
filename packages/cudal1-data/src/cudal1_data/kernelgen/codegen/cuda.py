"""Kernels in CUDA C++: a thread for some elements, or a block or warp for each row.

No header is included, so that NVRTC builds them in a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cudal1_data.kernelgen.codegen.naming import Constants, Names, stem
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep
from cudal1_data.kernelgen.ir import FLOATS, HALVES, Node
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
_STORES = {
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
_JOIN = {"sum": "{0} + {1}", "max": "fmaxf({0}, {1})", "min": "fminf({0}, {1})"}
_MAX_HELD = 32
"""Elements of a row that a thread keeps in registers."""
_IDENTITY = {"sum": "0.0f", "max": "(-1.0f / 0.0f)", "min": "(1.0f / 0.0f)"}


@dataclass(frozen=True)
class CudaKernel:
    """The text of a kernel."""

    definition: str
    """Helpers and kernel, without the sizes that it names."""
    name: str
    """Its name."""
    count: int
    """What its blocks share: elements or rows."""
    per_block: int
    """How many of these a block has."""
    block: tuple[int, int, int]
    """Threads of a block."""
    parameters: tuple[str, ...]
    """Types of its pointers, inputs first."""
    constants: dict[str, str]
    """Sizes that it names, with how Python writes them."""
    comment: str
    """What it does, in a sentence."""
    per_text: str
    """`per_block` as a program writes it."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-int(self.count) // self.per_block)


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
    before: list[str] = []
    for leaf in kernel.leaves:
        if vector > 1 and leaf.dims == kernel.domain and leaf.dtype in FLOATS and not leaf.strides:
            before.append(writer.load_vector(leaf, vector, "item"))
    stores, made, after = list[str](), list[str](), list[str]()
    outs = writer.known.outputs(len(kernel.outputs))
    for place, node in enumerate(kernel.outputs):
        value = stored(writer.value(node, False), node.dtype)
        if vector > 1:
            wide = _wide(node.dtype, vector)
            stores.append(f"reinterpret_cast<{TYPES[node.dtype]}*>(&made{place})[part] = {value};")
            made.append(f"{wide} made{place};")
            after.append(f"reinterpret_cast<{wide}*>({outs[place]})[item] = made{place};")
        else:
            stores.append(f"{outs[place]}[i] = {value};")
    size = writer.constants.name("SIZE", kernel.size)
    lines = [
        f"const unsigned int item = blockIdx.x * {threads}u + threadIdx.x;",
        f"if (item >= {size} / {vector}) return;" if vector > 1 else f"if (item >= {size}) return;",
        *before,
        *made,
        "#pragma unroll",
        f"for (unsigned int part = 0; part < {vector}u; ++part) {{",
        f"    const unsigned int i = item * {vector}u + part;",
        *(f"    {line}" for line in (*writer.lines, *stores)),
        "}",
        *after,
    ]
    comment = "All operators are fused: each element is read once and written once."
    comment += f" A thread moves {vector} elements at once." if vector > 1 else ""
    per_text = f"{threads} * {vector}" if vector > 1 else ""
    block = (threads, 1, 1)
    return _whole(writer, name, lines, kernel.size, threads * vector, block, comment=comment, per_text=per_text)


def row_kernel(kernel: Kernel, name: str, *, threads: int, per_block: int, unroll: int, vector: int = 1) -> CudaKernel:
    """Write a kernel in which a block, or a warp, computes a row.

    Rows along an axis that is not the last in memory go to threads one by one, so that neighbours read neighbours.

    Args:
        kernel: What it computes.
        name: Its name.
        threads: Threads of a row; 32 for a warp.
        per_block: Rows of a block; more than one for warps only.
        unroll: Steps of a row's loops that are unrolled.
        vector: With more than 1, elements that a thread reads at once of a row that then stays in registers, if those
            suffice.

    Raises:
        UnsuitableError: The kernel has no rows, or a tensor is too large.
    """
    if not kernel.trailing or (per_block > 1 and threads != 32):
        raise UnsuitableError("expected rows, and several of them in a block for warps only")
    kernel.check_places()
    if any(leaf.strides for leaf in kernel.leaves):
        return _column_kernel(kernel, name, lanes=max(4, threads // 32), unroll=unroll)
    writer = _RowWriter(_Writer(kernel), threads, unroll, vector if holds(kernel, threads, vector) else 1)
    lines = writer.write()
    begin = [
        f"const unsigned int lane = threadIdx.x, row = blockIdx.x * {per_block}u + threadIdx.y;",
        f"if (row >= {writer.rows}) return;",
    ]
    kinds = sorted({node.how for node in kernel.members if node.kind == "reduce"})
    helpers = "".join(_reduction(kind, threads) for kind in kinds) + (_scan(threads) if kernel.scans else "")
    comment = f"A {'warp' if threads == 32 else 'block'} computes a row: threads join what they reduced by shuffles."
    if writer.vector > 1:
        comment += f" The row stays in registers: each element is read once, {vector} at a time."
    block = (threads, per_block, 1)
    return _whole(
        writer.text_of, name, [*begin, *lines], kernel.rows, per_block, block, helpers=helpers, comment=comment
    )


def holds(kernel: Kernel, threads: int, vector: int) -> bool:
    """Whether threads can keep a row in registers, each some vectors of it."""
    each = -(-int(kernel.cols) // (threads * vector)) * vector
    return vector > 1 and not kernel.scans and int(kernel.cols) % vector == 0 and each <= _MAX_HELD


def _column_kernel(kernel: Kernel, name: str, *, lanes: int, unroll: int) -> CudaKernel:
    writer = _RowWriter(_Writer(kernel), lanes, unroll, 1)
    lines = writer.write()
    begin = [
        "const unsigned int lane = threadIdx.y, mine = blockIdx.x * 32u + threadIdx.x;",
        f"const unsigned int row = mine < {writer.rows} ? mine : {writer.rows} - 1;",
    ]
    kinds = sorted({node.how for node in kernel.members if node.kind == "reduce"})
    helpers = "".join(_reduction_of_columns(kind, lanes) for kind in kinds)
    comment = "Neighbouring threads take neighbouring rows, which lie side by side in memory; lanes share a row."
    return _whole(
        writer.text_of, name, [*begin, *lines], kernel.rows, 32, (32, lanes, 1), helpers=helpers, comment=comment
    )


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
        f"float state{number} = {_READS[state.dtype].format(f'{writer.known.pointer(leaf)}[i]')};"
        for number, state in enumerate(loop.states)
        for leaf in kernel.leaves
        if leaf is state
    ]
    for leaf in kernel.leaves:
        if leaf.strides:
            where = kernel.offset(leaf, False, place="i", row="row", col="col")
            pointer = writer.known.pointer(leaf)
            writer.vectors[id(leaf)] = _READS[leaf.dtype].format(f"{pointer}[{where} + step * {leaf.pace}]")
    for node in step.invariant:
        writer.value(node, False)
    begin += writer.lines
    writer.lines = []
    outs = writer.known.outputs(len(loop.kept) + len(step.finals))
    nexts = [f"state{number} = {writer.value(node, False)};" for number, node in enumerate(loop.nexts)]
    stores = [
        f"{out}[{where}] = {stored(writer.value(node, False), node.dtype)};"
        for out, node, where in zip(outs, loop.kept, step.places("i", "turn"), strict=False)
    ]
    final = [
        f"{out}[i] = {stored(f'state{number}', loop.states[number].dtype)};"
        for out, number in zip(outs[len(stores) :], step.finals, strict=True)
    ]
    lines = [
        f"const unsigned int i = blockIdx.x * {threads}u + threadIdx.x;",
        f"if (i >= {writer.constants.name('SIZE', kernel.size)}) return;",
        *begin,
        f"#pragma unroll {unroll}",
        f"for (unsigned int turn = 0; turn < {len(loop.steps)}u; ++turn) {{",
        f"    const unsigned int step = {loop.steps.start}u + turn * {loop.steps.step}u;",
        *(f"    {line}" for line in (*writer.lines, *stores, *nexts)),
        "}",
        *final,
    ]
    outputs = (*loop.kept, *(loop.nexts[number] for number in step.finals))
    writer.kernel = replace(kernel, outputs=outputs)
    comment = "One launch for all steps of the loop: its state stays in registers."
    return _whole(writer, name, lines, kernel.size, threads, (threads, 1, 1), comment=comment)


def _wide(dtype: str, vector: int) -> str:
    """Return the type of several elements that are read at once."""
    return f"{'float' if dtype == 'float32' else 'ushort'}{vector}"


def stored(value: str, dtype: str) -> str:
    """Return how a value is written as an element of a dtype."""
    return value if dtype == "float32" else f"to_{dtype}({value})"


def _whole(
    writer: _Writer,
    name: str,
    lines: list[str],
    count: int,
    per_block: int,
    block: tuple[int, int, int],
    *,
    comment: str,
    helpers: str = "",
    per_text: str = "",
) -> CudaKernel:
    kernel = writer.kernel
    for leaf in kernel.leaves:
        if leaf.dtype not in TYPES:
            raise UnsuitableError(f"expected floats and masks as inputs of kernels, got {leaf.dtype}")
    inputs = [f"const {TYPES[leaf.dtype]}*" for leaf in kernel.leaves]
    outputs = [f"{TYPES[node.dtype]}*" for node in kernel.outputs]
    names = [*(writer.known.pointer(leaf) for leaf in kernel.leaves), *writer.known.outputs(len(outputs))]
    parameters = ", ".join(f"{kind} __restrict__ {one}" for kind, one in zip(inputs + outputs, names, strict=True))
    half = _HALF if any(leaf.dtype == "float16" for leaf in kernel.leaves) else ""
    half += "".join(_STORES[kind] for kind in HALVES if any(node.dtype == kind for node in kernel.outputs))
    threads = block[0] * block[1]
    eights = {f"{kind}8": kind.replace("ushort", "unsigned short") for kind in ("float", "ushort")}
    body = "\n".join(lines)
    packs = "".join(
        f"struct __align__(16) {name} {{ {kind} part[8]; }};\n" for name, kind in eights.items() if f"{name} " in body
    )
    text = f'extern "C" {{\n{packs}{half}{helpers}// {comment}\n'
    bounds = f"{block[0]} * {block[1]}" if block[1] > 1 else str(threads)
    text += f"__global__ void __launch_bounds__({bounds}) {name}({parameters}) {{\n"
    text += "".join(f"{line}\n" if line.startswith("#") else f"    {line}\n" for line in lines) + "}\n}\n"
    constants = writer.constants.within(text)
    return CudaKernel(
        text, name, count, per_block, block, (*inputs, *outputs), constants, comment, per_text or str(per_block)
    )


class _Writer:
    """Writes values of single elements."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[tuple[int, bool], str] = {}
        self.lines: list[str] = []
        self.vectors: dict[int, str] = {}
        self.known = Names()
        self.constants = Constants(kernel)

    def value(self, node: Node, aligned: bool) -> str:
        key = (id(node), aligned)
        if key not in self.names:
            text = self.text(node, aligned)
            self.names[key] = self.known.fresh(stem(node))
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

    def load_vector(self, leaf: Node, vector: int, place: str, condition: str = "") -> str:
        """Return the line that reads several elements; `load` then gives the one that is called `part`."""
        pointer, wide = self.known.pointer(leaf), _wide(leaf.dtype, vector)
        name = f"{pointer.removesuffix('ptr')}x{vector}"
        element = f"reinterpret_cast<const {TYPES[leaf.dtype]}*>(&{name})[part]"
        self.vectors[id(leaf)] = _READS[leaf.dtype].format(element)
        read = f"reinterpret_cast<const {wide}*>({pointer})[{place}]"
        return f"const {wide} {name} = {f'{condition} ? {read} : {wide}{{}}' if condition else read};"

    def load(self, leaf: Node, aligned: bool) -> str:
        if id(leaf) in self.vectors:
            return self.vectors[id(leaf)]
        where = self.kernel.offset(leaf, aligned, place="i", row="row", col="col")
        if leaf.dtype not in _READS:
            raise UnsuitableError(f"expected floats and masks as inputs of kernels, got {leaf.dtype}")
        return _READS[leaf.dtype].format(f"{self.known.pointer(leaf)}[{where}]")


@dataclass
class _RowWriter:
    """Writes a row: a loop for each stage of reductions, values between the loops, and a loop that stores."""

    text_of: _Writer
    threads: int
    unroll: int
    vector: int
    """With more than 1 the row stays in registers; each step of a thread has so many elements."""
    lines: list[str] = field(default_factory=list[str])
    outer: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    inner: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    body: list[str] = field(default_factory=list[str])
    before: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])
    kept: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    """Values that a later loop needs, too, with the arrays that hold them; empty before they are computed."""

    @property
    def kernel(self) -> Kernel:
        return self.text_of.kernel

    @property
    def rows(self) -> str:
        return self.text_of.constants.name("ROWS", self.kernel.rows)

    @property
    def cols(self) -> str:
        return self.text_of.constants.name("COLS", self.kernel.cols)

    def write(self) -> list[str]:
        reductions = [node for node in self.kernel.members if node.kind == "reduce"]
        stages = {id(node): self._stage(node) for node in reductions}
        if self.vector > 1:
            self._find_kept(reductions, stages)
        for stage in range(1, max(stages.values(), default=0) + 1):
            self._reduce([node for node in reductions if stages[id(node)] == stage])
        self._store()
        return self.lines

    def _find_kept(self, reductions: list[Node], stages: dict[int, int]) -> None:
        """Find what one loop computes and a later one needs."""
        loops = [
            [(one.operands[0], False) for one in reductions if stages[id(one)] == stage]
            for stage in range(1, max(stages.values(), default=0) + 1)
        ]
        loops.append([(node, id(node) in self.kernel.squeezed) for node in self.kernel.outputs])
        done: set[tuple[int, bool]] = set()
        for wanted in loops:
            new: set[tuple[int, bool]] = set()
            todo = [pair for pair in wanted if not self._by_row(*pair)]
            while todo:
                node, aligned = todo.pop()
                key = (id(node), aligned)
                if key in done:
                    self.kept[key] = ""
                elif key not in new:
                    new.add(key)
                    if not self._read(node) and node.kind == "pointwise":
                        todo += [(one, aligned) for one in node.operands if not self._by_row(one, aligned)]
            done |= new

    def _stage(self, node: Node) -> int:
        below = max((self._stage(one) for one in node.operands if not self._read(one)), default=0)
        return below + (node.kind == "reduce")

    def _read(self, node: Node) -> bool:
        return any(node is leaf for leaf in self.kernel.leaves)

    def _reduce(self, nodes: list[Node]) -> None:
        self.inner, self.body, self.before, self.after = {}, [], [], []
        self.text_of.known.open()
        begin: list[str] = []
        for node in nodes:
            name = self.text_of.known.fresh(stem(node))
            # Both forms: a reduction that keeps its axes and one that loses them are the same number.
            self.outer[id(node), False] = self.outer[id(node), True] = name
            begin.append(f"float {name} = {_IDENTITY[node.how]};")
            value = self.value(node.operands[0], False)
            self.body.append(f"if (inside) {name} = {_JOIN[node.how].format(name, value)};")
        self.lines += begin
        self._loop()
        self.lines += [
            f"{self.outer[id(node), False]} = join_{node.how}({self.outer[id(node), False]});" for node in nodes
        ]

    def _store(self) -> None:
        self.inner, self.body, self.before, self.after = {}, [], [], []
        self.text_of.known.open()
        alone: list[str] = []
        outs = self.text_of.known.outputs(len(self.kernel.outputs))
        for out, node in zip(outs, self.kernel.outputs, strict=True):
            lost = id(node) in self.kernel.squeezed
            where = self.kernel.offset(node, lost, place="i", row="row", col="col")
            value = stored(self.value(node, lost), node.dtype)
            if self.kernel.by_row(node, lost):
                alone.append(f"if (lane == 0) {out}[{where}] = {value};")
            elif self.vector > 1 and where == "i":
                name, wide = f"{out.removesuffix('ptr')}x{self.vector}", _wide(node.dtype, self.vector)
                self.before.append(f"{wide} {name};")
                self.body.append(f"reinterpret_cast<{TYPES[node.dtype]}*>(&{name})[part] = {value};")
                self.after.append(f"if (inside) reinterpret_cast<{wide}*>({out})[i0 / {self.vector}] = {name};")
            else:
                self.body.append(f"if (inside) {out}[{where}] = {value};")
        if self.body:
            self._loop()
        self.lines += alone

    def _loop(self) -> None:
        if self.vector > 1:
            self._held_loop()
            return
        self.lines += [
            f"#pragma unroll {self.unroll}",
            f"for (unsigned int start = 0; start < {self.cols}; start += {self.threads}u) {{",
            "    const unsigned int col = start + lane;",
            f"    const bool inside = col < {self.cols};",
            f"    const unsigned int i = row * {self.cols} + col;",
            *(f"    {line}" for line in self.body),
            "}",
        ]

    @property
    def steps(self) -> int:
        """How many vectors of a row a thread has."""
        return -(-int(self.kernel.cols) // (self.threads * self.vector))

    def _held_loop(self) -> None:
        declared = [line for line in self.before if line.startswith("float held_")]
        self.lines += [
            *declared,
            "#pragma unroll",
            f"for (unsigned int turn = 0; turn < {self.steps}u; ++turn) {{",
            f"    const unsigned int col0 = (turn * {self.threads}u + lane) * {self.vector}u;",
            f"    const unsigned int i0 = row * {self.cols} + col0;",
            f"    const bool inside = col0 < {self.cols};",
            *(f"    {line}" for line in self.before if line not in declared),
            "#pragma unroll",
            f"    for (unsigned int part = 0; part < {self.vector}u; ++part) {{",
            "        const unsigned int col = col0 + part, i = i0 + part;",
            *(f"        {line}" for line in self.body),
            "    }",
            *(f"    {line}" for line in self.after),
            "}",
        ]

    def value(self, node: Node, aligned: bool) -> str:
        key = (id(node), aligned)
        if key in self.outer:
            return self.outer[key]
        if key in self.inner:
            return self.inner[key]
        place = f"[turn * {self.vector} + part]"
        if self.kept.get(key):
            return self.kept[key] + place
        by_row = self._by_row(node, aligned)
        text = self._text(node, aligned, by_row)
        known, lines = (self.outer, self.lines) if by_row else (self.inner, self.body)
        names = self.text_of.known
        known[key] = names.fresh(stem(node)) if by_row else names.local(stem(node))
        lines.append(f"const float {known[key]} = {text};")
        if key in self.kept and not by_row:
            name = names.fresh(f"held_{stem(node)}")
            self.before.append(f"float {name}[{self.steps * self.vector}];")
            lines.append(f"{name}{place} = {known[key]};")
            self.kept[key] = name
        return known[key]

    def _by_row(self, node: Node, aligned: bool) -> bool:
        return self.kernel.by_row(node, aligned)

    def _text(self, node: Node, aligned: bool, by_row: bool) -> str:
        if self._read(node):
            if self.vector > 1 and not by_row and node.dtype in FLOATS:
                where = self.kernel.offset(node, aligned, place="i", row="row", col="col")
                if where in ("i", "col"):
                    self.before.append(
                        self.text_of.load_vector(node, self.vector, f"{where}0 / {self.vector}", "inside")
                    )
                    return self.text_of.vectors.pop(id(node))
            load = self.text_of.load(node, aligned)
            return load if by_row else f"inside ? {load} : 0.0f"
        if node.kind == "count":
            return self.text_of.count(node, aligned)
        if node.kind == "scan":
            carry = self.text_of.known.fresh("carry")
            self.lines.append(f"float {carry} = 0.0f;")
            value = self.value(node.operands[0], False)
            return f"join_scan(inside ? {value} : 0.0f, {carry})"
        args = tuple(self.value(one, aligned) for one in node.operands)
        return device_text(node.expression, "cuda", args)


def _reduction(how: str, threads: int) -> str:
    join = _JOIN[how].format("x", "__shfl_xor_sync(0xffffffffu, x, step)")
    warp = f"""#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = {join};
"""
    if threads == 32:
        return f"__device__ __forceinline__ float join_{how}(float x) {{\n{warp}    return x;\n}}\n"
    warps = threads // 32
    return f"""__device__ __forceinline__ float join_{how}(float x) {{
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


def _reduction_of_columns(how: str, lanes: int) -> str:
    return f"""__device__ __forceinline__ float join_{how}(float x) {{
    __shared__ float parts[{lanes}][32];
    __syncthreads();
    parts[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    float whole = parts[0][threadIdx.x];
#pragma unroll
    for (int part = 1; part < {lanes}; ++part) whole = {_JOIN[how].format("whole", "parts[part][threadIdx.x]")};
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
    head = "__device__ __forceinline__ float join_scan(float x, float& carry) {\n"
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
