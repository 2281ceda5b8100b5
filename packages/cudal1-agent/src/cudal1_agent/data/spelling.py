"""Other forms of the lines of `forward`: one operation a line, methods, formulas, names that are used again."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import cast

_METHODS = frozenset(("abs", "amax", "cumsum", "exp", "mean", "relu", "sigmoid", "sqrt", "square", "sum", "tanh"))
"""Functions of torch that a tensor has as methods."""


def is_straight(forward: ast.FunctionDef) -> bool:
    """Return whether a function assigns names and then returns a value, and nothing else."""
    *lines, last = forward.body
    names = [one.targets[0] for one in lines if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]
    return isinstance(last, ast.Return) and len(names) == len(lines) == len({one.id for one in names})


def is_operation(node: ast.expr) -> bool:
    """Return whether an expression makes a tensor that may have a name of its own."""
    if isinstance(node, ast.BinOp):
        return any(isinstance(one, ast.Name) and one.id.islower() for one in ast.walk(node))
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("torch.", "F.", "self."))


class _Operands(ast.NodeTransformer):
    """Assigns the operations among the operands of an expression to names, in lines that it adds to `body`."""

    def __init__(self, fresh: Callable[[], str], body: list[ast.stmt]) -> None:
        self.fresh = fresh
        self.body = body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.named(one) for one in node.args]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node.left, node.right = self.named(node.left), self.named(node.right)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return node  # operations inside anything else stay where they are

    def named(self, node: ast.expr) -> ast.expr:
        node = self.visit(node)
        if not is_operation(node):
            return node
        name = self.fresh()
        self.body.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return ast.Name(name, ast.Load())


class _Methods(ast.NodeTransformer):
    """Writes `torch.sum(x, dim=1)` as `x.sum(dim=1)`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Attribute(ast.Name("torch"), str(name)), [value, *rest]) if name in _METHODS:
                return ast.Call(ast.Attribute(value, name, ast.Load()), rest, node.keywords)
            case _:
                return node


class _Formulas(ast.NodeTransformer):
    """Writes formulas for functions, the extreme of lines by `torch.max` and `torch.min`, and dimensions as lists.

    In half precision, a formula of two operators rounds twice, so it is not the same as the function.
    """

    def __init__(self, *, in_float32: bool) -> None:
        self.in_float32 = in_float32

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg == "dim" and isinstance(node.value, ast.Tuple):
            node.value = ast.List(node.value.elts, ast.Load())
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Attribute(ast.Name("torch"), "square"), [value]):
                return ast.BinOp(value, ast.Pow(), ast.Constant(2))
            case ast.Call(ast.Attribute(ast.Name("F"), "silu"), [ast.Name() as value]) if self.in_float32:
                return ast.parse(f"{value.id} * torch.sigmoid({value.id})", mode="eval").body
            case ast.Call(ast.Attribute(ast.Name("torch"), "clamp"), [value], [low, high]):
                return ast.Call(node.func, [value, low.value, high.value], [])
            case ast.Call(ast.Attribute(ast.Name("torch"), "amax" | "amin" as name), [value]) if node.keywords:
                function = ast.Attribute(ast.Name("torch", ast.Load()), name.removeprefix("a"), ast.Load())
                found = ast.Call(function, [value], node.keywords)
                return ast.Subscript(found, ast.Constant(0), ast.Load())
            case _:
                return node


class _Products(ast.NodeTransformer):
    """Writes `a @ b` as `torch.matmul(a, b)`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        function = ast.Attribute(ast.Name("torch", ast.Load()), "matmul", ast.Load())
        return ast.Call(function, [node.left, node.right], [])


def one_a_line(forward: ast.FunctionDef, fresh: Callable[[], str]) -> None:
    """Assign each nested operation to a name of its own, from `fresh`."""
    if not is_straight(forward):
        return
    body: list[ast.stmt] = []
    for line in cast("list[ast.Assign | ast.Return]", forward.body):
        line.value = _Operands(fresh, body).visit(cast(ast.expr, line.value))
        body.append(line)
    forward.body = body


def with_methods(forward: ast.FunctionDef) -> None:
    """Write functions as methods."""
    _Methods().visit(forward)


def with_products(forward: ast.FunctionDef) -> None:
    """Write `@` as a function."""
    _Products().visit(forward)


def with_formulas(forward: ast.FunctionDef, *, half: bool) -> None:
    """Write some functions as formulas, in half precision only those that round once."""
    _Formulas(in_float32=not half).visit(forward)


def reuse_names(forward: ast.FunctionDef) -> None:
    """Give a variable the name of an input or variable that is not used any more."""
    if not is_straight(forward):
        return
    used = [[one for one in ast.walk(line) if isinstance(one, ast.Name)] for line in forward.body]
    last = {one.id: place for place, names in enumerate(used) for one in names if isinstance(one.ctx, ast.Load)}
    now: dict[str, str] = {one.arg: one.arg for one in forward.args.args[1:]}
    for place, names in enumerate(used):
        read = [one for one in names if isinstance(one.ctx, ast.Load) and one.id in now]
        ended = [now[one.id] for one in read if last[one.id] == place]
        for one in read:
            one.id = now[one.id]
        for one in names:
            if isinstance(one.ctx, ast.Store):
                now[one.id] = one.id = ended[0] if ended else one.id
