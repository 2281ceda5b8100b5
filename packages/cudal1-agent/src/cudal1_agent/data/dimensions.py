"""Dimensions counted from the last one, where the text shows how many there are: rows are -1, columns are -2."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

_MATHS = ("abs", "clamp", "exp", "log", "maximum", "minimum", "neg", "reciprocal", "rsqrt", "sigmoid", "sqrt", "square")
_CURVES = ("elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish", "relu", "relu6")
_MORE = ("selu", "silu", "softplus", "softsign", "tanh", "bfloat16", "clone", "contiguous", "double", "float", "half")
_ALONG = ("cumprod", "cumsum", "flip", "log_softmax", "normalize", "softmax", "softmin")
_KEEP = frozenset((*_MATHS, *_CURVES, *_MORE, *_ALONG))
"""Functions and methods whose result has as many dimensions as their tensor, or as the largest of several."""
_LINES = ("amax", "amin", "argmax", "argmin", "logsumexp", "max", "mean", "median", "min", "norm", "prod", "std")
_REDUCE = frozenset((*_LINES, "sum", "var"))
"""Functions and methods that have `keepdim`."""


def count_from_the_end(forward: ast.FunctionDef, inputs: Mapping[str, int]) -> None:
    """Rewrite dimensions of reductions, scans and softmax that have 0 or more as negative ones.

    Args:
        forward: The function; its lines are changed.
        inputs: Number of dimensions of each input.
    """
    _Dimensions(inputs).visit_lines(forward.body)


class _Dimensions(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, int]) -> None:
        self.known = dict(known)
        """Number of dimensions by variable."""

    def visit_lines(self, lines: Sequence[ast.stmt]) -> None:
        """Rewrite lines in order; what a block or an inner function assigns is unknown in it."""
        for line in lines:
            stored = {one.id for one in ast.walk(line) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
            own = {one.arg for one in ast.walk(line) if isinstance(one, ast.arg)}
            found = self.count(line.value) if isinstance(line, ast.Assign) and not own else None
            known = self.known
            if own or not isinstance(line, ast.Assign | ast.Expr | ast.Return):
                self.known = {name: count for name, count in known.items() if name not in stored | own}
            self.visit(line)
            self.known = {name: count for name, count in known.items() if name not in stored}
            match line:
                case ast.Assign([ast.Name(name)]) if found is not None:
                    self.known[name] = found
                case _:
                    pass

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name, operands = _called(node)
        count = self._largest(operands)
        if name in _KEEP | _REDUCE and count:
            for one in node.keywords:
                if one.arg in ("dim", "dims"):
                    one.value = _negative(one.value, count)
            if name == "flip":
                rest = node.args[1:] if node.args[:1] == operands else node.args
                node.args = [*node.args[: len(node.args) - len(rest)], *(_negative(one, count) for one in rest)]
        return node

    def count(self, node: ast.expr) -> int | None:
        """Return the number of dimensions of an expression; None if the text does not show it."""
        match node:
            case ast.Name(name):
                return self.known.get(name)
            case ast.Constant(int() | float()):
                return 0
            case ast.UnaryOp(_, operand):
                return self.count(operand)
            case ast.BinOp(left, op, right) if not isinstance(op, ast.MatMult):
                return self._largest([left, right])
            case ast.Call():
                name, operands = _called(node)
                keeps = any(one.arg == "keepdim" and ast.unparse(one.value) == "True" for one in node.keywords)
                return self._largest(operands) if name in _KEEP or (name in _REDUCE and keeps) else None
            case _:
                return None

    def _largest(self, nodes: Sequence[ast.expr]) -> int | None:
        counts = [self.count(one) for one in nodes]
        known = [one for one in counts if one is not None]
        return max(known) if known and len(known) == len(counts) else None


def _called(node: ast.Call) -> tuple[str, list[ast.expr]]:
    """Return the name of a function of torch, or of a method, and its tensors."""
    match node.func:
        case ast.Attribute(ast.Name("torch" | "F"), name):
            several = name in ("maximum", "minimum")
            return name, node.args if several else node.args[:1]
        case ast.Attribute(value, name) if ast.unparse(value) not in ("self", "nn", "torch.nn.functional"):
            return name, [value]
        case _:
            return "", []


def _negative(node: ast.expr, count: int) -> ast.expr:
    """Return a dimension, or a tuple or list of some, counted from the end."""
    match node:
        case ast.Constant(int() as dim) if not isinstance(dim, bool) and 0 <= dim < count:
            return ast.UnaryOp(ast.USub(), ast.Constant(count - dim))
        case ast.Tuple(elements) | ast.List(elements):
            node.elts = [_negative(one, count) for one in elements]
            return node
        case _:
            return node
