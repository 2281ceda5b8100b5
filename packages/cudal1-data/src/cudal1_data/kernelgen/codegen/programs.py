"""Whole programs: the reference's constructor, its calls into PyTorch, and kernels in between."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cudal1_data.kernelgen.codegen.cuda.elements import pointwise_kernel
from cudal1_data.kernelgen.codegen.cuda.loops import loop_kernel
from cudal1_data.kernelgen.codegen.cuda.rows import row_kernel
from cudal1_data.kernelgen.codegen.cuda.text import CudaKernel
from cudal1_data.kernelgen.codegen.naming import stem
from cudal1_data.kernelgen.codegen.triton import TRITON_HEAD, triton_kernel, triton_loop
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, Step, units
from cudal1_data.kernelgen.ir import HALVES, PLACES, Node, Reference
from cudal1_data.kernelgen.sizes import host_text, in_python, tuple_text
from cudal1_data.operators import device_text

COLUMN_ROWS = 16
"""Minimum rows of a tile for columns: 16 elements of half precision are a sector of 32 bytes."""


@dataclass(frozen=True)
class Choice:
    """The parameters of a template; a program uses those of its kernels."""

    block: int = 1024
    """Triton: elements of a program without rows."""
    warps: int = 4
    """Triton: warps of a program."""
    stages: int = 2
    """Triton: pipeline stages of loads."""
    rows: int = 1
    """Triton: rows of a program."""
    looped: int = 0
    """Triton: with 1, a program loops over its rows in parts of `block` elements, even if they fit into a tile."""
    threads: int = 256
    """CUDA: threads of a block, or of a row."""
    vector: int = 1
    """CUDA: elements that a thread reads at once; with more than 1, a row stays in registers if they suffice."""
    per_block: int = 1
    """CUDA: rows of a block, one per warp."""
    unroll: int = 1
    """CUDA: unrolled steps of a row's loops."""
    depth: int = 0
    """Number of kernels to write, counted from the last; 0 for all. The others stay PyTorch."""

    @property
    def for_columns(self) -> bool:
        """Whether a tile has so many rows that columns of a tensor, read as rows, are read in whole sectors."""
        return self.rows >= COLUMN_ROWS

    @property
    def elements(self) -> int:
        """Triton: elements of a program without rows, in a program that may also have rows."""
        return self.block * self.rows if self.for_columns else self.block


def torch_program(reference: Reference, steps: Sequence[Step]) -> str:
    """Return the program with every operator as a separate call into PyTorch."""
    return Writer(reference, steps).text("", lambda kernel, number: None)


def triton_program(reference: Reference, steps: Sequence[Step], choice: Choice) -> str:
    """Return the program with kernels in Triton.

    Raises:
        UnsuitableError: There are too few kernels to write, or a tile would be too large.
    """
    chosen = _chosen(steps, choice)
    definitions: list[str] = []

    def run(kernel: Kernel | LoopStep, number: int) -> str | None:
        if id(kernel) not in chosen:
            return None
        name, tuned = f"fused{number}", {"warps": choice.warps, "stages": choice.stages}
        if isinstance(kernel, LoopStep):
            made = triton_loop(kernel, name, block=choice.elements, **tuned)
        else:
            block = choice.block if kernel.trailing else choice.elements
            made = triton_kernel(kernel, name, block=block, rows=choice.rows, looped=choice.looped, **tuned)
        definitions.append(made.definition)
        return made.call

    program = Writer(reference, steps)
    body = program.forward(run)
    return program.whole(TRITON_HEAD, "\n\n".join(definitions), body)


Make = Callable[[Kernel | LoopStep, int], CudaKernel | None]
"""Returns a kernel, which may be a whole loop; None if PyTorch computes it."""


def nvrtc_program(reference: Reference, steps: Sequence[Step], choice: Choice) -> str:
    """Return the program with kernels in CUDA C++ that NVRTC builds at their first call.

    Raises:
        UnsuitableError: There are too few kernels to write.
    """
    return nvrtc_text(Writer(reference, steps), _making(steps, choice))


def inline_program(reference: Reference, steps: Sequence[Step], choice: Choice) -> str:
    """Return the program with kernels in CUDA C++ that torch's extension loader builds at import.

    Raises:
        UnsuitableError: There are too few kernels to write.
    """
    return inline_text(Writer(reference, steps), _making(steps, choice))


def _making(steps: Sequence[Step], choice: Choice) -> Make:
    chosen = _chosen(steps, choice)
    return lambda kernel, number: _cuda(kernel, number, choice) if id(kernel) in chosen else None


def nvrtc_text(program: Writer, make: Make) -> str:
    """Return a program whose kernels NVRTC builds at their first call."""
    program.read_edges = False  # kernels have them as constants
    definitions: list[str] = []

    def run(kernel: Kernel | LoopStep, number: int) -> str | None:
        made = make(kernel, number)
        if made is None:
            return None
        definitions.append(f"SOURCE{number} = {_with_constants(made)}\n")
        grid = f"({_blocks(made)}, 1, 1)"
        return f"built(SOURCE{number}, {made.name!r})(grid={grid}, block={made.block}, args=[{{args}}])"

    body = program.forward(run)
    text = "\n".join([*definitions, *body])
    helpers = [helper for name, helper in _HELPERS.items() if f"{name}(" in text]
    build = textwrap.dedent("""
        @functools.cache
        def built(source, name):
            return torch.cuda._compile_kernel(source, name)
    """)
    return program.whole("import functools\n", "\n".join([*helpers, *definitions]) + build, body)


def inline_text(program: Writer, make: Make) -> str:
    """Return a program whose kernels torch's extension loader builds at import."""
    program.read_edges = False  # kernels have them as constants
    kernels: list[CudaKernel] = []

    def run(kernel: Kernel | LoopStep, number: int) -> str | None:
        made = make(kernel, number)
        if made is None:
            return None
        kernels.append(made)
        return f"extension.run_{made.name}({{args}}, {_blocks(made)})"

    body = program.forward(run)
    launchers = [_launcher(one) for one in kernels]
    declared = "\n".join(text.partition(" {\n")[0] + ";" for text in launchers)
    names = ", ".join(f'"run_{one.name}"' for one in kernels)
    # Each kernel has its own namespace, so that helpers are defined only once in each.
    source = 'r"""#include <torch/types.h>\n#include <c10/cuda/CUDAStream.h>\n'
    for one, text in zip(kernels, launchers, strict=True):
        source += f"namespace of_{one.name} {{\n"
        if one.constants:
            source += f'"""\nCUDA += {_constants(one)}\nCUDA += r"""'
        source += f"{_without_linkage(one.definition)}}}\n{text}"
    source += '"""'
    text = "\n".join([source, *body])
    helpers = "".join(f"{helper}\n" for name, helper in _HELPERS.items() if f"{name}(" in text)
    definition = (
        f'{helpers}CUDA = {source}\n\nextension = load_inline(\n    name="variant",\n'
        f'    cpp_sources=r"""{declared}""",\n    cuda_sources=CUDA,\n    functions=[{names}],\n)\n'
    )
    return program.whole("from torch.utils.cpp_extension import load_inline\n", definition, body)


def _without_linkage(definition: str) -> str:
    return definition.removeprefix('extern "C" {\n').removesuffix("}\n")


def _without_outer_parentheses(text: str) -> str:
    inner = text[1:-1]
    depth = 0
    for character in inner:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return text
    return inner if text.startswith("(") and text.endswith(")") else text


def _launcher(kernel: CudaKernel) -> str:
    names = [f"t{place}" for place in range(len(kernel.parameters))]
    parameters = ", ".join([*(f"torch::Tensor {name}" for name in names), "int64_t blocks"])
    pointers = ", ".join(f"({kind}){name}.data_ptr()" for kind, name in zip(kernel.parameters, names, strict=True))
    block = ", ".join(map(str, kernel.block))
    stream = "c10::cuda::getCurrentCUDAStream()"
    return (
        f"void run_{kernel.name}({parameters}) {{\n"
        f"    of_{kernel.name}::{kernel.name}<<<blocks, dim3({block}), 0, {stream}>>>({pointers});\n}}\n"
    )


_HELPERS = {
    "constants": """def constants(**sizes):
    return "".join(f"constexpr unsigned int {name} = {size};\\n" for name, size in sizes.items())
""",
    "cdiv": """def cdiv(size, part):
    return (size + part - 1) // part
""",
}
"""Helper functions of programs with CUDA C++, by name: for sizes in a kernel's text and for the grid."""


def _constants(kernel: CudaKernel) -> str:
    return f"constants({', '.join(f'{name}={host}' for name, host in kernel.constants.items())})"


def _with_constants(kernel: CudaKernel) -> str:
    text = f'r"""{kernel.definition}"""'
    return f"{_constants(kernel)} + {text}" if kernel.constants else text


def _blocks(kernel: CudaKernel) -> str:
    """Return the number of blocks, in Python."""
    return " * ".join(
        host_text(one.count) if one.per_block == 1 else f"cdiv({host_text(one.count)}, {one.per_text or one.per_block})"
        for one in kernel.grid
    )


def _cuda(kernel: Kernel | LoopStep, number: int, choice: Choice) -> CudaKernel:
    name = f"fused{number}"
    if isinstance(kernel, LoopStep):
        return loop_kernel(kernel, name, threads=choice.threads, unroll=choice.unroll)
    if kernel.trailing:
        per_block = choice.per_block if choice.threads == 32 else 1
        vector = vector_of(choice, int(kernel.cols))
        return row_kernel(
            kernel, name, threads=choice.threads, per_block=per_block, unroll=choice.unroll, vector=vector
        )
    vector = vector_of(choice, int(kernel.size))
    return pointwise_kernel(kernel, name, threads=choice.threads * choice.per_block, vector=vector)


def vector_of(choice: Choice, size: int) -> int:
    """Return the number of elements that a thread reads at once: the choice, or less if that does not divide a size."""
    return next(width for width in (8, 4, 2, 1) if width <= choice.vector and size % width == 0)


def _chosen(steps: Sequence[Step], choice: Choice) -> set[int]:
    """Return the `id`s of the kernels and loops to write as kernels."""
    found = units(steps)
    if not found or choice.depth > len(found):
        asked = max(choice.depth, 1)
        raise UnsuitableError(f"fusion depth {choice.depth} asks for {asked} kernels; the reference gives {len(found)}")
    return {id(one) for one in found[-choice.depth :]}


_CALLS = ("self.", "F.", "torch.")
"""Beginnings of calls whose results have edges of their own."""
Read = tuple[Node, bool]
"""A tensor that a kernel reads, and whether it uses the tensor's strides, if any."""
Run = Callable[[Kernel | LoopStep, int], str | None]
"""Returns the line that runs a kernel or a whole loop, with `{args}` for its tensors; None if PyTorch computes it. The
number counts written kernels, so that a language model starts with 0."""


@dataclass
class Writer:
    """Writer of one program around its kernels."""

    reference: Reference
    steps: Sequence[Step]
    names: dict[int, str] = field(default_factory=dict[int, str])
    lines: list[str] = field(default_factory=list[str])
    absorbed: set[int] = field(default_factory=set[int])
    """`id`s of calls into PyTorch, and of kernels, whose work other kernels do."""
    given: dict[int, tuple[Read, ...]] = field(default_factory=dict[int, tuple[Read, ...]])
    """Inputs of a kernel by its `id`, if they differ from its leaves."""
    number: int = 0
    """Number of kernels written so far."""
    taken: set[str] = field(default_factory=set[str])
    """Names used by the reference, and by this program so far."""
    read_edges: bool = True
    """Whether edges of maps are read from tensors; otherwise they are computed where the module begins."""

    def __post_init__(self) -> None:
        self.taken |= set(re.findall(r"[^\W\d]\w*", self.reference.head))
        self.taken |= {one.partition("_")[0] for one in self.reference.methods} | set(self.reference.methods)
        self.unread = self.reference.sizes.formulas
        self.taken |= self.unread.keys()

    def text(self, head: str, run: Run) -> str:
        """Return the program without kernel definitions."""
        return self.whole(head, "", self.forward(run))

    def whole(self, head: str, definitions: str, body: list[str]) -> str:
        """Return the program."""
        imports = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
        given = [line for line in self.reference.head.splitlines() if line not in imports.splitlines()]
        constructor = textwrap.indent(textwrap.dedent(self.reference.constructor), "    ")
        computed = [] if self.read_edges else self._edges("\n".join([definitions, *body]))
        parts = [
            head + imports,
            "".join(f"{line}\n" for line in [*given, *computed]),
            definitions,
            "class ModelNew(nn.Module):\n" + (f"{constructor}\n\n" if constructor else ""),
        ]
        forward = f"    def forward({', '.join(['self', *self.reference.methods])}):\n"
        forward += "".join(f"        {line}\n" for line in body)
        return (
            "\n\n".join(part.strip("\n") + "\n" for part in parts[:-1] if part.strip()) + "\n\n" + parts[-1] + forward
        )

    def forward(self, run: Run) -> list[str]:
        """Return the lines of `forward`."""
        self._write(self.steps, run)
        result = ", ".join(self._name(root) for root in self.reference.roots)
        self._line(f"return {result}" + ("," if self.reference.several and "," not in result else ""))
        return self.lines

    def _line(self, text: str) -> None:
        """Add a line to `forward`, behind those for the edges that it uses first."""
        self.lines += [*(self._edges(text) if self.read_edges else ()), text]

    def _edges(self, text: str) -> list[str]:
        """Return a line for each edge that a text is the first to use, and for those in their formulas."""
        lines: list[str] = []
        for edge, expression in reversed(list(self.unread.items())):
            if re.search(rf"\b{edge}\b", text):
                lines.insert(0, f"{edge} = {expression}")
                text += f"\n{self.unread.pop(edge)}"
        return lines

    def _write(self, steps: Sequence[Step], run: Run) -> None:
        for step in steps:
            if isinstance(step, Node):
                if id(step) not in self.absorbed and id(step) not in self.names:
                    self._assign(step, step.text.format(*(self._name(one) for one in step.operands)))
            elif isinstance(step, LoopStep):
                self._loop(step, run)
            elif id(step) not in self.absorbed:
                line = run(step, self.number)
                if line is not None:
                    self.number += 1
                    self._launch(step, line)
                for node in step.outputs if line is None else ():
                    self._torch(node)

    def _loop(self, step: LoopStep, run: Run) -> None:
        """Write a loop: as one kernel, or as a Python loop with its body's steps."""
        loop = step.loop
        name = self.names[id(step.node)] = self._fresh("loop")
        starts = step.node.operands[: len(loop.states)]
        for leaf, node in zip(loop.outside, step.node.operands[len(starts) :], strict=True):
            self.names[id(leaf)] = self._name(node)
        if step.whole is not None and (line := run(step, self.number)) is not None:
            self.number += 1
            self._launch_loop(step, step.whole, name, line)
            return
        states = [f"{name}_state{number}" for number in range(len(loop.states))]
        for state, leaf, start in zip(states, loop.states, starts, strict=True):
            self._line(f"{state} = {self._name(start)}")
            self.names[id(leaf)] = state
        self.lines += [f"{name}_kept{number} = []" for number in range(len(loop.kept))]
        self._line(f"for {loop.index} in {loop.steps!r}:")
        around, self.lines = self.lines, []
        self._write(step.body, (lambda kernel, number: None) if step.whole is not None else run)
        self.lines += [f"{name}_kept{number}.append({self._name(node)})" for number, node in enumerate(loop.kept)]
        if states:
            self._line(f"{', '.join(states)} = {', '.join(self._name(node) for node in loop.nexts)}")
        self.lines = [*around, *(f"    {line}" for line in self.lines)]

    def _launch_loop(self, step: LoopStep, kernel: Kernel, name: str, line: str) -> None:
        loop = step.loop
        starts = dict(zip(map(id, loop.states), step.node.operands, strict=False))
        args: list[str] = []
        for leaf in kernel.leaves:
            # A step's part is read from the whole tensor.
            read = leaf.operands[0] if leaf.strides else starts.get(id(leaf), leaf)
            args.append(self._argument(read))
        device = args[0]
        made: list[str] = []
        for number, (shape, stacked) in enumerate(zip(step.kept_dims, step.stacked, strict=True)):
            made.append(f"{name}_all{number}")
            self._line(f"{made[-1]} = torch.empty({tuple_text(shape)}, device={device}.device, dtype=torch.float32)")
            if stacked is not None:
                self.names[id(stacked)] = made[-1]
        for number in step.finals:
            made.append(f"{name}_state{number}")
            self._line(
                f"{made[-1]} = torch.empty({tuple_text(kernel.domain)}, device={device}.device, dtype=torch.float32)"
            )
        self._line(line.replace("{args}", ", ".join([*args, *made])))
        for number in step.listed:
            self._line(f"{name}_kept{number} = {made[number]}.unbind({step.axes[number]})")

    def _assign(self, node: Node, text: str) -> None:
        name = self.names[id(node)] = self._fresh(stem(node))
        self._line(f"{name} = {_without_outer_parentheses(text)}")
        if self.read_edges and text.startswith(_CALLS):
            read = {host_text(size): f"{name}.shape[{place}]" for place, size in enumerate(node.dims)}
            self.unread.update({edge: read[edge] for edge in self.unread.keys() & read.keys()})

    def _fresh(self, name: str) -> str:
        number, found = 1, name
        while found in self.taken:
            number += 1
            found = f"{name}_{number}"
        self.taken.add(found)
        return found

    def _name(self, node: Node) -> str:
        return self.names.get(id(node), node.text)

    def _argument(self, node: Node, strided: bool = True) -> str:
        """Return the text of a kernel's tensor argument."""
        as_it_is = node.kind == "parameter" or (strided and node.strides)
        return self._name(node) + ("" if as_it_is else ".contiguous()")

    def _launch(self, kernel: Kernel, line: str) -> None:
        read = self.given.get(id(kernel), tuple((leaf, True) for leaf in kernel.leaves))
        args = [self._argument(*one) for one in read]
        device = self._name(read[0][0]) if read else self.reference.methods[0]
        for node in kernel.outputs:
            made = f"torch.empty({tuple_text(node.dims)}, device={device}.device, dtype=torch.{node.dtype})"
            self._assign(node, made)
            args.append(self.names[id(node)])
        self._line(line.replace("{args}", ", ".join(args)))

    def _torch(self, node: Node) -> str:
        """Write a node's operators as lines of PyTorch; return the node's text."""
        if node.leaf or id(node) in self.names:
            name = self._name(node)
            return f"{name}.float()" if node.dtype in ("float16", "bfloat16") else name
        if node.kind == "gather":
            self._assign(node, node.text.format(*(self._name(one) for one in node.operands)))
            return self.names[id(node)] + (".float()" if node.dtype in HALVES else "")
        operands = [self._torch(one) for one in node.operands]
        axes = tuple(range(-node.trailing, 0))
        if node.kind == "pointwise":
            text = in_python(device_text(node.expression, "torch", tuple(operands)), self.reference.sizes)
        elif node.kind == "scan":
            text = f"torch.{'cumsum' if node.how == 'sum' else 'cumprod'}({operands[0]}, dim=-1)"
        else:
            call = {"max": "amax", "min": "amin"}.get(node.how, node.how)
            dim = -1 if node.how in PLACES else axes
            text = f"torch.{call}({operands[0]}, dim={dim}, keepdim={node.keepdim})"
        self._assign(node, f"{text}.to(torch.{node.dtype})" if node.dtype in HALVES else text)
        return self.names[id(node)] + (".float()" if node.dtype in HALVES else "")
