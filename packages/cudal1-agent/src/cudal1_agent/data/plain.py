"""References in one style: what a prompt shows of a reference does not depend on who wrote it.

A model that learns from generated references knows their style: no docstrings, comments or annotations, and constants
above the class. KernelBench's references differ in all of that and mean the same.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import lru_cache


@lru_cache(maxsize=4096)
def plain(reference: str) -> str:
    r"""Return a reference without docstrings, comments and annotations, with its constants above its class.

    `super(Model, self)` becomes `super()`, so that a program which copies it works in a class of another name. What the
    program computes is not changed. A text that is not Python is returned as it is.

    >>> print(plain("class Model(nn.Module):\n    'Scales.'\n    def forward(self, x: Tensor): return N * x\nN = 2"))
    N = 2
    <BLANKLINE>
    class Model(nn.Module):
    <BLANKLINE>
        def forward(self, x):
            return N * x
    """
    try:
        tree = ast.parse(reference)
    except (SyntaxError, ValueError):
        return reference
    tree = ast.fix_missing_locations(_Plain().visit(tree))
    return ast.unparse(_constants_first(tree))


class _Plain(ast.NodeTransformer):
    """Removes docstrings and annotations, and the arguments of `super`."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            vars(node)["body"] = [one for one in body if not _is_text(one)] or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return node if node.value is None else self.generic_visit(ast.Assign([node.target], node.value))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            node.args = []
        return self.generic_visit(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _constants_first(tree: ast.Module) -> ast.Module:
    """Move constants above the first class or function; a name that is assigned twice stays where it is."""
    defined = ast.ClassDef | ast.FunctionDef
    first = next((place for place, one in enumerate(tree.body) if isinstance(one, defined)), len(tree.body))
    above, below = list(tree.body[:first]), list[ast.stmt]()
    times = Counter(name for one in tree.body if not isinstance(one, defined) for name in _names(one, ast.Store))
    known = {name for one in above for name in _names(one, ast.Store)}
    for one in tree.body[first:]:
        stored = _names(one, ast.Store)
        if _is_constant(one) and _names(one, ast.Load) <= known and all(times[name] == 1 for name in stored):
            above.append(one)
            known |= stored
        else:
            below.append(one)
    return ast.Module([*above, *below], [])


def _names(node: ast.AST, use: type[ast.expr_context]) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, use)}


def _is_constant(node: ast.stmt) -> bool:
    """Return whether a statement assigns numbers, texts, tuples of them, or arithmetic on them, to names."""
    allowed = ast.Assign, ast.Constant, ast.Name, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp
    marks = ast.operator, ast.unaryop, ast.expr_context
    return isinstance(node, ast.Assign) and all(isinstance(one, (*allowed, *marks)) for one in ast.walk(node))
