"""Matrix products that become kernels with their epilogues, and their factors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.codegen.programs import Read, Writer
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, Step, flat, uses
from cudal1_data.kernelgen.ir import FLOATS, HALVES, Node, Reference

_LINEAR = ("F.linear({0}, {1})", "F.linear({0}, {1}, {2})")
MATMUL = "({0} @ {1})"
"""Text of a reference's product in the graph."""


@dataclass(frozen=True)
class Product:
    """A product that becomes one kernel with its epilogue."""

    kernel: Kernel
    """The epilogue, which may only store the result."""
    node: Node
    """The product."""

    @property
    def rows(self) -> int:
        """Rows of the result: over all axes but the last, or of one product of a batch."""
        return self.node.dims[-2] if self.batched else math.prod(self.node.dims[:-1])

    @property
    def batched(self) -> bool:
        """Whether it is a batch of products, each with a right factor of its own."""
        return self.node.text in _MATMULS and len(self.right.dims) > 2

    @property
    def products(self) -> int:
        """Number of products in the batch."""
        return math.prod(self.node.dims[:-2]) if self.batched else 1

    @property
    def cols(self) -> int:
        """Columns of the result."""
        return self.node.dims[-1]

    @property
    def terms(self) -> int:
        """Terms of each sum."""
        return self.node.operands[0].dims[-1]

    @property
    def left(self) -> Node:
        """The left factor as it is stored: rows of terms."""
        return factors(self.node)[0]

    @property
    def right(self) -> Node:
        """The right factor as it is stored."""
        return factors(self.node)[1]

    @property
    def bias(self) -> Node | None:
        """The bias added to each row, if any."""
        return self.node.operands[2] if len(self.node.operands) == 3 else None

    @property
    def across(self) -> bool:
        """Whether the right factor is stored as rows of columns; otherwise as columns of terms."""
        return self.node.text in _MATMULS and (
            self.right is self.node.operands[1] or self.right is narrow(self.node.operands[1])
        )

    @property
    def half(self) -> bool:
        """Whether both factors are stored in the same half precision: their products are exact in float32."""
        return self.left.dtype in HALVES and self.left.dtype == self.right.dtype

    def check_places(self) -> None:
        """Check that 32 bits can index its tensors.

        Raises:
            UnsuitableError: A tensor is too large.
        """
        self.kernel.check_places(*(one.dims for one in self.node.operands))


@dataclass(frozen=True)
class Products:
    """All products of a reference that become kernels."""

    writer: Writer
    """Writer of the program around them."""
    by_kernel: dict[int, Product]
    """Products by `id` of their epilogue's kernel."""


def products(reference: Reference, steps: Sequence[Step], is_product: Callable[[Node], bool] | None = None) -> Products:
    """Return the products that become kernels.

    Args:
        reference: The reference.
        steps: Its plan.
        is_product: Which calls are products; those of `is_product_of` by default.

    Raises:
        UnsuitableError: There is none.
    """
    used = uses(reference.roots, steps)
    steps, found = pairs_of(reference, steps, is_product or is_product_of(steps))
    pairs = {id(kernel): (kernel, product) for kernel, product in found}
    if not pairs:
        raise UnsuitableError("no matrix product can become a kernel")
    absorbed = {id(product) for _, product in found}
    skipped = [one for _, product in found for one in _skipped(product) if sum(one is other for other in used) == 1]
    absorbed |= {id(one) for one in skipped}
    for step in flat(steps):
        if isinstance(step, Kernel) and all(any(node is one for one in skipped) for node in step.outputs):
            absorbed.add(id(step))
    writer = Writer(reference, steps, absorbed=absorbed, given=_given(pairs))
    return Products(writer, {key: Product(*pair) for key, pair in pairs.items()})


def has_product(reference: Reference, steps: Sequence[Step]) -> bool:
    """Return whether a product becomes a kernel."""
    return bool(pairs_of(reference, steps, is_product_of(steps))[1])


def _given(pairs: dict[int, tuple[Kernel, Node]]) -> dict[int, tuple[Read, ...]]:
    """Return each kernel's inputs, with the product replaced by its factors, which must be contiguous."""
    return {
        key: tuple(
            (one, leaf is not product)
            for leaf in kernel.leaves
            for one in (factors(leaf) if leaf is product else (leaf,))
        )
        for key, (kernel, product) in pairs.items()
    }


def pairs_of(
    reference: Reference, steps: Sequence[Step], is_product: Callable[[Node], bool]
) -> tuple[list[Step], list[tuple[Kernel, Node]]]:
    """Return the steps, with a new kernel for each product without epilogue, and the pairs of kernel and product."""
    used = uses(reference.roots, steps)
    found: list[tuple[Kernel, Node]] = []
    for step in flat(steps):
        if isinstance(step, Kernel) and not step.trailing:
            mine = [
                leaf
                for leaf in step.leaves
                if is_product(leaf) and leaf.dims == step.domain and sum(one is leaf for one in used) == 1
            ]
            if mine:
                found.append((step, mine[0]))
    changed = list(steps)
    for place, step in enumerate(steps):
        if isinstance(step, Node) and is_product(step) and all(step is not product for _, product in found):
            alone = Kernel((), step.dims, 0, frozenset(), (step,), (step,))
            changed[place] = alone
            found.append((alone, step))
    return changed, found


_MATMULS = (
    MATMUL,
    *(text for name in ("matmul", "mm", "bmm") for text in (f"torch.{name}({{0}}, {{1}})", f"{{0}}.{name}({{1}})")),
)
_SWAPPED = re.compile(r"\{0\}\.transpose\((-?\d), (-?\d)\)")


def is_product_of(steps: Sequence[Step]) -> Callable[[Node], bool]:
    """Return which calls of a program are products.

    Products of a batch stay in PyTorch where the program has rows, as attention has, which is a kernel of its own.
    """
    rows = any(isinstance(step, Kernel) and step.trailing for step in flat(steps))
    return is_single_product if rows else lambda node: is_single_product(node) or _is_batch(node)


def is_single_product(node: Node) -> bool:
    """Return whether a call is a product whose right factor has two axes."""
    if node.kind != "opaque" or any(one.dtype not in FLOATS for one in node.operands):
        return False
    if node.text in _LINEAR:
        return len(node.operands[0].dims) >= 2
    return node.text in _MATMULS and len(node.operands) == 2 and len(node.operands[1].dims) == 2 <= len(node.dims)


def _is_batch(node: Node) -> bool:
    """Return whether a call is a batch of products; both factors have the result's batch."""
    if node.kind != "opaque" or node.text not in _MATMULS or len(node.dims) < 3:
        return False
    return all(one.dtype in FLOATS and one.dims[:-2] == node.dims[:-2] for one in node.operands)


def swaps_last_axes(node: Node) -> bool:
    """Return whether a call swaps the last two axes of a tensor."""
    if node.text in ("{0}.T", "{0}.t()"):
        return len(node.dims) == 2
    axes, count = _SWAPPED.fullmatch(node.text), len(node.dims)
    return axes is not None and {int(axes[1]) % count, int(axes[2]) % count} == {count - 2, count - 1}


def factors(product: Node) -> tuple[Node, ...]:
    """Return the stored factors: halves before they were widened, a transposed right factor before transposition."""
    if product.how:  # a pool
        return product.operands
    left, right, *bias = product.operands
    if product.text in _MATMULS and swaps_last_axes(right):
        right = right.operands[0]
    halves = [narrow(one) for one in (left, right)]
    if halves[0].dtype == halves[1].dtype:
        left, right = halves
    return left, right, *bias


def _skipped(product: Node) -> list[Node]:
    """Return the casts and transpositions between a product and its stored factors, the last first."""
    found: list[Node] = []
    for one, factor in zip(product.operands, factors(product), strict=True):
        while one is not factor:
            found.append(one)
            one = one.operands[0]
    return found


def narrow(node: Node) -> Node:
    """Return a half-precision factor before it was widened; other factors unchanged."""
    widened = node.kind == "pointwise" and node.expression == "a" and node.operands[0].dtype in HALVES
    return node.operands[0] if widened and not node.operands[0].strides else node
