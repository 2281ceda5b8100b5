"""Whole programs: the reference's constructor, calls into PyTorch as they are, and kernels in between."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cudal1_data.templates.cuda_text import CudaKernel, pointwise_kernel, row_kernel
from cudal1_data.templates.errors import UnsuitableError
from cudal1_data.templates.fusion import Kernel
from cudal1_data.templates.graph import Node, Reference
from cudal1_data.templates.table import device_text
from cudal1_data.templates.triton_text import triton_kernel


@dataclass(frozen=True)
class Choice:
    """The parameters of a template; a program uses those that its kernels have."""

    block: int = 1024
    """Triton: elements of a program, where there are no rows."""
    warps: int = 4
    """Triton: warps of a program."""
    stages: int = 2
    """Triton: stages of loads."""
    rows: int = 1
    """Triton: rows of a program."""
    threads: int = 256
    """CUDA: threads of a block, or of a row."""
    vector: int = 1
    """CUDA: elements that a thread reads at once, where there are no rows."""
    per_block: int = 1
    """CUDA: rows of a block, each a warp."""
    unroll: int = 1
    """CUDA: steps of a row's loops that are unrolled."""
    depth: int = 0
    """Kernels that are written, counted from the last; 0 for all. The others stay PyTorch."""


def torch_program(reference: Reference, steps: Sequence[Kernel | Node]) -> str:
    """Write every operator as a call into PyTorch of its own."""
    return Writer(reference, steps).text("", lambda kernel, number: None)


def triton_program(reference: Reference, steps: Sequence[Kernel | Node], choice: Choice) -> str:
    """Write kernels in Triton.

    Raises:
        UnsuitableError: There is nothing for a kernel to do, or a tile would be too large.
    """
    chosen = _chosen(steps, choice)
    definitions: list[str] = []

    def run(kernel: Kernel, number: int) -> str | None:
        if number not in chosen:
            return None
        made = triton_kernel(
            kernel, f"fused{number}", block=choice.block, warps=choice.warps, stages=choice.stages, rows=choice.rows
        )
        definitions.append(made.definition)
        return made.call

    program = Writer(reference, steps)
    body = program.forward(run)
    head = "import triton\nimport triton.language as tl\n"
    if any("libdevice." in one for one in definitions):
        head += "from triton.language.extra import libdevice\n"
    return program.whole(head, "\n\n".join(definitions), body)


def nvrtc_program(reference: Reference, steps: Sequence[Kernel | Node], choice: Choice) -> str:
    """Write kernels in CUDA C++ that NVRTC builds when they are first called.

    Raises:
        UnsuitableError: There is nothing for a kernel to do.
    """
    chosen = _chosen(steps, choice)
    definitions: list[str] = []

    def run(kernel: Kernel, number: int) -> str | None:
        if number not in chosen:
            return None
        made = _cuda(kernel, number, choice)
        definitions.append(f'SOURCE{number} = r"""{made.definition}"""\n')
        return f"built(SOURCE{number}, {made.name!r})(grid={made.grid}, block={made.block}, args=[{{args}}])"

    program = Writer(reference, steps)
    body = program.forward(run)
    build = textwrap.dedent("""
        @functools.cache
        def built(source, name):
            return torch.cuda._compile_kernel(source, name)
    """)
    return program.whole("import functools\n", "\n".join(definitions) + build, body)


def inline_program(reference: Reference, steps: Sequence[Kernel | Node], choice: Choice) -> str:
    """Write kernels in CUDA C++ that torch's extension loader builds when the program is imported.

    Raises:
        UnsuitableError: There is nothing for a kernel to do.
    """
    chosen = _chosen(steps, choice)
    kernels: list[CudaKernel] = []

    def run(kernel: Kernel, number: int) -> str | None:
        if number not in chosen:
            return None
        made = _cuda(kernel, number, choice)
        kernels.append(made)
        return f"extension.run_{made.name}({{args}})"

    program = Writer(reference, steps)
    body = program.forward(run)
    launchers = [_launcher(one) for one in kernels]
    declared = "\n".join(text.partition(" {\n")[0] + ";" for text in launchers)
    names = ", ".join(f'"run_{one.name}"' for one in kernels)
    # One definition of each helper: every kernel stands in a namespace of its own.
    texts = "\n".join(
        f"namespace of_{one.name} {{\n{_without_linkage(one.definition)}}}\n{text}"
        for one, text in zip(kernels, launchers, strict=True)
    )
    source = f"#include <torch/extension.h>\n#include <ATen/cuda/CUDAContext.h>\n{texts}"
    definition = (
        f'CUDA = r"""{source}"""\n\nextension = load_inline(\n    name="variant",\n'
        f'    cpp_sources=r"""{declared}""",\n    cuda_sources=CUDA,\n    functions=[{names}],\n)\n'
    )
    return program.whole("from torch.utils.cpp_extension import load_inline\n", definition, body)


def _without_linkage(definition: str) -> str:
    return definition.removeprefix('extern "C" {\n').removesuffix("}\n")


def _launcher(kernel: CudaKernel) -> str:
    names = [f"t{place}" for place in range(len(kernel.parameters))]
    parameters = ", ".join(f"torch::Tensor {name}" for name in names)
    pointers = ", ".join(f"({kind}){name}.data_ptr()" for kind, name in zip(kernel.parameters, names, strict=True))
    grid, block = (", ".join(map(str, sizes)) for sizes in (kernel.grid, kernel.block))
    stream = "at::cuda::getCurrentCUDAStream()"
    return (
        f"void run_{kernel.name}({parameters}) {{\n"
        f"    of_{kernel.name}::{kernel.name}<<<dim3({grid}), dim3({block}), 0, {stream}>>>({pointers});\n}}\n"
    )


def _cuda(kernel: Kernel, number: int, choice: Choice) -> CudaKernel:
    name = f"fused{number}"
    if kernel.trailing:
        per_block = choice.per_block if choice.threads == 32 else 1
        return row_kernel(kernel, name, threads=choice.threads, per_block=per_block, unroll=choice.unroll)
    vector = next(width for width in (choice.vector, 2, 1) if width <= choice.vector and kernel.size % width == 0)
    return pointwise_kernel(kernel, name, threads=choice.threads, vector=vector)


def _chosen(steps: Sequence[Kernel | Node], choice: Choice) -> range:
    count = sum(isinstance(step, Kernel) for step in steps)
    if count == 0 or choice.depth > count:
        raise UnsuitableError(f"expected at least {max(choice.depth, 1)} kernels, found {count}")
    return range(count - choice.depth if choice.depth else 0, count)


Run = Callable[[Kernel, int], str | None]
"""Returns the line that runs a kernel, `{args}` for its tensors; None where PyTorch computes it."""


@dataclass
class Writer:
    """Writes one program around its kernels."""

    reference: Reference
    steps: Sequence[Kernel | Node]
    names: dict[int, str] = field(default_factory=dict[int, str])
    lines: list[str] = field(default_factory=list[str])
    absorbed: dict[int, Node] = field(default_factory=dict[int, Node])
    """By `id` the calls into PyTorch that kernels make themselves."""

    def text(self, head: str, run: Run) -> str:
        """Return the program without definitions of its own."""
        return self.whole(head, "", self.forward(run))

    def whole(self, head: str, definitions: str, body: list[str]) -> str:
        """Return the program."""
        imports = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
        given = [line for line in self.reference.head.splitlines() if line not in imports.splitlines()]
        constructor = textwrap.indent(textwrap.dedent(self.reference.constructor), "    ")
        parts = [
            head + imports + "".join(f"{line}\n" for line in given),
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
        number = 0
        for step in self.steps:
            if isinstance(step, Node) and id(step) in self.absorbed:
                continue
            if isinstance(step, Node):
                text = step.text.format(*(self._name(one) for one in step.operands))
                self._assign(step, text)
                continue
            line = run(step, number)
            if line is None:
                for node in step.outputs:
                    self._torch(node)
            else:
                self._launch(step, line)
            number += 1
        result = ", ".join(self._name(root) for root in self.reference.roots)
        return [*self.lines, f"return {result}" + ("," if self.reference.several and "," not in result else "")]

    def _assign(self, node: Node, text: str) -> None:
        self.names[id(node)] = f"t{len(self.names)}"
        self.lines.append(f"{self.names[id(node)]} = {text}")

    def _name(self, node: Node) -> str:
        return node.text if node.leaf else self.names[id(node)]

    def _launch(self, kernel: Kernel, line: str) -> None:
        read = [
            one for leaf in kernel.leaves for one in (leaf.operands if id(leaf) in self.absorbed else (leaf,))
        ]  # fmt: skip
        args = [self._name(leaf) + ("" if leaf.kind == "parameter" else ".contiguous()") for leaf in read]
        device = self._name(read[0])
        for node in kernel.outputs:
            self._assign(node, f"torch.empty({node.dims}, device={device}.device, dtype=torch.float32)")
            args.append(self.names[id(node)])
        self.lines.append(line.replace("{args}", ", ".join(args)))

    def _torch(self, node: Node) -> str:
        """Write a node's operators as lines of PyTorch; return its text."""
        if id(node) in self.names:
            return self.names[id(node)]
        if node.leaf:
            return f"{node.text}.float()" if node.dtype in ("float16", "bfloat16") else node.text
        operands = [self._torch(one) for one in node.operands]
        axes = tuple(range(-node.trailing, 0))
        if node.kind == "pointwise":
            text = device_text(node.expression, "torch", tuple(operands))
        elif node.kind == "scan":
            text = f"torch.cumsum({operands[0]}, dim=-1)"
        else:
            call = {"sum": "sum", "max": "amax", "min": "amin"}[node.how]
            text = f"torch.{call}({operands[0]}, dim={axes}, keepdim={node.keepdim})"
        self._assign(node, text)
        return self.names[id(node)]
