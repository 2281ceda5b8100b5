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
from cudal1_data.kernelgen.ir import Node, Reference

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

    Raises:
        UnsuitableError: No product is followed by pointwise operators of its own shape, or a tensor is too large.
    """
    pairs = {id(kernel): (kernel, product) for kernel, product in _pairs(reference, steps)}
    if not pairs:
        raise UnsuitableError("expected a matrix product with pointwise operators behind it")
    program = Writer(reference, steps, absorbed={id(one) for _, one in pairs.values()}, given=_given(pairs))
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
    return bool(_pairs(reference, steps))


def _given(pairs: dict[int, tuple[Kernel, Node]]) -> dict[int, tuple[Read, ...]]:
    """Return what each kernel reads: the product's factors in its place, which are read row after row."""
    return {
        key: tuple(
            (one, leaf is not product)
            for leaf in kernel.leaves
            for one in (leaf.operands if leaf is product else (leaf,))
        )
        for key, (kernel, product) in pairs.items()
    }


def _pairs(reference: Reference, steps: Sequence[Step]) -> list[tuple[Kernel, Node]]:
    """Return kernels with the product that each takes over: its only user, of its own shape."""
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
    return found


def _is_product(node: Node) -> bool:
    if node.kind != "opaque" or any(one.dtype != "float32" for one in node.operands):
        return False
    if node.text in _LINEAR:
        return len(node.operands[0].dims) >= 2
    return node.text == MATMUL and len(node.operands) == 2 and len(node.operands[1].dims) == 2 <= len(node.dims)


def _kernel(kernel: Kernel, product: Node, name: str, tiles: Tiles) -> TritonKernel:
    kernel.check_places(*(one.dims for one in product.operands))
    m, n, k = math.prod(product.dims[:-1]), product.dims[-1], product.operands[0].dims[-1]
    constants, known = Constants(kernel), Names()
    writer = _ProductWriter(kernel, product, known, constants)
    rows, cols, terms = (constants.name(one, size) for one, size in (("M", m), ("N", n), ("K", k)))
    factors = ["left_ptr", "right_ptr", *(["bias_ptr"] if len(product.operands) == 3 else [])]
    ins = [one for leaf in kernel.leaves for one in (factors if leaf is product else [known.pointer(leaf)])]
    across = product.text == MATMUL
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
        f"mask=(m[:, None] < {rows}) & (terms[None, :] < {terms}), other=0.0)",
        f"    right = tl.load(right_ptr + {right}, mask=(n[None, :] < {cols}) & (terms[:, None] < {terms}), other=0.0)",
        f'    acc = tl.dot(left, right, acc, input_precision="{tiles.precision}")',
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
