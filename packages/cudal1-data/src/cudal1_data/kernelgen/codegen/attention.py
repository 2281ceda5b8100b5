"""Attention in one Triton kernel with one pass over the keys: scores never leave the chip.

The kernel covers two products with weights between them: scores of queries and keys, the operators that turn them into
weights, the weighted sum of values, and the pointwise operators after it. A program keeps a block of queries and loops
over blocks of keys. The softmax is online: if a block has a larger score than those before, the sums so far are
multiplied by one number per query. Blocks that a mask hides from all queries of a program are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cudal1_data.kernelgen.codegen.chains import Chain, Factor, absorbed, chains
from cudal1_data.kernelgen.codegen.naming import Constants, Names, quotient_text
from cudal1_data.kernelgen.codegen.products import Factors
from cudal1_data.kernelgen.codegen.programs import Writer
from cudal1_data.kernelgen.codegen.triton import TRITON_HEAD, TileWriter, TritonKernel, power_text, whole_kernel
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, Step
from cudal1_data.kernelgen.ir import HALVES, Dims, Node, Reference
from cudal1_data.kernelgen.sizes import host_text

MAX_HEAD = 256
"""Maximum head size: a program keeps its queries and its sums of values in registers."""
_LEAST = 16
"""Minimum side of a tile that Triton multiplies."""
_INFINITE = '-float("inf")'


@dataclass(frozen=True)
class Rows:
    """The parameters of the kernel."""

    rows: int
    """Queries of a program."""
    keys: int
    """Keys of a block."""
    warps: int
    """Warps of a program."""
    stages: int = 2
    """Pipeline stages of loads."""
    precision: Factors = "ieee"
    """Multiplication of float32 factors; half-precision ones go to tensor cores unchanged."""


def attention_program(reference: Reference, steps: Sequence[Step], choice: Rows) -> str:
    """Return the program with one kernel for each attention chain; the rest stays PyTorch.

    Raises:
        UnsuitableError: There is no chain, or heads or tensors are too large.
    """
    steps, found = chains(reference, steps)
    if not found:
        raise UnsuitableError("no two products with weights between them that one pass over the keys can make")
    given = {id(one.behind): one.read for one in found}
    program = Writer(reference, steps, absorbed=absorbed(steps, found), given=given)
    definitions: list[str] = []

    def run(kernel: Kernel | LoopStep, number: int) -> str | None:
        chain = next((one for one in found if one.behind is kernel), None)
        if chain is None:
            return None
        made = _Attention(chain, choice).kernel(f"attention{number}")
        definitions.append(made.definition)
        return made.call

    body = program.forward(run)
    return program.whole(TRITON_HEAD, "\n\n".join(definitions), body)


_SIZES: dict[Factors, Sequence[tuple[int, int, int]]] = {
    "ieee": ((32, 32, 4), (32, 32, 8), (32, 64, 8), (64, 32, 8)),
    "tf32x3": ((64, 32, 4), (64, 64, 4), (64, 64, 8), (128, 32, 8)),
}
"""Queries, keys and warps. With these, ptxas keeps all of a causal kernel in registers on sm_90 for heads of 64, and
with up to 32 keys also for heads of 128."""
_CHOICES = [Rows(*size, precision=precision) for precision, sizes in _SIZES.items() for size in sizes]
_HALF_CHOICES = [
    Rows(*size, stages=stages) for size in ((64, 32, 4), (64, 64, 4), (128, 64, 8), (128, 128, 8)) for stages in (2, 3)
]
"""Choices for half-precision factors; everything stays in registers for heads of 64 and 128."""


def attention_choices(reference: Reference, steps: Sequence[Step]) -> list[Rows]:
    """Return the parameters that suit a reference; empty if it has no attention chain."""
    found = chains(reference, steps)[1]
    if not found:
        return []
    half = all(one.tensor.dtype in HALVES for chain in found for one in chain.factors)
    return _HALF_CHOICES if half and all(one.sums.dtype in HALVES for one in found) else _CHOICES


class _Attention:
    """Writer of a chain's kernel.

    Raises:
        UnsuitableError: Heads are wider than `MAX_HEAD`, or a tensor is too large.
    """

    def __init__(self, chain: Chain, choice: Rows) -> None:
        self.chain = chain
        self.choice = choice
        self.names = Names()
        self.constants = Constants(chain.between, chain.behind)
        self.queries, self.keys, self.values = chain.factors
        self.depth, self.width = chain.scores.operands[0].dims[-1], chain.sums.dims[-1]
        if max(self.depth, self.width) > MAX_HEAD:
            raise UnsuitableError(f"attention heads of up to {MAX_HEAD} fit, not {int(max(self.depth, self.width))}")
        chain.behind.check_places()
        check = Kernel((), chain.sums.dims, 0, frozenset(), (), tuple(one.tensor for one in chain.factors))
        check.check_places()
        self.high, self.wide = (
            self.constants.name(name, size)
            for name, size in (("QUERIES", chain.scores.dims[-2]), ("KEYS", chain.scores.dims[-1]))
        )
        self.deep, self.across = self.constants.name("DEPTH", self.depth), self.constants.name("WIDTH", self.width)
        self.ragged = chain.scores.dims[-1] % choice.keys != 0
        self.halves = self.queries.tensor.dtype in HALVES and self.queries.tensor.dtype == self.keys.tensor.dtype
        stored = chain.sums.operands[0].dtype
        self.half_weights = stored in HALVES and self.values.tensor.dtype == stored

    def kernel(self, name: str) -> TritonKernel:
        """Return the kernel."""
        chain, choice = self.chain, self.choice
        lines = [*self._begin(), *self._range()]
        steps = [*self._scores(), *self._terms(), *self._values()]
        lines += [f"for first in range({self._first}, {self._end}, BLOCK_N):", *(f"    {one}" for one in steps)]
        lines += self._finish()
        text = "\n".join(lines)
        if "offsets = row * " in "\n".join(steps):
            chain.between.check_places()
        sides = [self.names.pointer(one) for one in chain.between.leaves if one is not chain.scores]
        more = [self.names.pointer(one) for one in chain.behind.leaves if one is not chain.sums]
        constants = self.constants.within(text)
        for factor, parameter in ((self.keys, "HEADS_PER_KEY"), (self.values, "HEADS_PER_VALUE")):
            constants |= {parameter: factor.sharing} if factor.sharing else {}
        constants |= {"BLOCK_M": str(choice.rows), "BLOCK_N": str(choice.keys)}
        constants |= {"BLOCK_D": _tile(self.depth), "BLOCK_W": _tile(self.width)}
        *batches, rows, _ = chain.scores.dims
        return whole_kernel(
            name,
            ["query_ptr", "key_ptr", "values_ptr", *dict.fromkeys((*sides, *more)), *self._outputs],
            lines,
            constants,
            programs=f"{host_text(math.prod(batches))} * {quotient_text(rows, choice.rows)}",
            tuned={"num_warps": choice.warps, "num_stages": choice.stages},
            comment="Attention in one pass over the keys"
            + (" (online softmax: running maxima and sums)." if chain.weights.top is not None else "."),
        )

    @property
    def _outputs(self) -> list[str]:
        return self.names.outputs(len(self.chain.behind.outputs))

    def _begin(self) -> list[str]:
        rescaled = self.chain.weights.top is not None
        return [
            f"block = tl.program_id(0) % tl.cdiv({self.high}, BLOCK_M)",
            f"batch = tl.program_id(0) // tl.cdiv({self.high}, BLOCK_M)",
            "query = block * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
            f"row = batch * {self.high} + query",
            f"there = query < {self.high}",
            "term = tl.arange(0, BLOCK_D)",
            "out = tl.arange(0, BLOCK_W)",
            "# The queries stay in registers for all keys.",
            f"queries = tl.load(query_ptr + row * {self.deep} + term[None, :], "
            f"mask={_and('there', self._short(self.depth, f'term[None, :] < {self.deep}'))}, other=0.0)"
            + self._widened(self.queries, self.halves),
            *([f"running_max = tl.full((BLOCK_M, 1), {_INFINITE}, tl.float32)"] if rescaled else []),
            *(["running_sum = tl.zeros((BLOCK_M, 1), tl.float32)"] if self.chain.weights.total is not None else []),
            "sums = tl.zeros((BLOCK_M, BLOCK_W), tl.float32)",
        ]

    def _range(self) -> list[str]:
        """Return the lines that compute the range of keys visible to any query of the program."""
        seen = self.chain.visible
        lines: list[str] = []
        if seen.ahead is not None or seen.behind is not None:
            lines.append("# Blocks of keys that the mask hides from all these queries are not visited.")
        if seen.behind is not None:
            lines.append(f"begin = max(block * BLOCK_M - {seen.behind} + 1, 0) // BLOCK_N * BLOCK_N")
        if seen.ahead is not None:
            more = "" if seen.ahead == 1 else f" + {seen.ahead} - 1" if seen.ahead > 1 else f" - {1 - seen.ahead}"
            lines.append(f"end = min((block + 1) * BLOCK_M{more}, {self.wide})")
        return lines

    @property
    def _first(self) -> str:
        return "0" if self.chain.visible.behind is None else "begin"

    @property
    def _end(self) -> str:
        return self.wide if self.chain.visible.ahead is None else "end"

    def _scores(self) -> list[str]:
        """Return the lines that multiply the queries by a block of keys."""
        heads = "batch // HEADS_PER_KEY" if self.keys.sharing else "batch"
        place = (
            f"({heads} * {self.wide} + col) * {self.deep} + term[:, None]"
            if self.keys.transposed
            else f"({heads} * {self.deep} + term[:, None]) * {self.wide} + col"
        )
        inside = self._inside(f"col < {self.wide}", self._short(self.depth, f"term[:, None] < {self.deep}"))
        load = f"keys = tl.load(key_ptr + {place}{inside}){self._widened(self.keys, self.halves)}"
        scale = f" * {self.queries.scale}" if self.queries.scale else ""
        dot = "" if self.halves else f', input_precision="{self.choice.precision}"'
        return ["key = first + tl.arange(0, BLOCK_N)", "col = key[None, :]", load,
                f"scores = tl.dot(queries, keys{dot}){scale}"]  # fmt: skip

    def _terms(self) -> list[str]:
        """Return the lines that turn a block of scores into weights, up to a factor per row."""
        weights = self.chain.weights
        writer = _Writer(replace(self.chain.between, trailing=1), {self.chain.scores: "scores"}, self)
        logits = "" if weights.logits is None else writer.value(weights.logits, False)
        terms = writer.value(weights.terms, False) if weights.logits is None else ""
        lines = list(writer.lines)
        text = "\n".join(lines)
        places = [f"mask = there & (col < {self.wide})"] if "mask=mask" in text else []
        places += [f"offsets = row * {self.wide} + col"] if "offsets" in text else []
        lines = [*places, *lines]
        hidden = f"tl.where(col < {self.wide}, {{}}, {{}})" if self.ragged else "{}"
        if weights.top is None:
            lines.append(f"powers = {hidden.format(terms, '0.0')}")
            if weights.total is not None:
                lines.append("running_sum += tl.sum(powers, 1)[:, None]")
            return lines
        if self.ragged:
            lines.append(f"logits = {hidden.format(logits, _INFINITE)}")
            logits = "logits"
        lines.append(f"new_max = tl.maximum(running_max, tl.max({logits}, 1)[:, None])")
        top = "new_max"
        if not self.chain.visible.first_key:
            top = "shift"
            lines += [
                "# Where no key was seen yet the maximum is -inf, and nothing may be taken from it.",
                f"shift = tl.where(new_max == {_INFINITE}, 0.0, new_max)",
            ]
        lines += [
            "# What was added before is rescaled to the new maximum.",
            f"rescale = tl.exp(running_max - {top})",
            f"powers = tl.exp({logits} - {top})",
        ]
        if weights.total is not None:
            lines.append("running_sum = running_sum * rescale + tl.sum(powers, 1)[:, None]")
        return [*lines, "running_max = new_max"]

    def _values(self) -> list[str]:
        """Return the lines that add a block of weighted values."""
        heads = "batch // HEADS_PER_VALUE" if self.values.sharing else "batch"
        inside = self._inside(f"key[:, None] < {self.wide}", self._short(self.width, f"out[None, :] < {self.across}"))
        place = f"({heads} * {self.wide} + key[:, None]) * {self.across} + out[None, :]"
        dot = "" if self.half_weights else f', input_precision="{self.choice.precision}"'
        powers = "powers.to(values.dtype)" if self.half_weights else "powers"
        before = "sums" if self.chain.weights.top is None else "sums * rescale"
        return [
            f"values = tl.load(values_ptr + {place}{inside}){self._widened(self.values, self.half_weights)}",
            f"sums = tl.dot({powers}, values, {before}{dot})",
        ]

    def _finish(self) -> list[str]:
        """Return the lines after the loop: division by the sum, and the epilogue."""
        weights = self.chain.weights
        lines: list[str] = []
        if weights.weights is not weights.terms:
            known = {weights.terms: "sums"}
            known |= {weights.total: "running_sum"} if weights.total is not None else {}
            known |= {weights.top: "running_max"} if weights.top is not None else {}
            writer = _Writer(replace(self.chain.between, trailing=1), known, self)
            if weights.ceiling is not None:
                ceiling = writer.value(weights.ceiling, False)
                writer.lines += [
                    "# The sink takes its share, too: sums are rescaled to the maximum with it.",
                    f"rescale = tl.exp(running_max - {ceiling})",
                    "running_sum = running_sum * rescale",
                    "sums = sums * rescale",
                ]
            lines.append(f"sums = {writer.text(weights.weights)}")
            lines = [*writer.lines, *lines]
        behind = _Writer(self.chain.behind, {self.chain.sums: "sums"}, self)
        inside = _and("there", self._short(self.width, f"col < {self.across}"))
        places = ["col = out[None, :]", f"mask = {inside}", f"offsets = row * {self.across} + col"]
        return [*lines, *places, *behind.body()]

    def _inside(self, keys: str, others: str) -> str:
        """Return the mask that keeps a load inside its tensor; empty if blocks fit."""
        condition = _and(keys if self.ragged else "", others)
        return f", mask={condition}, other=0.0" if condition else ""

    def _short(self, size: int, condition: str) -> str:
        """Return the condition if the size is smaller than its tile, else an empty text."""
        return condition if size < _LEAST or int(size) & (int(size) - 1) else ""

    def _widened(self, factor: Factor, half: bool) -> str:
        return "" if half or factor.tensor.dtype == "float32" else ".to(tl.float32)"


def _and(*conditions: str) -> str:
    given = [one for one in conditions if one]
    return given[0] if len(given) == 1 else " & ".join(one if one.isidentifier() else f"({one})" for one in given)


def _tile(size: int) -> str:
    return power_text(size) if size >= _LEAST else str(_LEAST)


class _Writer(TileWriter):
    """Writer of a tile with some nodes already computed, and with the kernel's own names of rows and columns."""

    def __init__(self, kernel: Kernel, known: dict[Node, str], kernel_of: _Attention) -> None:
        super().__init__(kernel, kernel_of.names, kernel_of.constants)
        for node, name in known.items():
            self.names[id(node), False] = self.names[id(node), True] = name

    def text(self, node: Node) -> str:
        """Return the text of a node's value, after writing its operands' lines."""
        return self._text(node, False)

    def _text(self, node: Node, aligned: bool) -> str:
        if node.kind == "count" and not self.kernel.by_row(node, aligned):
            return "col.to(tl.float32)"
        if node.kind == "count" and _of_queries(node.dims):
            return "query.to(tl.float32)"
        return super()._text(node, aligned)


def _of_queries(dims: Dims) -> bool:
    return len(dims) > 1 and dims[-2] != 1
