"""Matrix products in Triton with everything that is done to their results in the same kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cudal1_data.kernelgen.codegen.naming import Constants, Names, quotient_text
from cudal1_data.kernelgen.codegen.programs import Read, Writer
from cudal1_data.kernelgen.codegen.triton import TileWriter, TritonKernel, triton_head, whole_kernel
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, Step, flat, uses
from cudal1_data.kernelgen.ir import FLOATS, HALVES, Node, Reference

_LINEAR = ("F.linear({0}, {1})", "F.linear({0}, {1}, {2})")
MATMUL = "({0} @ {1})"
"""How a reference's product is written in the graph."""

Factors = Literal["ieee", "tf32x3"]
"""Triton's names of how factors are multiplied."""


@dataclass(frozen=True)
class Tiles:
    """The parameters of a product's kernel."""

    block_m: int
    """Rows of a program's tile."""
    block_n: int
    """Columns of a program's tile."""
    block_k: int
    """Terms that are loaded at once."""
    warps: int
    """Warps of a program."""
    stages: int
    """Stages of loads."""
    group: int = 1
    """Rows of tiles that neighbouring programs share, so that the L2 cache holds what they read."""
    precision: Factors = "ieee"
    """How factors are multiplied: in float32, or on tensor cores as three products of TF32 parts, which lose little."""


def product_program(reference: Reference, steps: Sequence[Step], tiles: Tiles) -> str:
    """Write the program with a kernel for each product and what follows it; the rest stays PyTorch.

    Factors in half precision go to tensor cores as they are: products of two halves are exact in float32.

    Raises:
        UnsuitableError: There is no product, or a tensor is too large.
    """
    steps, found = _pairs(reference, steps)
    pairs = {id(kernel): (kernel, product) for kernel, product in found}
    if not pairs:
        raise UnsuitableError("expected a matrix product")
    used = uses(reference.roots, steps)
    absorbed = {id(product) for _, product in found}
    skipped = [one for _, product in found for one in _skipped(product) if sum(one is other for other in used) == 1]
    absorbed |= {id(one) for one in skipped}
    for step in flat(steps):
        if isinstance(step, Kernel) and all(any(node is one for one in skipped) for node in step.outputs):
            absorbed.add(id(step))
    program = Writer(reference, steps, absorbed=absorbed, given=_given(pairs))
    definitions: list[str] = []

    def run(kernel: Kernel | LoopStep, number: int) -> str | None:
        if isinstance(kernel, LoopStep) or id(kernel) not in pairs:
            return None
        _, product = pairs[id(kernel)]
        made = _kernel(kernel, product, f"product{number}", tiles)
        definitions.append(made.definition)
        return made.call

    body = program.forward(run)
    return program.whole(triton_head(definitions), "\n\n".join(definitions), body)


def has_product(reference: Reference, steps: Sequence[Step]) -> bool:
    """Whether there is a product that a kernel takes over."""
    return bool(_pairs(reference, steps)[1])


def _given(pairs: dict[int, tuple[Kernel, Node]]) -> dict[int, tuple[Read, ...]]:
    """Return what each kernel reads: the product's factors in its place, which are read row after row."""
    return {
        key: tuple(
            (one, leaf is not product)
            for leaf in kernel.leaves
            for one in (_factors(leaf) if leaf is product else (leaf,))
        )
        for key, (kernel, product) in pairs.items()
    }


def _pairs(reference: Reference, steps: Sequence[Step]) -> tuple[list[Step], list[tuple[Kernel, Node]]]:
    """Return kernels with the product that each takes over, and the steps with a kernel for each product alone."""
    used = uses(reference.roots, steps)
    found: list[tuple[Kernel, Node]] = []
    for step in flat(steps):
        if isinstance(step, Kernel) and not step.trailing:
            mine = [
                leaf
                for leaf in step.leaves
                if _is_product(leaf) and leaf.dims == step.domain and sum(one is leaf for one in used) == 1
            ]
            if mine:
                found.append((step, mine[0]))
    changed = list(steps)
    for place, step in enumerate(steps):
        if isinstance(step, Node) and _is_product(step) and all(step is not product for _, product in found):
            alone = Kernel((), step.dims, 0, frozenset(), (step,), (step,))
            changed[place] = alone
            found.append((alone, step))
    return changed, found


_MATMULS = (MATMUL, "torch.matmul({0}, {1})", "torch.mm({0}, {1})", "{0}.matmul({1})", "{0}.mm({1})")


def _is_product(node: Node) -> bool:
    if node.kind != "opaque" or any(one.dtype not in FLOATS for one in node.operands):
        return False
    if node.text in _LINEAR:
        return len(node.operands[0].dims) >= 2
    return node.text in _MATMULS and len(node.operands) == 2 and len(node.operands[1].dims) == 2 <= len(node.dims)


def _factors(product: Node) -> tuple[Node, ...]:
    """Return what a kernel reads: halves before they were widened, a transposed right factor as it is stored."""
    left, right, *bias = product.operands
    if product.text in _MATMULS and right.text in ("{0}.T", "{0}.t()"):
        right = right.operands[0]
    halves = [_narrow(one) for one in (left, right)]
    if halves[0].dtype == halves[1].dtype:
        left, right = halves
    return left, right, *bias


def _skipped(product: Node) -> list[Node]:
    """Return the casts and transpositions between a product and what its kernel reads, the last first."""
    found: list[Node] = []
    for one, factor in zip(product.operands, _factors(product), strict=True):
        while one is not factor:
            found.append(one)
            one = one.operands[0]
    return found


def _narrow(node: Node) -> Node:
    widened = node.kind == "pointwise" and node.expression == "a" and node.operands[0].dtype in HALVES
    return node.operands[0] if widened and not node.operands[0].strides else node


def _kernel(kernel: Kernel, product: Node, name: str, tiles: Tiles) -> TritonKernel:
    kernel.check_places(*(one.dims for one in product.operands))
    m, n, k = math.prod(product.dims[:-1]), product.dims[-1], product.operands[0].dims[-1]
    constants, known = Constants(kernel), Names()
    writer = _ProductWriter(kernel, product, known, constants)
    rows, cols, terms = (constants.name(one, size) for one, size in (("M", m), ("N", n), ("K", k)))
    factors = ["left_ptr", "right_ptr", *(["bias_ptr"] if len(product.operands) == 3 else [])]
    ins = [one for leaf in kernel.leaves for one in (factors if leaf is product else [known.pointer(leaf)])]
    factor, other = _factors(product)[:2]
    across = product.text in _MATMULS and (other is product.operands[1] or other is _narrow(product.operands[1]))
    half = factor.dtype in HALVES and factor.dtype == other.dtype
    dot = "" if half else f', input_precision="{tiles.precision}"'
    widen = "" if half or factor.dtype == other.dtype == "float32" else ".to(tl.float32)"
    right = f"terms[:, None] * {cols} + n[None, :]" if across else f"n[None, :] * {terms} + terms[:, None]"
    lines = [
        "# Programs go through tiles in groups of rows, so that neighbours share what the L2 cache holds.",
        f"over = tl.cdiv({cols}, BLOCK_N)",
        "group = tl.program_id(0) // (GROUP * over)",
        "inner = tl.program_id(0) % (GROUP * over)",
        f"high = min(tl.cdiv({rows}, BLOCK_M) - group * GROUP, GROUP)",
        "m = (group * GROUP + inner % high) * BLOCK_M + tl.arange(0, BLOCK_M)",
        "n = (inner // high) * BLOCK_N + tl.arange(0, BLOCK_N)",
        "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
        f"for start in range(0, {terms}, BLOCK_K):",
        "    terms = start + tl.arange(0, BLOCK_K)",
        f"    left = tl.load(left_ptr + m[:, None] * {terms} + terms[None, :], "
        f"mask=(m[:, None] < {rows}) & (terms[None, :] < {terms}), other=0.0){widen}",
        f"    right = tl.load(right_ptr + {right}, "
        f"mask=(n[None, :] < {cols}) & (terms[:, None] < {terms}), other=0.0){widen}",
        f"    acc = tl.dot(left, right, acc{dot})",
        *([f"acc += tl.load(bias_ptr + n, mask=n < {cols}, other=0.0)[None, :]"] if len(product.operands) == 3 else []),
        f"offsets = m[:, None] * {cols} + n[None, :]",
        f"mask = (m[:, None] < {rows}) & (n[None, :] < {cols})",
        *writer.body(),
    ]
    sizes = {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k, "GROUP": tiles.group}
    return whole_kernel(
        name,
        [*ins, *known.outputs(len(kernel.outputs))],
        lines,
        constants.within("\n".join(lines)) | {one: str(size) for one, size in sizes.items()},
        programs=f"{quotient_text(m, tiles.block_m)} * {quotient_text(n, tiles.block_n)}",
        tuned={"num_warps": tiles.warps, "num_stages": tiles.stages},
        comment="A tiled matrix product whose epilogue is fused: its result is finished before it is written.",
    )


class _ProductWriter(TileWriter):
    """A tile in which one of the leaves is the accumulator."""

    def __init__(self, kernel: Kernel, product: Node, known: Names, constants: Constants) -> None:
        super().__init__(kernel, known, constants)
        self.names[id(product), False] = "acc"
