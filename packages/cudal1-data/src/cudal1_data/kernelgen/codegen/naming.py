"""Names in kernels: descriptive names for values, the reference's names for sizes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from cudal1_data.kernelgen.fusion import Kernel
from cudal1_data.kernelgen.ir import Node, walk
from cudal1_data.kernelgen.sizes import Size, host_text, tuple_text, used
from cudal1_data.operators import EXPRESSIONS

_OF_KERNELS = (
    "row col i item part lane start step turn offsets mask there group inner high terms acc batch query key out sums "
    "scores weights first inside mine tl triton libdevice a b c m n k left right values bias over term "
    "queries keys powers logits rescale shift block begin end new_max running_max running_sum"
)
_OF_LANGUAGES = (
    "int float double long short char bool unsigned signed const void auto for while do if else return switch case "
    "default break new delete this template typename class struct union enum static extern inline register volatile "
    "operator namespace using public private near far half exp log sqrt max min abs sin cos tanh erf where"
)
_LOCALS = frozenset((*_OF_KERNELS.split(), *_OF_LANGUAGES.split()))
"""Names that kernels use themselves, and keywords of C++."""
_CONSTANT = re.compile(
    r"(?<![\w.])(?:\d+\.?\d*(?:e[-+]?\d+)?|inf)(?!\w)|\(1\.0 / [^()]*(?:\([^()]*\))?\)"
    r"|\(-\d[\d.e-]*\)|\([A-Z][\w ]* \*\* 0\.5\)"
)
_KNOWN = {expression: name for name, expression in EXPRESSIONS.items()}
_WORDS = {
    "a * #": "scaled",
    "# * a": "scaled",
    "a / #": "scaled",
    "a + #": "shifted",
    "# + a": "shifted",
    "a - #": "shifted",
    "# - a": "shifted",
    "# / a": "reciprocal",
    "max(a, #)": "floored",
    "min(a, #)": "capped",
    "a * b": "product",
    "a + b": "total",
    "a - b": "difference",
    "a / b": "ratio",
    "max(a, b)": "larger",
    "min(a, b)": "smaller",
    "(a - b) * (a - b)": "squared_difference",
    "a * rsqrt(b + #)": "normed",
    "exp(a - b)": "exp_shifted",
    "abs(a - b)": "distance",
}


def stem(node: Node) -> str:
    """Return a descriptive name for a value: an input, a row's maximum, a gate."""
    match node.kind:
        case "input" | "parameter" | "opaque" | "loop":
            return _of_leaf(node)
        case "count":
            return "position"
        case "gather":
            return f"{stem(node.operands[0])}_at"
        case "reduce":
            return f"row_{node.how}"
        case "scan":
            return f"running_{node.how}"
        case "pointwise":
            return _of_pointwise(node)


def _of_leaf(node: Node) -> str:
    if node.kind == "opaque":
        if node.text.startswith(("{0}.", "{0}[", "{0} ")):
            return stem(node.operands[0])
        called = re.match(r"[\w.]*?(\w+)\(", node.text)
        name = (
            "product" if "@" in node.text or node.text.startswith("torch.matmul") else called[1] if called else "given"
        )
    else:
        name = node.text.removeprefix("self.")
    plain = re.sub(r"\W+", "_", name).strip("_").lower() or "given"
    return f"{plain}_in" if plain in _LOCALS or keyword.iskeyword(plain) or not plain[0].isalpha() else plain


def _of_pointwise(node: Node) -> str:
    expression, operands = node.expression, node.operands
    if expression == "a":
        return stem(operands[0])
    masked = _CONSTANT.sub("#", expression)
    if masked == "a * #" and operands[0].kind == "reduce" and operands[0].how == "sum":
        inner = operands[0].operands[0]
        square = "*" in inner.expression and (inner.expression in ("a * a", "(a - b) * (a - b)"))
        centred = square and (inner.expression != "a * a" or stem(inner.operands[0]) == "centred")
        return "variance" if centred else "mean_square" if square else "mean"
    if masked == "a - b" and operands[1].size < operands[0].size:
        return {"mean": "centred"}.get(stem(operands[1]), "shifted")
    if masked == "a / b" and operands[1].kind == "reduce" and stem(operands[0]).startswith("exp"):
        return "softmax"
    if masked in ("a * b", "a + b") and any(one.kind == "parameter" for one in operands):
        return "weighted" if masked == "a * b" else "biased"
    if masked == "a * b" and any(stem(one) == "sigmoid" for one in operands):
        return "gated"
    if masked in _WORDS:
        return _WORDS[masked]
    if expression in _KNOWN:
        name = _KNOWN[expression]
        return f"{name}_value" if name in _LOCALS else name
    called = re.match(r"(\w+)\(", masked)
    return {"less": "condition", "where": "chosen"}.get(called[1], f"{called[1]}_value") if called else "value"


def _shape(leaf: Node) -> str:
    """Return a tensor's shape, and its strides if it is not contiguous."""
    return tuple_text(leaf.dims) + (f" strides {tuple_text(leaf.strides)}" if leaf.strides else "")


class Names:
    """The names of one kernel."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._inside = set[str]()
        self._pointers: dict[int, str] = {}

    def fresh(self, name: str) -> str:
        """Return an unused name."""
        found = self._free(name)
        self._taken.add(found)
        return found

    def open(self) -> None:
        """Begin a loop: names of the previous loop are free again."""
        self._inside.clear()

    def local(self, name: str) -> str:
        """Return an unused name for the inside of a loop."""
        found = self._free(name)
        self._inside.add(found)
        return found

    def _free(self, name: str) -> str:
        number, found = 1, name
        while found in self._taken or found in self._inside:
            number += 1
            found = f"{name}_{number}"
        return found

    def shapes(self, kernel: Kernel) -> str:
        """Return the shapes of a kernel's inputs and outputs, for a comment before its parameters.

        A language model then has the shapes in context when it writes an index.
        """
        read = ", ".join(f"{self.pointer(leaf)} {_shape(leaf)}" for leaf in kernel.leaves)
        outs = zip(self.outputs(len(kernel.outputs)), kernel.outputs, strict=True)
        return f"{read} -> {', '.join(f'{name} {tuple_text(node.dims)}' for name, node in outs)}"

    def pointer(self, node: Node, name: str = "") -> str:
        """Return the name of a tensor's pointer."""
        if id(node) not in self._pointers:
            self._pointers[id(node)] = self.fresh(f"{name or stem(node)}_ptr")
        return self._pointers[id(node)]

    def outputs(self, count: int) -> list[str]:
        """Return the names of a kernel's output pointers."""
        return ["out_ptr"] if count == 1 else [f"out{place}_ptr" for place in range(count)]


class Constants:
    """The sizes that a kernel names, with their Python expressions."""

    def __init__(self, *kernels: Kernel) -> None:
        sizes = [size for kernel in kernels for one in (*kernel.leaves, *kernel.outputs) for size in one.dims]
        sizes += [size for kernel in kernels for size in kernel.domain]
        sizes += [
            size for kernel in kernels for node in walk(*kernel.outputs) for one in node.operands for size in one.dims
        ]
        named = [size.names for size in sizes if isinstance(size, Size)]
        self.table: dict[str, str] = named[0] if named else {}
        self.found: dict[str, str] = {}

    def name(self, name: str, size: int) -> str:
        """Return a size's text in a kernel: the reference's name, or `name` for an expression."""
        return str(size) if not isinstance(size, Size) or size.kernel.isidentifier() else self.renamed(name, size)

    def renamed(self, name: str, size: int) -> str:
        """Return a size's text in a kernel: a number, or `name` for a text of the reference."""
        if not isinstance(size, Size):
            return str(size)
        while name in self.table or self.found.get(name, size.host) != size.host:
            name += "_"
        self.found[name] = size.host
        return name

    def within(self, text: str) -> dict[str, str]:
        """Return all sizes that a text names, including the reference's."""
        return used(text, self.table) | {
            name: host for name, host in self.found.items() if re.search(rf"\b{name}\b", text)
        }


def quotient_text(size: int, per: int) -> str:
    """Return the Python text of the number of parts of a size, rounded up."""
    return host_text(size) if per == 1 else f"triton.cdiv({host_text(size)}, {per})"
