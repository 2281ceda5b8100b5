"""Attention chains, pairs of products that become one kernel: factors, weights, and the keys that masks hide."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.codegen.masks import LINEAR, Visible, below_sigmoid, uncast, visible
from cudal1_data.kernelgen.codegen.matmuls import MATMUL, swaps_last_axes
from cudal1_data.kernelgen.codegen.programs import Read
from cudal1_data.kernelgen.fusion import Kernel, Step, flat, uses
from cudal1_data.kernelgen.ir import FLOATS, HALVES, Node, Reference

_PRODUCTS = (MATMUL, "torch.matmul({0}, {1})", "torch.bmm({0}, {1})")
_SHARED = re.compile(r"\{0\}\.repeat_interleave\((.+), (?:dim=)?(-?\d)\)")
_SCALED = re.compile(r"a \* (\d+\.\d+)|(\d+\.\d+) \* a")


@dataclass(frozen=True)
class Factor:
    """A factor of a product as a kernel reads it."""

    tensor: Node
    """The tensor in memory."""
    transposed: bool = False
    """Whether its last two axes are stored swapped."""
    sharing: str = ""
    """Python text of the number of query heads that share one of its heads; empty if each has its own."""
    scale: str = ""
    """Its scale, empty for none. Kernels scale the product instead, so that factors keep their narrow dtype."""
    skipped: tuple[Node, ...] = ()
    """Calls and casts between the tensor and the product, whose work the kernel does."""


@dataclass(frozen=True)
class Weights:
    """Weights that one pass over the keys can compute: terms, and the divisor applied after summation."""

    terms: Node
    """Factors of the values during the pass."""
    logits: Node | None
    """Input of a softmax's maximum and exponentials; None without a maximum."""
    top: Node | None
    """The maximum of the logits."""
    total: Node | None
    """The sum of the terms."""
    weights: Node
    """The weights: a multiple of the terms in each row."""
    ceiling: Node | None = None
    """The maximum of the logits and of each row's attention sink; None without a sink."""


@dataclass(frozen=True)
class Chain:
    """Two products and the operators between and after them, which become one kernel."""

    scores: Node
    """The first product."""
    between: Kernel
    """Operators from scores to weights."""
    sums: Node
    """The second product."""
    behind: Kernel
    """The epilogue of the sums."""
    factors: tuple[Factor, Factor, Factor]
    """Queries, keys and values."""
    weights: Weights
    """The weights in one pass."""
    visible: Visible
    """The keys that masks leave visible."""

    @property
    def read(self) -> tuple[Read, ...]:
        """All inputs of the kernel, in order; factors must be contiguous."""
        sides = [one for one in self.between.leaves if one is not self.scores]
        more = [one for one in self.behind.leaves if one is not self.sums and all(one is not side for side in sides)]
        return (*((one.tensor, False) for one in self.factors), *((one, True) for one in (*sides, *more)))

    @property
    def absorbed(self) -> list[Node | Kernel]:
        """Nodes and kernels whose work the kernel does."""
        return [self.scores, self.between, self.sums, *(one for factor in self.factors for one in factor.skipped)]


def chains(reference: Reference, steps: Sequence[Step]) -> tuple[list[Step], list[Chain]]:
    """Return the steps, with a kernel after each chain's sums, which may only store them, and the chains."""
    used = uses(reference.roots, steps)
    kernels = [step for step in steps if isinstance(step, Kernel)]

    def once(*nodes: Node) -> bool:
        return all(sum(one is node for one in used) == 1 for node in nodes)

    changed, found = list(steps), list[Chain]()
    for place, sums in enumerate(steps):
        if not isinstance(sums, Node) or not _is_product(sums):
            continue
        between = next((one for one in kernels if one.outputs == sums.operands[:1]), None)
        scores = None if between is None else next(filter(_is_product, between.leaves), None)
        if between is None or scores is None or between.trailing > 1 or not once(scores, sums.operands[0]):
            continue
        weights = one_pass(between, sums.operands[0])
        if weights is None or not scores.dims == between.domain == sums.operands[0].dims:
            continue
        behind = next((one for one in kernels if any(leaf is sums for leaf in one.leaves)), None)
        if behind is None or behind.trailing or behind.domain != sums.dims or not once(sums):
            behind = Kernel((), sums.dims, 0, frozenset(), (sums,), (sums,))
            changed[place] = behind
        left, right, values = (_factor(one, once) for one in (*scores.operands, sums.operands[1]))
        if left.transposed or left.sharing or values.transposed:
            continue
        logits = weights.logits if weights.logits is not None else below_sigmoid(weights.terms)
        others = [leaf for leaf in between.leaves if leaf is not scores]
        seen = visible(logits, weights.weights, others)
        factors = (left, _plain(right, scores.operands[1]), _plain(values, sums.operands[1]))
        found.append(Chain(scores, between, sums, behind, factors, weights, seen))
    return changed, found


def absorbed(steps: Sequence[Step], found: Sequence[Chain]) -> set[int]:
    """Return the `id`s of nodes and kernels that chains absorb, including casts with no other user."""
    own = {id(one) for chain in found for one in chain.absorbed}
    casts = [step for step in flat(steps) if isinstance(step, Kernel) and all(id(node) in own for node in step.outputs)]
    return own | {id(one) for one in casts if all(one is not chain.behind for chain in found)}


def _plain(factor: Factor, node: Node) -> Factor:
    """Return the factor unscaled, with its scaled node as tensor: kernels scale only queries."""
    return Factor(node) if factor.scale else factor


def _is_product(node: Node) -> bool:
    """Return whether a node is a batched product in which each factor has the same batch."""
    return (
        (node.kind, len(node.operands)) == ("opaque", 2)
        and node.text in _PRODUCTS
        and all(one.dtype in FLOATS and one.dims[:-2] == node.dims[:-2] for one in node.operands)
    )


def _factor(node: Node, once: Callable[[Node], bool]) -> Factor:
    """Return a factor's tensor in memory, before calls and casts that only the product needs."""
    skipped: list[Node] = []
    transposed, sharing, scale = False, "", ""
    while once(node):
        if not sharing and (shared := _SHARED.fullmatch(node.text)) is not None:
            if int(shared[2]) % len(node.dims) != len(node.dims) - 3:
                break
            sharing = shared[1]
        elif not transposed and swaps_last_axes(node):
            transposed = True
        elif not skipped and (scaled := _SCALED.fullmatch(node.expression)) and uncast(node.operands[0]).leaf:
            scale = scaled[1] or scaled[2]
            return Factor(uncast(node.operands[0]), scale=scale, skipped=(node,))
        elif node.kind == "pointwise" and node.dtype == "float32" and uncast(node).dtype in HALVES:
            skipped.append(node)
            node = uncast(node)
            break
        else:
            break
        skipped.append(node)
        node = node.operands[0]
    return Factor(node, transposed, sharing, scale, tuple(skipped))


# --- weights -----------------------------------------------------------------------------------------------------


def one_pass(between: Kernel, weights: Node) -> Weights | None:
    """Return a kernel's weights as one pass over the keys computes them; None if it takes several passes.

    One pass suffices without reductions, for terms over their sum, and for exponentials of logits minus their maximum:
    they are multiplied by one number per row when the maximum grows (online softmax).
    """
    reductions = [node for node in between.members if node.kind == "reduce"]
    tops = [node for node in reductions if node.how == "max"]
    totals = [node for node in reductions if node.how == "sum"]
    if between.scans or len(tops) > 1 or len(totals) > 1 or len(tops) + len(totals) < len(reductions):
        return None
    top, total = next(iter(tops), None), next(iter(totals), None)
    terms = uncast(total.operands[0]) if total is not None else uncast(weights)
    logits = ceiling = None
    if top is not None:
        shifted = uncast(terms.operands[0]) if terms.expression == "exp(a)" else terms
        if (terms.expression, shifted.expression) not in (("exp(a)", "a - b"), ("exp(a - b)", "exp(a - b)")):
            return None
        logits, largest = uncast(shifted.operands[0]), uncast(shifted.operands[1])
        if (
            largest.expression == "max(a, b)"
            and uncast(largest.operands[0]) is top
            and largest.operands[1].dims[-1] == 1
        ):
            ceiling = largest
        elif largest is not top:
            return None
        if uncast(top.operands[0]) is not logits:
            return None
    inner = _inside(logits if logits is not None else terms, between)
    if any(node.kind == "reduce" for node in inner) or not _multiple(weights, terms):
        return None
    return Weights(terms, logits, top, total, uncast(weights), ceiling)


def _inside(node: Node, kernel: Kernel) -> list[Node]:
    """Return the nodes that a kernel computes for a node."""
    leaves = {id(leaf) for leaf in kernel.leaves}
    found: list[Node] = []
    todo = [node]
    while todo:
        one = todo.pop()
        if id(one) not in leaves and not any(one is known for known in found):
            found.append(one)
            todo += one.operands
    return found


def _multiple(weights: Node, terms: Node) -> bool:
    """Return whether weights are the terms times factors that are constant along a row."""
    node = uncast(weights)
    if node is terms:
        return True
    if node.kind != "pointwise" or LINEAR.fullmatch(node.expression) is None:
        return False
    return all(one.dims[-1] == 1 for one in node.operands[1:]) and _multiple(node.operands[0], terms)
