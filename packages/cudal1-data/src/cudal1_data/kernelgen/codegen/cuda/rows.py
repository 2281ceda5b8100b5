"""Kernels over rows: a block or a warp per row, or neighbouring threads for neighbouring rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from cudal1_data.kernelgen.codegen.cuda.reductions import (
    IDENTITY,
    JOIN,
    SCANS,
    reduction,
    reduction_of_columns,
    scan,
    scan_name,
    scan_of_parts,
)
from cudal1_data.kernelgen.codegen.cuda.text import TYPES, CudaKernel, Share, Writer, stored, whole_kernel, wide_type
from cudal1_data.kernelgen.codegen.naming import stem
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel
from cudal1_data.kernelgen.ir import FLOATS, PLACES, Node
from cudal1_data.operators import device_text

_MAX_HELD = 32
"""Maximum number of elements of a row that a thread keeps in registers."""
_MAX_PLACE = 2**24
"""Maximum whole number up to which a float holds each one."""


def row_kernel(kernel: Kernel, name: str, *, threads: int, per_block: int, unroll: int, vector: int = 1) -> CudaKernel:
    """Return a kernel in which a block or a warp computes a row.

    If rows are along an axis that is not the last in memory, neighbouring threads take neighbouring rows, for coalesced
    loads.

    Args:
        kernel: Its operators.
        name: Its name.
        threads: Threads of a row; 32 for a warp.
        per_block: Rows of a block; more than one only for warps.
        unroll: Unrolled steps of a row's loops.
        vector: Elements that a thread reads at once; with more than 1, the row stays in registers if they suffice.

    Raises:
        UnsuitableError: The kernel has no rows, or a tensor is too large.
    """
    if not kernel.trailing:
        raise UnsuitableError(f"a kernel over {kernel.domain} has no rows; write it as elements")
    if per_block > 1 and threads != 32:
        raise UnsuitableError(f"rows of {threads} threads do not share a block: only warps (32 threads) do")
    kernel.check_places()
    if kernel.columns or any(map(_goes_down, kernel.leaves)):
        return _column_kernel(kernel, name, lanes=max(4, threads // 32), unroll=unroll)
    writer = _RowWriter(Writer(kernel), threads, unroll, vector if holds(kernel, threads, vector) else 1)
    writer.scan_vector = vector if kernel.scans_last and int(kernel.cols) % vector == 0 else 1
    lines = writer.write()
    begin = [
        f"const unsigned int lane = threadIdx.x, row = blockIdx.x * {per_block}u + threadIdx.y;",
        f"if (row >= {writer.rows}) return;",
    ]
    kinds = _joins(kernel)
    scanned = sorted({node.how for node in kernel.members if node.kind == "scan"})
    scan_of = scan if writer.scan_vector == 1 else scan_of_parts
    helpers = "".join([*(reduction(kind, threads) for kind in kinds), *(scan_of(kind, threads) for kind in scanned)])
    comment = f"A {'warp' if threads == 32 else 'block'} computes a row: threads join what they reduced by shuffles."
    if writer.scan_vector > 1:
        comment += f" A thread joins {vector} neighbours in registers before threads join theirs."
    elif writer.vector > 1:
        comment += f" The row stays in registers: each element is read once, {vector} at a time."
    block = (threads, per_block, 1)
    grid = (Share(kernel.rows, per_block),)
    return whole_kernel(writer.text_of, name, [*begin, *lines], grid, block, helpers=helpers, comment=comment)


def _joins(kernel: Kernel) -> list[str]:
    """Return the operations with which threads join what they reduced."""
    kinds = {node.how for node in kernel.members if node.kind == "reduce"}
    places = kinds & set(PLACES)
    return sorted(kinds - places | {PLACES[kind] for kind in places} | ({"min"} if places else set()))


def _goes_down(leaf: Node) -> bool:
    """Return whether a row's elements are not adjacent in memory; in a piece of longer rows they are."""
    piece = leaf.text.endswith("]") and not leaf.pace
    return bool(leaf.strides) and not (piece and leaf.strides[-1] == 1)


def holds(kernel: Kernel, threads: int, vector: int) -> bool:
    """Return whether threads can keep a row in registers, each several vectors of it."""
    each = -(-int(kernel.cols) // (threads * vector)) * vector
    return vector > 1 and not kernel.scans and int(kernel.cols) % vector == 0 and each <= _MAX_HELD


def _column_kernel(kernel: Kernel, name: str, *, lanes: int, unroll: int) -> CudaKernel:
    writer = _RowWriter(Writer(kernel), lanes, unroll, 1)
    lines = writer.write()
    begin = [
        "const unsigned int lane = threadIdx.y, mine = blockIdx.x * 32u + threadIdx.x;",
        f"const unsigned int row = mine < {writer.rows} ? mine : {writer.rows} - 1;",
    ]
    kinds = _joins(kernel)
    helpers = "".join(reduction_of_columns(kind, lanes) for kind in kinds)
    comment = "Neighbouring threads take neighbouring rows, which lie side by side in memory; lanes share a row."
    grid, block = (Share(kernel.rows, 32),), (32, lanes, 1)
    return whole_kernel(writer.text_of, name, [*begin, *lines], grid, block, helpers=helpers, comment=comment)


@dataclass
class _RowWriter:
    """Writer of a row: a loop for each stage of reductions, values between the loops, and a loop that stores."""

    text_of: Writer
    threads: int
    unroll: int
    vector: int
    """Elements per step of a thread; with more than 1 the row stays in registers."""
    lines: list[str] = field(default_factory=list[str])
    outer: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    inner: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    body: list[str] = field(default_factory=list[str])
    before: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])
    kept: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])
    """Arrays of values that a later loop also needs; empty before they are computed."""
    scan_vector: int = 1
    """Elements per step of a thread in scans."""
    scanned: dict[int, str] = field(default_factory=dict[int, str])
    """Value of a scan by its `id`, if a thread has several elements."""
    loaded: dict[int, str] = field(default_factory=dict[int, str])
    """Text of an element of a vector load, by the tensor's `id`."""
    phases: list[tuple[str, list[str], str]] = field(default_factory=list[tuple[str, list[str], str]])
    """Lines of a step for a scan: one before its elements, those for each element, one after."""

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
        """Find the values that one loop computes and a later one needs."""
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
        self.loaded = {}
        self.text_of.known.open()
        begin, ends = list[str](), list[str]()
        for node in nodes:
            name = self.text_of.known.fresh(stem(node))
            # Both forms: a reduction with and without `keepdim` has the same value.
            self.outer[id(node), False] = self.outer[id(node), True] = name
            value = self.value(node.operands[0], False)
            if node.how in PLACES:
                ends.append(self._find_place(node, name, value, begin))
                continue
            begin.append(f"float {name} = {IDENTITY[node.how]};")
            self.body.append(f"if (inside) {name} = {JOIN[node.how].format(name, value)};")
            ends.append(f"{name} = join_{node.how}({name});")
        self.lines += begin
        self._loop()
        self.lines += ends

    def _find_place(self, node: Node, name: str, value: str, begin: list[str]) -> str:
        """Write a step of the search for an extreme's first place; return the line that joins the threads' places."""
        if self.kernel.cols > _MAX_PLACE:
            raise UnsuitableError(f"a float holds places up to {_MAX_PLACE}, not those of {self.kernel.cols} columns")
        how, best = PLACES[node.how], self.text_of.known.fresh("best")
        begin.append(f"float {best} = {IDENTITY[how]}, {name} = 0.0f;")
        better = f"{value} {'>' if how == 'max' else '<'} {best}"
        self.body.append(f"if (inside && {better}) {best} = {value}, {name} = col;")
        return f"{name} = join_min({best} == join_{how}({best}) ? {name} : {IDENTITY['min']});"

    def _store(self) -> None:
        self.inner, self.body, self.before, self.after = {}, [], [], []
        self.loaded = {}
        self.text_of.known.open()
        if self.scan_vector > 1:
            self.vector = self.scan_vector
            for node in self.kernel.members:
                if node.kind == "scan":
                    self._scan(node)
        alone: list[str] = []
        outs = self.text_of.known.outputs(len(self.kernel.outputs))
        for out, node in zip(outs, self.kernel.outputs, strict=True):
            lost = id(node) in self.kernel.squeezed
            where = self.kernel.offset(node, lost, place="i", row="row", col="col")
            value = stored(self.value(node, lost), node.dtype)
            if self.kernel.by_row(node, lost):
                alone.append(f"if (lane == 0) {out}[{where}] = {value};")
            elif self.vector > 1 and where == "i":
                name, wide = f"{out.removesuffix('ptr')}x{self.vector}", wide_type(node.dtype, self.vector)
                self.before.append(f"{wide} {name};")
                self.body.append(f"reinterpret_cast<{TYPES[node.dtype]}*>(&{name})[part] = {value};")
                self.after.append(f"if (inside) reinterpret_cast<{wide}*>({out})[i0 / {self.vector}] = {name};")
            else:
                self.body.append(f"if (inside) {out}[{where}] = {value};")
        if self.body:
            self._loop()
        self.lines += alone

    def _scan(self, node: Node) -> None:
        """Write a scan's step: a thread joins its own elements, and those of earlier threads."""
        names, first, join = self.text_of.known, IDENTITY[node.how], SCANS[node.how]
        total, prefix = names.fresh(f"thread_{node.how}"), names.fresh("prefix")
        carry, before = names.fresh("carry"), names.fresh(f"{node.how}_before")
        self.lines.append(f"float {carry} = {first};")
        value = self.value(node.operands[0], False)
        self.body += [f"{total} {join}= inside ? {value} : {first};", f"{prefix}[part] = {total};"]
        begin = f"float {total} = {first}, {prefix}[{self.vector}];"
        end = f"const float {before} = {scan_name(node.how, parts=True)}({total}, {carry});"
        self.phases.append((begin, self.body, end))
        self.scanned[id(node)] = f"({before} {join} {prefix}[part])"
        self.inner, self.body = {}, []
        names.open()

    def _scan_loop(self) -> None:
        parts: list[str] = []
        for begin, body, end in (*self.phases, ("", self.body, "")):
            parts += [
                begin,
                "#pragma unroll",
                f"for (unsigned int part = 0; part < {self.vector}u; ++part) {{",
                "    const unsigned int col = col0 + part, i = i0 + part;",
                *(f"    {line}" for line in body),
                "}",
                end,
            ]
        self.lines += [
            f"#pragma unroll {self.unroll}",
            f"for (unsigned int start = 0; start < {self.cols}; start += {self.threads * self.vector}u) {{",
            f"    const unsigned int col0 = start + lane * {self.vector}u;",
            f"    const unsigned int i0 = row * {self.cols} + col0;",
            f"    const bool inside = col0 < {self.cols};",
            *(f"    {line}" for line in self.before),
            *(line if line.startswith("#") else f"    {line}" for line in parts if line),
            *(f"    {line}" for line in self.after),
            "}",
        ]

    def _loop(self) -> None:
        if self.phases:
            self._scan_loop()
            return
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
        """Number of vectors of a row per thread."""
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
        if id(node) in self.scanned:
            return self.scanned[id(node)]
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
        if node.kind == "pointwise" and text.isidentifier() and key not in self.kept:  # a cast of a named value
            known[key] = text
            return text
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
            if self.vector > 1 and not by_row and node.dtype in FLOATS and not node.strides:
                where = self.kernel.offset(node, aligned, place="i", row="row", col="col")
                if where in ("i", "col"):
                    if id(node) not in self.loaded:
                        line = self.text_of.load_vector(node, self.vector, f"{where}0 / {self.vector}", "inside")
                        self.before.append(line)
                        self.loaded[id(node)] = self.text_of.vectors.pop(id(node))
                    return self.loaded[id(node)]
            load = self.text_of.load(node, aligned)
            return load if by_row else f"inside ? {load} : 0.0f"
        if node.kind == "count":
            return self.text_of.count(node, aligned)
        if node.kind == "gather":
            load = self.text_of.looked_up(node, aligned)
            return load if by_row else f"inside ? {load} : 0.0f"
        if node.kind == "scan":
            carry = self.text_of.known.fresh("carry")
            first = IDENTITY[node.how]
            self.lines.append(f"float {carry} = {first};")
            value = self.value(node.operands[0], False)
            return f"{scan_name(node.how)}(inside ? {value} : {first}, {carry})"
        args = tuple(self.value(one, aligned) for one in node.operands)
        return device_text(node.expression, "cuda", args)
