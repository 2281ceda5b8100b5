"""Kernels in Triton: a tile of elements, or tiles of whole rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cudal1_data.kernelgen.codegen.naming import Constants, Names, quotient_text, stem
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, table_offset
from cudal1_data.kernelgen.ir import PLACES, Node, walk
from cudal1_data.kernelgen.sizes import Size, host_text
from cudal1_data.operators import device_text

MAX_TILE = 16384
"""Maximum elements of a tile of whole rows: with more, registers run out, and a program loops over parts of rows."""
_WIDE_TILE = 2048
"""Elements from which on a tile of rows and columns has 64 columns, else 32."""
_JOIN = {"sum": "{0} + {1}", "max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})"}
_SCAN = {"sum": "tl.cumsum", "product": "tl.cumprod"}
_LOWEST, _HIGHEST = '-float("inf")', 'float("inf")'
IDENTITY = {"sum": "0.0", "product": "1.0", "max": _LOWEST, "min": _HIGHEST, "argmax": _LOWEST, "argmin": _HIGHEST}


@dataclass(frozen=True)
class TritonKernel:
    """The text of a kernel."""

    definition: str
    """The kernel itself."""
    call: str
    """The line that runs it, with `{args}` for its tensors."""


TRITON_HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
"""Imports of a program with kernels, the same for all: a language model that writes the first line cannot know which
functions its kernels will need."""


def whole_kernel(
    name: str,
    pointers: Sequence[str],
    lines: Sequence[str],
    constants: Mapping[str, str],
    *,
    programs: str,
    tuned: Mapping[str, int],
    comment: str,
    batch: str = "",
) -> TritonKernel:
    """Return a kernel made from its lines.

    Args:
        name: Its name.
        pointers: Names of its tensors.
        lines: Its body.
        constants: Compile-time parameters with their values in Python.
        programs: Python text of the number of programs.
        tuned: Options of the launch.
        comment: Its description; further lines begin with "# ".
        batch: Python text of the number of times that these programs run, each with its `tl.program_id(1)`.
    """
    parameters = [*pointers, *(f"{one}: tl.constexpr" for one in constants)]
    text = f"# {comment}\n@triton.jit\ndef {name}({', '.join(parameters)}):\n" + "".join(
        f"    {one}\n" for one in lines
    )
    given = [f"{key}={value}" for key, value in (*constants.items(), *tuned.items())]
    return TritonKernel(text, f"{name}[({programs},{batch and f' {batch}'})]({{args}}, {', '.join(given)})")


def triton_kernel(
    kernel: Kernel, name: str, *, block: int, warps: int, stages: int, rows: int, looped: int = 0
) -> TritonKernel:
    """Return the text of a kernel.

    Args:
        kernel: Its operators.
        name: Its name.
        block: Elements of a program, or of the parts of its rows.
        warps: Warps of a program.
        stages: Pipeline stages of loads.
        rows: Rows of a program.
        looped: With 1, the program loops over parts of its rows if they are longer, even if they fit into a tile.

    Raises:
        UnsuitableError: Rows read in parts are scanned and then reduced, parts are too large or no smaller than the
            rows, a tensor is too large, or its only row would lie in a tile of several.
    """
    kernel.check_places()
    if not kernel.trailing and any(leaf.swapped or (leaf.kind == "input" and leaf.strides) for leaf in kernel.leaves):
        return _tiles(kernel, name, block=block, warps=warps, stages=stages)
    writer = TileWriter(kernel)
    tile = 1 << max(int(kernel.cols) - 1, 1).bit_length() if kernel.trailing else block
    parted = kernel.trailing and ((looped and block < tile) or rows * tile > MAX_TILE)
    if parted and ((kernel.scans and not kernel.scans_last) or rows * block > MAX_TILE or block >= tile):
        raise UnsuitableError(f"a tile of {rows} x {min(tile, block)} has over {MAX_TILE} elements; take fewer rows")
    whole = any(not kernel.by_row(node, id(node) in kernel.squeezed) for node in kernel.outputs)
    if kernel.trailing and kernel.rows == 1 < rows and whole:
        raise UnsuitableError(f"a tile of {rows} rows cannot store the only row of a tensor; take one row")
    pointers = [*(writer.known.pointer(leaf) for leaf in kernel.leaves), *writer.known.outputs(len(kernel.outputs))]
    lines = _in_parts(writer) if parted else [*writer.begin(), *writer.body()]
    constants = writer.constants.within("\n".join(lines))
    if parted:
        constants |= {"BLOCK_ROWS": str(rows), "BLOCK": str(block)}
        comment = "Rows are gone over in parts: once for each reduction that needs the one before, once to store."
        comment += " A scan carries its last result from part to part." if kernel.scans else ""
    elif kernel.trailing:
        constants |= {"BLOCK_ROWS": str(rows), "BLOCK": power_text(kernel.cols)}
        comment = "Whole rows lie in a tile: each element is read once, and reductions never leave the chip."
    else:
        constants |= {"BLOCK": str(block)}
        comment = "All operators are fused: each element is read once and written once."
    comment += f"\n# {writer.known.shapes(kernel)}"
    programs = quotient_text(kernel.rows, rows) if kernel.trailing else quotient_text(kernel.size, block)
    tuned = {"num_warps": warps, "num_stages": stages}
    return whole_kernel(name, pointers, lines, constants, programs=programs, tuned=tuned, comment=comment)


def _tiles(kernel: Kernel, name: str, *, block: int, warps: int, stages: int) -> TritonKernel:
    """Return a kernel without reductions whose programs take tiles of rows and columns.

    So tensors in both orders of the last two axes are read in whole sectors; Triton exchanges elements between threads.
    """
    writer = TileWriter(replace(kernel, trailing=1))
    columns = 32 if block < _WIDE_TILE else 64
    rows = max(1, block // columns)
    cols = writer.constants.name("COLS", writer.kernel.cols)
    _, _, *begin = writer.begin()
    lines = [
        f"parts = tl.cdiv({cols}, BLOCK)",
        "row = tl.program_id(0) // parts * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]",
        "col = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)[None, :]",
        *begin,
        *writer.body(),
    ]
    pointers = [*(writer.known.pointer(leaf) for leaf in kernel.leaves), *writer.known.outputs(len(kernel.outputs))]
    constants = writer.constants.within("\n".join(lines))
    constants |= {"BLOCK_ROWS": str(rows), "BLOCK": str(columns)}
    comment = "All operators are fused. A tile has rows and columns: tensors in both orders are read in whole sectors."
    programs = " * ".join(
        f"triton.cdiv({host_text(size)}, {part})"
        for size, part in ((writer.kernel.rows, rows), (writer.kernel.cols, columns))
    )
    tuned = {"num_warps": warps, "num_stages": stages}
    comment += f"\n# {writer.known.shapes(kernel)}"
    return whole_kernel(name, pointers, lines, constants, programs=programs, tuned=tuned, comment=comment)


def _in_parts(outer: TileWriter) -> list[str]:
    """Return the lines of a program that loops over parts of its rows."""
    kernel, known = outer.kernel, outer.known
    first = outer.begin()
    head, inner = [first[0], first[2]], first[3:]
    reductions = [node for node in kernel.members if node.kind == "reduce"]
    depth: dict[int, int] = {}
    for node in walk(*kernel.outputs):
        below = (
            0 if any(node is leaf for leaf in kernel.leaves) else max((depth[id(o)] for o in node.operands), default=0)
        )
        depth[id(node)] = below + (node.kind == "reduce" and below >= 0 and any(node is one for one in reductions))
    lines = list(head)
    for stage in range(1, max((depth[id(node)] for node in reductions), default=0) + 1):
        writer = TileWriter(kernel, known, outer.constants)
        writer.names |= outer.names
        mine = [node for node in reductions if depth[id(node)] == stage]
        joins: list[str] = []
        ends: list[str] = []
        for node in mine:
            value = writer.value(node.operands[0], False)
            name = outer.names[id(node), False] = outer.names[id(node), True] = known.fresh(stem(node))
            begin, join, end = _reduced_parts(outer, node, value, name)
            lines += begin
            joins += join
            ends.append(end)
        lines += [*_parts(outer, [*inner, *writer.lines, *joins]), *ends]
    each, alone = TileWriter(kernel, known, outer.constants), TileWriter(kernel, known, outer.constants)
    each.names |= outer.names
    each.carries = []
    alone.names |= outer.names
    for out, node in zip(known.outputs(len(kernel.outputs)), kernel.outputs, strict=True):
        by_row = kernel.by_row(node, id(node) in kernel.squeezed)
        (alone if by_row else each).store(out, node)
    lines += each.carries
    return [*lines, *(_parts(outer, [*inner, *each.lines]) if each.lines else []), *alone.lines]


def _reduced_parts(outer: TileWriter, node: Node, value: str, name: str) -> tuple[list[str], list[str], str]:
    """Return the lines of a reduction before the loop over parts, in it, and the one behind it.

    Args:
        outer: Writer of the whole kernel.
        node: The reduction.
        value: Name of its operand in the loop.
        name: Name of its result.
    """
    how = PLACES.get(node.how, node.how)
    part = outer.known.fresh(f"{how}_of_parts")
    begin = [f"{part} = tl.full((BLOCK_ROWS, BLOCK), {IDENTITY[how]}, tl.float32)"]
    if node.how not in PLACES:
        join = [f"{part} = tl.where(mask, {_JOIN[how].format(part, value)}, {part})"]
        return begin, join, f"{name} = tl.{how}({part}, 1)[:, None]"
    place, better = outer.known.fresh(f"place_of_{how}"), outer.known.fresh("better")
    join = [
        f"{better} = mask & ({value} {'>' if how == 'max' else '<'} {part})",
        f"{part} = tl.where({better}, {value}, {part})",
        f"{place} = tl.where({better}, col, {place})",
    ]
    begin.append(f"{place} = tl.zeros((BLOCK_ROWS, BLOCK), tl.int32)")
    cols = outer.constants.name("COLS", outer.kernel.cols)
    first = f"tl.where({part} == tl.{how}({part}, 1)[:, None], {place}, {cols})"
    return begin, join, f"{name} = tl.min({first}, 1)[:, None]"


def _parts(writer: TileWriter, lines: Sequence[str]) -> list[str]:
    cols = writer.constants.name("COLS", writer.kernel.cols)
    begin = [f"for start in range(0, {cols}, BLOCK):", "    col = start + tl.arange(0, BLOCK)[None, :]"]
    return [*begin, *(f"    {line}" for line in lines)]


def power_text(size: int) -> str:
    """Return the Python text of the smallest power of two that is at least 2 and the size."""
    return (
        f"triton.next_power_of_2({host_text(size)})"
        if isinstance(size, Size) and size > 1
        else (str(1 << max(int(size) - 1, 1).bit_length()))
    )


def triton_loop(step: LoopStep, name: str, *, block: int, warps: int, stages: int) -> TritonKernel:
    """Return a kernel in which a program runs all steps of a loop for a tile of elements.

    Args:
        step: The loop.
        name: Its name.
        block: Elements of a program.
        warps: Warps of a program.
        stages: Pipeline stages of loads.

    Raises:
        UnsuitableError: An element of a step needs other elements of the previous step, or a tensor is too large.
    """
    if step.whole is None:
        raise UnsuitableError("elements of the loop's states need each other; PyTorch keeps the loop")
    loop, kernel = step.loop, step.whole
    kernel.check_places(*step.kept_dims)
    writer = TileWriter(kernel)
    begin = writer.begin()
    pointers = [
        writer.known.pointer(leaf, next((f"state{n}" for n, one in enumerate(loop.states) if one is leaf), ""))
        for leaf in kernel.leaves
    ]
    for pointer, leaf in zip(pointers, kernel.leaves, strict=True):
        number = next((number for number, state in enumerate(loop.states) if state is leaf), None)
        if number is not None:
            begin.append(f"state{number} = tl.load({pointer} + offsets, mask=mask, other=0.0)")
            writer.names[id(leaf), False] = f"state{number}"
    for node in step.invariant:
        writer.value(node, False)
    begin += writer.lines
    writer.lines = []
    for leaf in kernel.leaves:
        if leaf.strides:
            writer.paces[id(leaf)] = f" + step * {leaf.pace}"
    outs = writer.known.outputs(len(loop.kept) + len(step.finals))
    states = ", ".join(f"state{number}" for number in range(len(loop.nexts)))
    nexts = [f"{states} = {', '.join(writer.value(node, False) for node in loop.nexts)}"] if states else []
    stores = [
        f"tl.store({out} + {where.replace(' / ', ' // ')}, {writer.value(node, False)}, mask=mask)"
        for out, node, where in zip(outs, loop.kept, step.places("offsets", "turn"), strict=False)
    ]
    final = [
        f"tl.store({out} + offsets, state{number}, mask=mask)"
        for out, number in zip(outs[len(stores) :], step.finals, strict=True)
    ]
    count = len(loop.steps)
    body = [f"step = {loop.steps.start} + turn * {loop.steps.step}", *writer.lines, *stores, *nexts]
    lines = [*begin, f"for turn in range({count}):", *(f"    {line}" for line in body), *final]
    constants = writer.constants.within("\n".join(lines)) | {"BLOCK": str(block)}
    return whole_kernel(
        name,
        [*pointers, *outs],
        lines,
        constants,
        programs=quotient_text(kernel.size, block),
        tuned={"num_warps": warps, "num_stages": stages},
        comment="One launch for all steps of the loop: its state stays in registers.",
    )


class TileWriter:
    """Writer of a tile's values, line by line."""

    def __init__(self, kernel: Kernel, known: Names | None = None, constants: Constants | None = None) -> None:
        self.kernel = kernel
        self.names: dict[tuple[int, bool], str] = {}
        self.lines: list[str] = []
        self.paces: dict[int, str] = {}
        """Addition to a leaf's offsets, by its `id`."""
        self.carries: list[str] | None = None
        """Lines that initialise the scans' carries, if rows are read in parts; else None."""
        self.known = known or Names()
        """Names of the whole kernel."""
        self.constants = constants or Constants(kernel)
        """Sizes of the whole kernel."""

    def begin(self) -> list[str]:
        """Return the lines that compute a program's offsets and mask."""
        if not self.kernel.trailing:
            size = self.constants.name("SIZE", self.kernel.size)
            return [
                "offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                f"mask = offsets < {size}",
            ]
        rows, cols = self.constants.name("ROWS", self.kernel.rows), self.constants.name("COLS", self.kernel.cols)
        return [
            "row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]",
            "col = tl.arange(0, BLOCK)[None, :]",
            f"there = row < {rows}",
            f"mask = there & (col < {cols})",
            f"offsets = row * {cols} + col",
        ]

    def body(self) -> list[str]:
        """Return the lines that compute and store."""
        outs = self.known.outputs(len(self.kernel.outputs))
        for out, node in zip(outs, self.kernel.outputs, strict=True):
            self.store(out, node)
        return self.lines

    def store(self, out: str, node: Node) -> None:
        """Write the lines that compute and store one output."""
        lost = id(node) in self.kernel.squeezed
        value = self.value(node, lost)
        by_row = self.kernel.by_row(node, lost)
        where = self._offset(node, lost)
        self.lines.append(f"tl.store({out} + {where}, {value}, mask={'there' if by_row else 'mask'})")

    def value(self, node: Node, aligned: bool) -> str:
        """Return the name of a node's value, after writing its lines."""
        key = (id(node), aligned)
        if key not in self.names:
            text = self._text(node, aligned)
            if text.isidentifier():  # it has a name: a cast of a named value, or a scan in parts
                self.names[key] = text
                return text
            self.names[key] = self.known.fresh(stem(node))
            self.lines.append(f"{self.names[key]} = {text}")
        return self.names[key]

    def _text(self, node: Node, aligned: bool) -> str:
        if any(node is leaf for leaf in self.kernel.leaves):
            return self._load(node, aligned)
        if node.kind == "count":
            return f"({self._offset(node, aligned)}).to(tl.float32)"
        if node.kind == "gather":
            return self._looked_up(node, aligned)
        if node.kind == "pointwise":
            args = tuple(self.value(one, aligned) for one in node.operands)
            return device_text(node.expression, "triton", args)
        value = self.value(node.operands[0], False)
        if node.kind == "scan" and self.carries is not None:
            return self._scanned_part(node, value)
        if node.kind == "scan":
            return f"{_SCAN[node.how]}(tl.where(mask, {value}, {IDENTITY[node.how]}), 1)"
        return f"tl.{node.how}(tl.where(mask, {value}, {IDENTITY[node.how]}), 1)[:, None]"

    def _scanned_part(self, node: Node, value: str) -> str:
        """Return the name of a scan of a part of the rows, after writing its lines."""
        part, carry, name = (self.known.fresh(one) for one in ("scanned_part", "carry", stem(node)))
        first = IDENTITY[node.how]
        assert self.carries is not None
        self.lines.append(f"{part} = tl.where(mask, {value}, {first})")
        if node.how == "sum":
            self.carries.append(f"{carry} = tl.zeros((BLOCK_ROWS, 1), tl.float32)")
            self.lines += [f"{name} = {carry} + tl.cumsum({part}, 1)", f"{carry} += tl.sum({part}, 1)[:, None]"]
        else:
            last = f"tl.where(col == start + BLOCK - 1, {name}, 0.0)"
            self.carries.append(f"{carry} = tl.full((BLOCK_ROWS, 1), {first}, tl.float32)")
            self.lines += [f"{name} = {carry} * tl.cumprod({part}, 1)", f"{carry} = tl.sum({last}, 1)[:, None]"]
        return name

    def _looked_up(self, node: Node, aligned: bool) -> str:
        """Return the text that reads a table, after writing the line that reads the place."""
        table, index, *counts = node.operands
        place = self.known.fresh("place")
        self.lines.append(f"{place} = {self._read(index, self._offset(index, aligned), aligned, '0')}")
        if node.wraps:
            self.lines.append(f"{place} = tl.where({place} < 0, {place} + {node.wraps}, {place})")
        where = table_offset(node, (place, *(self._offset(one, aligned) for one in counts)))
        load = self._read(node, f"({where})", aligned, "0.0", of=table)
        return load if node.dtype == "float32" else load + ".to(tl.float32)"

    def _load(self, node: Node, aligned: bool) -> str:
        whole = node.dtype in ("bool", "int64")
        load = self._read(node, self._offset(node, aligned), aligned, "0" if whole else "0.0")
        return load if node.dtype == "float32" else load + ".to(tl.float32)"

    def _read(self, node: Node, where: str, aligned: bool, other: str, of: Node | None = None) -> str:
        mask = "there" if self.kernel.by_row(node, aligned) else "mask"
        return f"tl.load({self.known.pointer(of or node)} + {where}, mask={mask}, other={other})"

    def _offset(self, node: Node, aligned: bool) -> str:
        text = self.kernel.offset(node, aligned, place="offsets", row="row", col="col").replace(" / ", " // ")
        blank = "row * 0" if self.kernel.by_row(node, aligned) else "offsets * 0"
        return (blank if text == "0" else text) + self.paces.get(id(node), "")
