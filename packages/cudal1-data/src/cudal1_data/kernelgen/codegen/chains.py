"""Which two products become one kernel of attention: their factors, the weights, and the keys that masks hide."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.codegen.masks import LINEAR, Visible, below_sigmoid, uncast, visible
from cudal1_data.kernelgen.codegen.matmuls import MATMUL
from cudal1_data.kernelgen.codegen.programs import Read
from cudal1_data.kernelgen.fusion import Kernel, Step, flat, uses
from cudal1_data.kernelgen.ir import FLOATS, HALVES, Node, Reference

_PRODUCTS = (MATMUL, "torch.matmul({0}, {1})", "torch.bmm({0}, {1})")
_TURNED = re.compile(r"\{0\}\.transpose\((-?\d), (-?\d)\)")
_SHARED = re.compile(r"\{0\}\.repeat_interleave\((.+), (?:dim=)?(-?\d)\)")
_SCALED = re.compile(r"a \* (\d+\.\d+)|(\d+\.\d+) \* a")


@dataclass(frozen=True)
class Factor:
    """A factor of a product as a kernel reads it."""

    tensor: Node
    """What lies in memory."""
    transposed: bool = False
    """Whether its last two axes are stored in the other order."""
    sharing: str = ""
    """How many heads of queries share one of its heads, in Python; empty where each has its own."""
    scale: str = ""
    """The number that it is multiplied by; kernels multiply the product, so that factors stay as narrow as they are
    stored. Empty for none."""
    skipped: tuple[Node, ...] = ()
    """Calls and casts between the tensor and the product, whose work the kernel does itself."""


@dataclass(frozen=True)
class Weights:
    """Weights that one pass over the keys can make: terms, and what they are divided by when all are added."""

    terms: Node
    """What values are multiplied by as they come."""
    logits: Node | None
    """Of a softmax, what goes into its maximum and its exponentials; None where there is no maximum."""
    top: Node | None
    """The maximum of the logits."""
    total: Node | None
    """The sum of the terms."""
    weights: Node
    """The weights: a multiple of the terms in each row."""
    ceiling: Node | None = None
    """The maximum of the logits and of one number more for each row, an attention sink; None where there is none."""


@dataclass(frozen=True)
class Chain:
    """What becomes one kernel."""

    scores: Node
    """The first product."""
    between: Kernel
    """From scores to weights."""
    sums: Node
    """The second product."""
    behind: Kernel
    """What is done to the sums."""
    factors: tuple[Factor, Factor, Factor]
    """Queries, keys and values."""
    weights: Weights
    """How weights are made in one pass."""
    visible: Visible
    """Which keys have a weight."""

    @property
    def read(self) -> tuple[Read, ...]:
        """All that the kernel reads, in order; factors row after row."""
        sides = [one for one in self.between.leaves if one is not self.scores]
        more = [one for one in self.behind.leaves if one is not self.sums and all(one is not side for side in sides)]
        return (*((one.tensor, False) for one in self.factors), *((one, True) for one in (*sides, *more)))

    @property
    def absorbed(self) -> list[Node | Kernel]:
        """What the kernel does itself."""
        return [self.scores, self.between, self.sums, *(one for factor in self.factors for one in factor.skipped)]


def chains(reference: Reference, steps: Sequence[Step]) -> tuple[list[Step], list[Chain]]:
    """Return the chains, and the steps with a kernel behind each chain's sums, if only to store them."""
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
    """Return the `id`s of what kernels of chains do themselves; casts that nothing else needs are among it."""
    own = {id(one) for chain in found for one in chain.absorbed}
    casts = [step for step in flat(steps) if isinstance(step, Kernel) and all(id(node) in own for node in step.outputs)]
    return own | {id(one) for one in casts if all(one is not chain.behind for chain in found)}


def _plain(factor: Factor, node: Node) -> Factor:
    """Return the factor as it is where a kernel would have to scale it: queries alone are."""
    return Factor(node) if factor.scale else factor


def _is_product(node: Node) -> bool:
    """Whether it is a product of as many pairs of matrices as each factor has."""
    return (
        (node.kind, len(node.operands)) == ("opaque", 2)
        and node.text in _PRODUCTS
        and all(one.dtype in FLOATS and one.dims[:-2] == node.dims[:-2] for one in node.operands)
    )


def _factor(node: Node, once: Callable[[Node], bool]) -> Factor:
    """Follow a factor to what lies in memory, through calls and casts that only the product needs."""
    skipped: list[Node] = []
    transposed, sharing, scale = False, "", ""
    while once(node):
        if not sharing and (shared := _SHARED.fullmatch(node.text)) is not None:
            if int(shared[2]) % len(node.dims) != len(node.dims) - 3:
                break
            sharing = shared[1]
        elif not transposed and _transposes(node):
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


def _transposes(node: Node) -> bool:
    axes = _TURNED.fullmatch(node.text)
    count = len(node.dims)
    return axes is not None and {int(axes[1]) % count, int(axes[2]) % count} == {count - 2, count - 1}


# --- weights -----------------------------------------------------------------------------------------------------


def one_pass(between: Kernel, weights: Node) -> Weights | None:
    """Return how one pass over the keys makes a kernel's weights; None where it takes several.

    That goes for elements without reductions, for terms over their sum, and for exponentials of what exceeds the
    maximum: those are multiplied by one number for each row when the maximum grows (online softmax).
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
    """Return what a kernel computes for a node."""
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
    """Whether weights are the terms times what is the same in a whole row."""
    node = uncast(weights)
    if node is terms:
        return True
    if node.kind != "pointwise" or LINEAR.fullmatch(node.expression) is None:
        return False
    return all(one.dims[-1] == 1 for one in node.operands[1:]) and _multiple(node.operands[0], terms)
