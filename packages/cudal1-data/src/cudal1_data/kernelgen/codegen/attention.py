"""Two matrix products in one Triton kernel with what lies between: scores never leave the chip.

Made for attention: scores of queries with every key, whatever makes weights of them, the weighted sum of values, and
the pointwise operators behind it. A program has some queries and goes over the keys a few at a time, as a thread's
registers hold no whole row: once for each reduction over a row that needs the one before (twice for a softmax), and
once for the sums. The scores are computed anew each time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cudal1_data.kernelgen.codegen.naming import Constants, Names, quotient_text, stem
from cudal1_data.kernelgen.codegen.products import MATMUL, Factors
from cudal1_data.kernelgen.codegen.programs import Read, Writer
from cudal1_data.kernelgen.codegen.triton import IDENTITY, TileWriter, TritonKernel, triton_head, whole_kernel
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, Step, uses
from cudal1_data.kernelgen.ir import Node, Reference
from cudal1_data.kernelgen.sizes import host_text

_MAX_TERMS = 64
"""Terms of scores that a program has at once."""
_MAX_SUMS = 128
"""Columns of values that a program has at once."""
_TURNED = re.compile(r"\{0\}\.transpose\((-?\d), (-?\d)\)")
_LEAST = 16
"""Smallest side of a tile that Triton multiplies."""
_JOINED = {"sum": "{} + {}", "max": "tl.maximum({}, {})", "min": "tl.minimum({}, {})"}
"""How a reduction over some keys joins that over those before."""


@dataclass(frozen=True)
class Rows:
    """The parameters of the kernel."""

    rows: int
    """Queries of a program."""
    keys: int
    """Keys that it has at once."""
    warps: int
    """Warps of a program."""
    stages: int = 2
    """Stages of loads."""
    precision: Factors = "ieee"
    """How factors are multiplied."""


@dataclass(frozen=True)
class _Chain:
    """What becomes one kernel."""

    scores: Node
    """The first product."""
    between: Kernel
    """From scores to weights."""
    sums: Node
    """The second product."""
    behind: Kernel
    """What is done to the sums."""
    transposed: Node | None
    """The call that transposes keys for the first product, if only that needs it; the kernel reads them as stored."""

    @property
    def factors(self) -> tuple[Node, Node, Node]:
        """Queries, keys and values."""
        left, right = self.scores.operands
        return left, right if self.transposed is None else right.operands[0], self.sums.operands[1]

    @property
    def read(self) -> tuple[Read, ...]:
        """All that the kernel reads, in order; factors row after row."""
        sides = [one for one in self.between.leaves if one is not self.scores]
        more = [one for one in self.behind.leaves if one is not self.sums and all(one is not side for side in sides)]
        return (*((one, False) for one in self.factors), *((one, True) for one in (*sides, *more)))


def attention_program(reference: Reference, steps: Sequence[Step], choice: Rows) -> str:
    """Write the program with one kernel for each such chain; the rest stays PyTorch.

    Raises:
        UnsuitableError: There is no such chain, there is a scan between its products, or tensors are too large.
    """
    steps, chains = _chains(reference, steps)
    if not chains:
        raise UnsuitableError("expected two products with rows of scores between them")
    absorbed = {id(one) for chain in chains for one in (chain.scores, chain.between, chain.sums, chain.transposed)}
    program = Writer(reference, steps, absorbed=absorbed, given={id(one.behind): one.read for one in chains})
    definitions: list[str] = []

    def run(kernel: Kernel | LoopStep, number: int) -> str | None:
        chain = next((one for one in chains if one.behind is kernel), None)
        if chain is None:
            return None
        made = _kernel(chain, f"attention{number}", choice)
        definitions.append(made.definition)
        return made.call

    body = program.forward(run)
    return program.whole(triton_head(definitions), "\n\n".join(definitions), body)


def has_attention(reference: Reference, steps: Sequence[Step]) -> bool:
    """Whether there is a chain of two products that a kernel takes over."""
    return bool(_chains(reference, steps)[1])


def _chains(reference: Reference, steps: Sequence[Step]) -> tuple[list[Step], list[_Chain]]:
    """Return the chains, and the steps with a kernel behind each chain's sums, if only to store them."""
    used = uses(reference.roots, steps)
    kernels = [step for step in steps if isinstance(step, Kernel)]

    def once(*nodes: Node) -> bool:
        return all(sum(one is node for one in used) == 1 for node in nodes)

    changed, chains = list(steps), list[_Chain]()
    for place, sums in enumerate(steps):
        if not isinstance(sums, Node) or not _is_product(sums):
            continue
        between = next((one for one in kernels if one.outputs == sums.operands[:1]), None)
        scores = None if between is None else next(filter(_is_product, between.leaves), None)
        if between is None or scores is None or between.trailing > 1 or not once(scores, sums.operands[0]):
            continue
        if not scores.dims == between.domain == sums.operands[0].dims:
            continue
        behind = next((one for one in kernels if any(leaf is sums for leaf in one.leaves)), None)
        if behind is None or behind.trailing or behind.domain != sums.dims or not once(sums):
            behind = Kernel((), sums.dims, 0, frozenset(), (sums,), (sums,))
            changed[place] = behind
        right = scores.operands[1]
        chains.append(_Chain(scores, between, sums, behind, right if _transposes(right) and once(right) else None))
    return changed, chains


def _is_product(node: Node) -> bool:
    """Whether it is a product of as many pairs of matrices in float32 as each factor has."""
    return (
        (node.kind, len(node.operands)) == ("opaque", 2)
        and node.text in (MATMUL, "torch.matmul({0}, {1})", "torch.bmm({0}, {1})")
        and all(one.dtype == "float32" and one.dims[:-2] == node.dims[:-2] for one in node.operands)
    )


def _transposes(node: Node) -> bool:
    axes = _TURNED.fullmatch(node.text)
    count = len(node.dims)
    return axes is not None and {int(axes[1]) % count, int(axes[2]) % count} == {count - 2, count - 1}


def _kernel(chain: _Chain, name: str, choice: Rows) -> TritonKernel:
    left, right, values = chain.factors
    chain.between.check_places(left.dims, right.dims, values.dims)
    chain.behind.check_places()
    used = _Used(Names(), Constants(chain.between, chain.behind))
    size = used.constants.name
    high, width = size("QUERIES", chain.scores.dims[-2]), size("WIDTH", values.dims[-1])
    dot = f'input_precision="{choice.precision}"'
    parts = _parts(chain)
    lines = [
        f"part, turn = tl.program_id(0) % {parts}, tl.program_id(0) // {parts}",
        f"batch = turn // tl.cdiv({high}, BLOCK_M)",
        f"query = turn % tl.cdiv({high}, BLOCK_M) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
        f"row = batch * {high} + query",
        f"there = query < {high}",
    ]
    known: dict[int, str] = {}
    for level in _levels(chain.between):
        writer = _between(chain, known, used)
        steps: list[str] = []
        for node in level:
            value = f"tl.where(mask, {writer.value(node.operands[0], False)}, {IDENTITY[node.how]})"
            of_part = f"tl.{node.how}({value}, 1)[:, None]"
            known[id(node)] = total = used.names.fresh(stem(node))
            lines.append(f"{total} = tl.full((BLOCK_M, 1), {IDENTITY[node.how]}, tl.float32)")
            steps.append(f"{total} = " + _JOINED[node.how].format(total, of_part))
        lines += _over_keys(chain, choice, [*writer.lines, *steps], used)
    writer, columns = _between(chain, known, used), min(_MAX_SUMS, _tile(chain.sums.dims[-1]))
    weights = writer.value(chain.sums.operands[0], False)
    behind = _Writer(chain.behind, chain.sums, "sums", used)
    tall = size("KEYS", values.dims[-2])
    steps = [
        *writer.lines,
        f"weights = tl.where(mask, {weights}, 0.0)",
        f"values = tl.load(values_ptr + batch * ({tall} * {width}) + key[:, None] * {width} + out[None, :], "
        f"mask=(key[:, None] < {tall}) & (out[None, :] < {width}), other=0.0)",
        f"sums = tl.dot(weights, values, sums, {dot})",
    ]
    lines += [
        f"out = part * {columns} + tl.arange(0, {columns})",
        f"sums = tl.zeros((BLOCK_M, {columns}), dtype=tl.float32)",
        *_over_keys(chain, choice, steps, used),
        "col = out[None, :]",
        f"mask = there & (col < {width})",
        f"offsets = row * {width} + col",
        *behind.body(),
    ]
    sides = [used.names.pointer(one) for one in chain.between.leaves if one is not chain.scores]
    more = [used.names.pointer(one) for one in chain.behind.leaves if one is not chain.sums]
    *batches, rows, _ = chain.scores.dims
    pairs = math.prod(batches)
    return whole_kernel(
        name,
        [
            "query_ptr",
            "key_ptr",
            "values_ptr",
            *dict.fromkeys((*sides, *more)),
            *used.names.outputs(len(chain.behind.outputs)),
        ],
        lines,
        used.constants.within("\n".join(lines)) | {"BLOCK_M": str(choice.rows), "BLOCK_N": str(choice.keys)},
        programs=f"{host_text(pairs)} * {quotient_text(rows, choice.rows)}" + (f" * {parts}" if parts > 1 else ""),
        tuned={"num_warps": choice.warps, "num_stages": choice.stages},
        comment="Scores of some queries with all keys stay on the chip: they are made anew for each reduction.",
    )


@dataclass(frozen=True)
class _Used:
    names: Names
    """Names of the kernel."""
    constants: Constants
    """Sizes of the kernel."""


def _parts(chain: _Chain) -> int:
    """How many programs share the columns of the sums."""
    return -(-chain.sums.dims[-1] // _MAX_SUMS)


def _levels(between: Kernel) -> list[list[Node]]:
    """Return the reductions, those behind each other that need no other one of them.

    Raises:
        UnsuitableError: There is a scan.
    """
    if between.scans:
        raise UnsuitableError("expected reductions and pointwise operators between two products, got a scan")
    depth: dict[int, int] = {}
    levels: list[list[Node]] = []
    for node in between.members:
        before = max((depth.get(id(one), 0) for one in node.operands), default=0)
        depth[id(node)] = before + (node.kind == "reduce")
        if node.kind == "reduce":
            if len(levels) == before:
                levels.append([])
            levels[before].append(node)
    return levels


def _between(chain: _Chain, known: Mapping[int, str], used: _Used) -> _Writer:
    """Return what writes a part of rows of weights, given the reductions over whole rows."""
    writer = _Writer(replace(chain.between, trailing=1), chain.scores, "scores", used)
    writer.names |= {(key, aligned): name for key, name in known.items() for aligned in (False, True)}
    return writer


def _over_keys(chain: _Chain, choice: Rows, lines: Sequence[str], used: _Used) -> list[str]:
    """Return a loop over all keys, some at a time, with their scores."""
    size = used.constants.name
    wide, deep = size("KEYS", chain.scores.dims[-1]), size("DEPTH", chain.factors[0].dims[-1])
    step = min(_MAX_TERMS, _tile(chain.factors[0].dims[-1]))
    apart = (
        f"batch * ({wide} * {deep}) + key[None, :] * {deep} + term[:, None]"
        if chain.transposed is not None
        else f"batch * ({deep} * {wide}) + term[:, None] * {wide} + col"
    )
    inner = [
        "key = first + tl.arange(0, BLOCK_N)",
        "col = key[None, :]",
        f"mask = there & (col < {wide})",
        f"offsets = row * {wide} + col",
        "scores = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
        f"for start in range(0, {deep}, {step}):",
        f"    term = start + tl.arange(0, {step})",
        f"    a = tl.load(query_ptr + row * {deep} + term[None, :], mask=there & (term[None, :] < {deep}), other=0.0)",
        f"    b = tl.load(key_ptr + {apart}, mask=(col < {wide}) & (term[:, None] < {deep}), other=0.0)",
        f'    scores = tl.dot(a, b, scores, input_precision="{choice.precision}")',
        *lines,
    ]
    return [f"for first in range(0, {wide}, BLOCK_N):", *(f"    {line}" for line in inner)]


def _tile(size: int) -> int:
    return max(1 << max(int(size) - 1, 1).bit_length(), _LEAST)


class _Writer(TileWriter):
    """A tile in which one of the leaves is a product that is there already."""

    def __init__(self, kernel: Kernel, product: Node, name: str, used: _Used) -> None:
        super().__init__(kernel, used.names, used.constants)
        self.names[id(product), False] = name
