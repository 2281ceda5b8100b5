"""Matrix products in Triton with everything that is done to their results in the same kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cudal1_data.kernelgen.codegen.programs import Read, Writer
from cudal1_data.kernelgen.codegen.triton import TileWriter, triton_head
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
        definitions.append(_kernel(kernel, product, f"product{number}", tiles))
        m, n = math.prod(product.dims[:-1]), product.dims[-1]
        programs = -(-m // tiles.block_m) * -(-n // tiles.block_n)
        return f"product{number}[({programs},)]({{args}}, num_warps={tiles.warps}, num_stages={tiles.stages})"

    body = program.forward(run)
    return program.whole(triton_head(definitions), "\n\n".join(definitions), body)


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


def _kernel(kernel: Kernel, product: Node, name: str, tiles: Tiles) -> str:
    kernel.check_places(*(one.dims for one in product.operands))
    n, k = product.dims[-1], product.operands[0].dims[-1]
    m = math.prod(product.dims[:-1])
    across = product.text == MATMUL
    writer = _ProductWriter(kernel, product)
    ins: list[str] = []
    for place, leaf in enumerate(kernel.leaves):
        bias = ["bias"] if len(product.operands) == 3 else []
        ins += ["left", "right", *bias] if leaf is product else [f"in{place}"]
    outs = [f"out{place}" for place in range(len(kernel.outputs))]
    down, over = -(-m // tiles.block_m), -(-n // tiles.block_n)
    right = f"right + terms[:, None] * {n} + n[None, :]" if across else f"right + n[None, :] * {k} + terms[:, None]"
    lines = [
        f"group = tl.program_id(0) // {tiles.group * over}",
        f"inner = tl.program_id(0) % {tiles.group * over}",
        f"high = min({down} - group * {tiles.group}, {tiles.group})",
        f"m = (group * {tiles.group} + inner % high) * {tiles.block_m} + tl.arange(0, {tiles.block_m})",
        f"n = (inner // high) * {tiles.block_n} + tl.arange(0, {tiles.block_n})",
        f"acc = tl.zeros(({tiles.block_m}, {tiles.block_n}), dtype=tl.float32)",
        f"for start in range(0, {k}, {tiles.block_k}):",
        f"    terms = start + tl.arange(0, {tiles.block_k})",
        f"    a = tl.load(left + m[:, None] * {k} + terms[None, :], "
        f"mask=(m[:, None] < {m}) & (terms[None, :] < {k}), other=0.0)",
        f"    b = tl.load({right}, mask=(n[None, :] < {n}) & (terms[:, None] < {k}), other=0.0)",
        f'    acc = tl.dot(a, b, acc, input_precision="{tiles.precision}")',
        *([f"acc += tl.load(bias + n, mask=n < {n}, other=0.0)[None, :]"] if len(product.operands) == 3 else []),
        f"place = m[:, None] * {n} + n[None, :]",
        f"inside = (m[:, None] < {m}) & (n[None, :] < {n})",
        *writer.body(),
    ]
    head = f"@triton.jit\ndef {name}({', '.join([*ins, *outs])}):\n"
    return head + "".join(f"    {line}\n" for line in lines)


class _ProductWriter(TileWriter):
    """A tile in which one of the leaves is the accumulator."""

    def __init__(self, kernel: Kernel, product: Node) -> None:
        super().__init__(kernel)
        self.names[id(product), False] = "acc"
