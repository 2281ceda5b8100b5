"""Matrix products in CUDA C++ with fused epilogues.

Tiles of both factors go through shared memory. In float32 a thread keeps its part of a block's tile in registers
(register blocking). Half-precision factors go to tensor cores (`mma.sync`), where a warp keeps its part. Both
accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.codegen.cuda.text import (
    READS,
    TYPES,
    CudaKernel,
    Share,
    Writer,
    stored,
    whole_kernel,
    wide_type,
)
from cudal1_data.kernelgen.codegen.matmuls import Product, is_single_product, products
from cudal1_data.kernelgen.codegen.naming import Names
from cudal1_data.kernelgen.codegen.programs import Make, inline_text, nvrtc_text
from cudal1_data.kernelgen.codegen.programs import Writer as ProgramWriter
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Step
from cudal1_data.kernelgen.ir import Reference

_NAMES = (
    "sum sums first_row first_col part_row part_col lane warp place read tiles left_part right_part m n row col term "
    "start part left_tile right_tile multiply"
)
_VECTORS = {"float32": (4, 2, 1), "float16": (8, 4, 2, 1), "bfloat16": (8, 4, 2, 1), "bool": (1,)}
"""Possible numbers of elements that a thread reads at once, up to 16 bytes."""


@dataclass(frozen=True)
class CudaTiles:
    """The parameters of a product's kernel."""

    block_m: int
    """Rows of a block's tile."""
    block_n: int
    """Columns of a block's tile."""
    block_k: int
    """Terms in shared memory at once."""
    part_m: int
    """Rows of the part of the tile that a thread (on tensor cores, a warp) keeps in registers."""
    part_n: int
    """Columns of that part."""


_FLOATS = [
    CudaTiles(*sizes)
    for sizes in ((32, 64, 16, 4, 4), (64, 64, 16, 4, 4), (128, 64, 16, 8, 4), (128, 128, 8, 8, 8), (64, 128, 16, 8, 8))
]
_HALVES = [
    CudaTiles(*sizes)
    for sizes in ((32, 64, 32, 16, 32), (64, 64, 32, 32, 32), (128, 64, 32, 32, 32), (128, 128, 32, 64, 32))
]


def product_choices(reference: Reference, steps: Sequence[Step]) -> list[CudaTiles]:
    """Return the parameters that suit a reference; empty if no product becomes a kernel."""
    try:
        found = products(reference, steps, is_single_product)
    except UnsuitableError:
        return []
    return _HALVES if all(one.half for one in found.by_kernel.values()) else _FLOATS


def nvrtc_product_program(reference: Reference, steps: Sequence[Step], tiles: CudaTiles) -> str:
    """Return the program with a kernel for each product and its epilogue, built by NVRTC; the rest stays PyTorch.

    Raises:
        UnsuitableError: There is no product, or a tensor is too large.
    """
    return _program(reference, steps, tiles, nvrtc_text)


def inline_product_program(reference: Reference, steps: Sequence[Step], tiles: CudaTiles) -> str:
    """Return the same program, built by torch's extension loader.

    Raises:
        UnsuitableError: There is no product, or a tensor is too large.
    """
    return _program(reference, steps, tiles, inline_text)


def _program(
    reference: Reference, steps: Sequence[Step], tiles: CudaTiles, text: Callable[[ProgramWriter, Make], str]
) -> str:
    found = products(reference, steps, is_single_product)

    def make(kernel: object, number: int) -> CudaKernel | None:
        product = found.by_kernel.get(id(kernel))
        return None if product is None else _Product(product, tiles).kernel(f"product{number}")

    return text(found.writer, make)


class _Product:
    """Writer of a product's kernel.

    Raises:
        UnsuitableError: A tensor is too large, or threads' parts of the tiles are.
    """

    def __init__(self, product: Product, tiles: CudaTiles) -> None:
        product.check_places()
        self.product = product
        self.tiles = tiles
        # A warp's parts are larger than a thread's: the tiles' parts determine which of the two they are for.
        self.warps = product.half and tiles.part_m % 16 == 0 and tiles.part_n % 8 == 0
        if not self.warps and tiles.part_m * tiles.part_n > 64:
            raise UnsuitableError(f"a thread keeps up to 64 sums, not {tiles.part_m} x {tiles.part_n}")
        self.writer = Writer(product.kernel)
        self.writer.known = Names(_NAMES.split())
        name = self.writer.constants.name
        self.rows, self.cols, self.terms = name("M", product.rows), name("N", product.cols), name("K", product.terms)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        tiles = self.tiles
        return tiles.block_m // tiles.part_m * (tiles.block_n // tiles.part_n) * (32 if self.warps else 1)

    def kernel(self, name: str) -> CudaKernel:
        """Return the kernel."""
        product, tiles = self.product, self.tiles
        bias = [("bias_ptr", product.bias.dtype)] if product.bias is not None else []
        factors = [("left_ptr", product.left.dtype), ("right_ptr", product.right.dtype), *bias]
        ends = self._after()
        inputs = [
            one
            for leaf in product.kernel.leaves
            for one in (factors if leaf is product.node else [(self.writer.known.pointer(leaf), leaf.dtype)])
        ]
        lines = [
            *self._begin(),
            f"for (unsigned int start = 0; start < {self.terms}; start += BLOCK_K) {{",
            *_indented(self._load("left")),
            *_indented(self._load("right")),
            "    __syncthreads();",
            *_indented(self._multiply_warps() if self.warps else self._multiply_threads()),
            "    __syncthreads();",
            "}",
            *ends,
        ]
        comment = "Tiles of both factors go through shared memory; "
        comment += (
            "a warp multiplies its part on tensor cores." if self.warps else "a thread has its part in registers."
        )
        grid = (Share(product.rows, tiles.block_m), Share(product.cols, tiles.block_n))
        return whole_kernel(
            self.writer,
            name,
            lines,
            grid,
            (self.threads, 1, 1),
            comment=comment,
            helpers=self._helpers(),
            inputs=inputs,
        )

    def _helpers(self) -> str:
        tiles = self.tiles
        keeper, of_keeper = ("warp", " * 32") if self.warps else ("thread", "")
        text = f"""// A block's tile of the result, and the terms in shared memory at once.
constexpr unsigned int BLOCK_M = {tiles.block_m}, BLOCK_N = {tiles.block_n}, BLOCK_K = {tiles.block_k};
// A {keeper}'s part of the tile, which it keeps in registers.
constexpr unsigned int PART_M = {tiles.part_m}, PART_N = {tiles.part_n};
constexpr unsigned int THREADS = (BLOCK_M / PART_M) * (BLOCK_N / PART_N){of_keeper};
"""
        kind = {"float16": "f16", "bfloat16": "bf16"}.get(self.product.left.dtype, "")
        return text + (_MULTIPLY.replace("KIND", kind) if self.warps else "")

    def _begin(self) -> list[str]:
        tiles = f"(({self.cols} + BLOCK_N - 1) / BLOCK_N)"
        begin = [
            f"const unsigned int first_row = blockIdx.x / {tiles} * BLOCK_M;",
            f"const unsigned int first_col = blockIdx.x % {tiles} * BLOCK_N;",
        ]
        if self.warps:
            return [
                "// Eight elements behind each row keep rows in different banks.",
                "__shared__ __align__(16) unsigned short left_tile[BLOCK_M][BLOCK_K + 8];",
                "__shared__ __align__(16) unsigned short right_tile[BLOCK_N][BLOCK_K + 8];",
                *begin,
                "const unsigned int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
                "const unsigned int part_row = warp / (BLOCK_N / PART_N) * PART_M;",
                "const unsigned int part_col = warp % (BLOCK_N / PART_N) * PART_N;",
                "float sums[PART_M / 16][PART_N / 8][4] = {};",
            ]
        return [
            "__shared__ __align__(16) float left_tile[BLOCK_K][BLOCK_M + 4];",
            "__shared__ __align__(16) float right_tile[BLOCK_K][BLOCK_N + 4];",
            *begin,
            "const unsigned int part_row = threadIdx.x / (BLOCK_N / PART_N) * PART_M;",
            "const unsigned int part_col = threadIdx.x % (BLOCK_N / PART_N) * PART_N;",
            "float sums[PART_M][PART_N] = {};",
        ]

    def _load(self, side: str) -> list[str]:
        """Return the loop that loads a factor's tile into shared memory, several adjacent elements at once."""
        left = side == "left"
        factor, line, block = (self.product.left, "row", "M") if left else (self.product.right, "col", "N")
        size, across = self.rows if left else self.cols, not left and self.product.across
        inner = self.product.cols if across else self.product.terms
        vector = next(width for width in _VECTORS[factor.dtype] if int(inner) % width == 0)
        wide = wide_type(factor.dtype, vector) if vector > 1 else TYPES[factor.dtype]
        if across:
            places = "term = start + place / BLOCK_N, col = first_col + place % BLOCK_N"
            where = f"term * {size} + col"
            tile_line, tile_term = "place % BLOCK_N + part", "place / BLOCK_N"
        else:
            places = f"{line} = first_{line} + place / BLOCK_K, term = start + place % BLOCK_K"
            where = f"{line} * {self.terms} + term"
            tile_line, tile_term = "place / BLOCK_K", "place % BLOCK_K + part"
        element = f"reinterpret_cast<const {TYPES[factor.dtype]}*>(&read)[part]"
        value = element if self.warps else READS[factor.dtype].format(element)
        tile = f"[{tile_line}][{tile_term}]" if self.warps else f"[{tile_term}][{tile_line}]"
        pointer = f"{side}_ptr"
        read = f"*reinterpret_cast<const {wide}*>({pointer} + {where})" if vector > 1 else f"{pointer}[{where}]"
        return [
            "#pragma unroll",
            f"for (unsigned int place = threadIdx.x * {vector}; place < BLOCK_{block} * BLOCK_K; "
            f"place += THREADS * {vector}) {{",
            f"    const unsigned int {places};",
            f"    {wide} read = {{}};",
            f"    if ({line} < {size} && term < {self.terms}) read = {read};",
            "#pragma unroll",
            f"    for (unsigned int part = 0; part < {vector}; ++part) {side}_tile{tile} = {value};",
            "}",
        ]

    def _multiply_threads(self) -> list[str]:
        lines = ["#pragma unroll", "for (unsigned int term = 0; term < BLOCK_K; ++term) {"]
        lines.append("    __align__(16) float left_part[PART_M], right_part[PART_N];")
        for side, line, size in (("left", "row", "M"), ("right", "col", "N")):
            lines += [
                "#pragma unroll",
                f"    for (unsigned int part = 0; part < PART_{size}; part += 4)",
                f"        *reinterpret_cast<float4*>(&{side}_part[part]) = "
                f"*reinterpret_cast<const float4*>(&{side}_tile[term][part_{line} + part]);",
            ]
        return [
            *lines,
            "#pragma unroll",
            "    for (unsigned int m = 0; m < PART_M; ++m)",
            "#pragma unroll",
            "        for (unsigned int n = 0; n < PART_N; ++n) sums[m][n] += left_part[m] * right_part[n];",
            "}",
        ]

    def _multiply_warps(self) -> list[str]:
        return [
            "#pragma unroll",
            "for (unsigned int term = 0; term < BLOCK_K; term += 16) {",
            "    // Of each 16 x 16 and 16 x 8 fragment a thread holds pairs of neighbouring terms.",
            "    unsigned int left_part[PART_M / 16][4], right_part[PART_N / 8][2];",
            "    const unsigned int line = lane / 4, pair = term + lane % 4 * 2;",
            "#pragma unroll",
            "    for (unsigned int m = 0; m < PART_M / 16; ++m)",
            "#pragma unroll",
            "        for (unsigned int part = 0; part < 4; ++part)",
            "            left_part[m][part] = *reinterpret_cast<const unsigned int*>(",
            "                &left_tile[part_row + m * 16 + part % 2 * 8 + line][pair + part / 2 * 8]);",
            "#pragma unroll",
            "    for (unsigned int n = 0; n < PART_N / 8; ++n)",
            "#pragma unroll",
            "        for (unsigned int part = 0; part < 2; ++part)",
            "            right_part[n][part] = *reinterpret_cast<const unsigned int*>(",
            "                &right_tile[part_col + n * 8 + line][pair + part * 8]);",
            "#pragma unroll",
            "    for (unsigned int m = 0; m < PART_M / 16; ++m)",
            "#pragma unroll",
            "        for (unsigned int n = 0; n < PART_N / 8; ++n) multiply(sums[m][n], left_part[m], right_part[n]);",
            "}",
        ]

    def _after(self) -> list[str]:
        """Return the lines of the epilogue and stores."""
        product, writer = self.product, self.writer
        if self.warps:
            loops = [("m", "PART_M / 16"), ("n", "PART_N / 8"), ("part", "4")]
            row = "first_row + part_row + m * 16 + part / 2 * 8 + lane / 4"
            col, total = "first_col + part_col + n * 8 + lane % 4 * 2 + part % 2", "sums[m][n][part]"
        else:
            loops = [("m", "PART_M"), ("n", "PART_N")]
            row, col, total = "first_row + part_row + m", "first_col + part_col + n", "sums[m][n]"
        if product.bias is not None:
            total += " + " + READS[product.bias.dtype].format("bias_ptr[col]")
        writer.vectors[id(product.node)] = "sum"
        writer.names[id(product.node), False] = "sum"
        outs = writer.known.outputs(len(product.kernel.outputs))
        stores = [
            f"{out}[i] = {stored(writer.value(node, False), node.dtype)};"
            for out, node in zip(outs, product.kernel.outputs, strict=True)
        ]
        inner = [
            f"const unsigned int row = {row}, col = {col}, i = row * {self.cols} + col;",
            f"if (row < {self.rows} && col < {self.cols}) {{",
            f"    const float sum = {total};",
            *_indented([*writer.lines, *stores]),
            "}",
        ]
        for name, count in reversed(loops):
            inner = ["#pragma unroll", f"for (unsigned int {name} = 0; {name} < {count}; ++{name}) {{",
                     *_indented(inner), "}"]  # fmt: skip
        return inner


_MULTIPLY = """// sums += left * right: fragments of 16 x 16 and 16 x 8 elements, a warp's threads together.
__device__ __forceinline__ void multiply(float* sums, const unsigned int* left, const unsigned int* right) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(sums[0]), "+f"(sums[1]),
        "+f"(sums[2]), "+f"(sums[3]) : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]),
        "r"(right[1]));
}
"""


def _indented(lines: Sequence[str]) -> list[str]:
    return [line if line.startswith("#") else f"    {line}" for line in lines]
