"""Matrix products in Triton with fused epilogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cudal1_data.kernelgen.codegen.matmuls import Product, Products, products
from cudal1_data.kernelgen.codegen.naming import Constants, Names, quotient_text
from cudal1_data.kernelgen.codegen.triton import TRITON_HEAD, TileWriter, TritonKernel, whole_kernel
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, Step
from cudal1_data.kernelgen.ir import Node, Reference
from cudal1_data.kernelgen.sizes import host_text

Factors = Literal["ieee", "tf32x3"]
"""Triton's names of multiplication precisions."""
_MAX_BATCH = 65535
"""Maximum of a grid's second number on CUDA devices."""


@dataclass(frozen=True)
class Tiles:
    """The parameters of a product's kernel."""

    block_m: int
    """Rows of a program's tile."""
    block_n: int
    """Columns of a program's tile."""
    block_k: int
    """Terms loaded at once."""
    warps: int
    """Warps of a program."""
    stages: int
    """Pipeline stages of loads."""
    group: int = 1
    """Rows of tiles shared by neighbouring programs, so that their data stays in the L2 cache."""
    precision: Factors = "ieee"
    """Multiplication of factors: in float32, or on tensor cores as three products of TF32 parts with little loss."""


def product_program(reference: Reference, steps: Sequence[Step], tiles: Tiles) -> str:
    """Return the program with a kernel for each product and its epilogue; the rest stays PyTorch.

    Half-precision factors go to tensor cores unchanged: products of two halves are exact in float32.

    Raises:
        UnsuitableError: There is no product, or a tensor is too large.
    """
    return program_of(products(reference, steps), _kernel, tiles)


def program_of(found: Products, write: Callable[[Product, str, Tiles], TritonKernel], tiles: Tiles) -> str:
    """Return the program with a kernel for each product.

    Args:
        found: The products.
        write: Writes the kernel of a product, under a name.
        tiles: Parameters of the kernels.
    """
    definitions: list[str] = []

    def run(kernel: Kernel | LoopStep, number: int) -> str | None:
        if id(kernel) not in found.by_kernel:
            return None
        made = write(found.by_kernel[id(kernel)], f"product{number}", tiles)
        definitions.append(made.definition)
        return made.call

    body = found.writer.forward(run)
    return found.writer.whole(TRITON_HEAD, "\n\n".join(definitions), body)


def _kernel(product: Product, name: str, tiles: Tiles) -> TritonKernel:
    product.check_places()
    if product.products > _MAX_BATCH:
        raise UnsuitableError(f"a grid has up to {_MAX_BATCH} batches, not {product.products}")
    kernel, m, n, k = product.kernel, product.rows, product.cols, product.terms
    constants, known = Constants(kernel), Names()
    writer = ProductWriter(kernel, product.node, known, constants)
    rows, cols, terms = (constants.name(one, size) for one, size in (("M", m), ("N", n), ("K", k)))
    ins, dot, widen = pointers(product, known), *arithmetic(product, tiles)
    row, term, column = (
        f"(batch * {size} + {place})" if product.batched else place
        for size, place in ((rows, "m[:, None]"), (terms, "terms[:, None]"), (cols, "n[None, :]"))
    )
    right = f"{term} * {cols} + n[None, :]" if product.across else f"{column} * {terms} + terms[:, None]"
    lines = [
        *(["batch = tl.program_id(1)"] if product.batched else []),
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
        f"    left = tl.load(left_ptr + {row} * {terms} + terms[None, :], "
        f"mask=(m[:, None] < {rows}) & (terms[None, :] < {terms}), other=0.0){widen}",
        f"    right = tl.load(right_ptr + {right}, "
        f"mask=(n[None, :] < {cols}) & (terms[:, None] < {terms}), other=0.0){widen}",
        f"    acc = tl.dot(left, right, acc{dot})",
        *([f"acc += tl.load(bias_ptr + n, mask=n < {cols}, other=0.0)[None, :]"] if product.bias is not None else []),
        f"offsets = {row} * {cols} + n[None, :]",
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
        batch=host_text(product.products) if product.batched else "",
    )


def pointers(product: Product, known: Names) -> list[str]:
    """Return the names of the tensors that a product's kernel reads."""
    factors = ["left_ptr", "right_ptr", "bias_ptr"][: len(product.node.operands)]
    leaves = product.kernel.leaves
    return [one for leaf in leaves for one in (factors if leaf is product.node else [known.pointer(leaf)])]


def arithmetic(product: Product, tiles: Tiles) -> tuple[str, str]:
    """Return the last argument of `tl.dot`, and what widens a factor that it would not take unchanged."""
    plain = product.left.dtype == product.right.dtype == "float32"
    precise = "" if product.half else f', input_precision="{tiles.precision}"'
    return precise, "" if product.half or plain else ".to(tl.float32)"


class ProductWriter(TileWriter):
    """Writer of a tile in which one leaf is the accumulator."""

    def __init__(self, kernel: Kernel, product: Node, known: Names, constants: Constants) -> None:
        super().__init__(kernel, known, constants)
        self.names[id(product), False] = "acc"
