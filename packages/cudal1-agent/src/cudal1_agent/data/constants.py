"""Constants of a module: numbers, texts and tuples under a name, and their values in place of their names."""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}


def constants_of(tree: ast.Module) -> dict[str, ast.expr]:
    """Return names that a module assigns to numbers, texts or tuples of these, with their values.

    A name that is assigned again has its last value, as functions see it, unless another constant reads it.
    """
    read = {name for one in tree.body if isinstance(one, ast.Assign) for name in loads(one)}
    times = Counter(name for one in tree.body for name in assigned_by(one))
    found = dict[str, ast.expr]()
    for line in tree.body:
        match line:
            case ast.Assign(targets, value):
                filled = Filler(found, {}, numbers=True).filled(ast.parse(ast.unparse(value), mode="eval").body)
                for target in targets:
                    found |= _assigned(target, value, filled, found)
            case _:
                pass
    return {name: value for name, value in found.items() if times[name] <= 1 or name not in read}


def _assigned(
    target: ast.expr, value: ast.expr, filled: ast.expr, known: Mapping[str, ast.expr]
) -> dict[str, ast.expr]:
    """Return what an assignment gives to names: numbers in full, tuples with the names of sizes in them."""
    match target, filled:
        case ast.Tuple(names), ast.Tuple(values) if len(names) == len(values) and isinstance(value, ast.Tuple):
            pairs = zip(names, value.elts, values, strict=True)
            return {name: one for part in pairs for name, one in _assigned(*part, known).items()}
        case ast.Name(name), _ if isinstance(filled, ast.Constant) or number(filled) is not None:
            return {name: filled}
        case ast.Name(name), ast.Tuple(values) if all(number(one) is not None for one in values):
            kept = Filler(known, {}).filled(ast.parse(ast.unparse(value), mode="eval").body)
            parts = cast(ast.Tuple, kept).elts if isinstance(kept, ast.Tuple) else values
            own = {f"_{name}_{place}": one for place, one in enumerate(parts) if is_int(one)}
            places = {one: ast.Name(part, ast.Load()) for part, one in own.items()}
            return {**own, name: ast.Tuple([places.get(one, one) for one in parts], ast.Load())}
        case _:
            return {}


class Filler(ast.NodeTransformer):
    """Replaces names by values, and arithmetic on numbers by its result."""

    def __init__(
        self, constants: Mapping[str, ast.expr], values: Mapping[str, ast.expr], *, numbers: bool = False
    ) -> None:
        self.values = {
            **{name: value for name, value in constants.items() if numbers or not is_int(value)},
            **values,
        }

    def filled(self, node: ast.expr) -> ast.expr:
        """Return an expression with values filled in."""
        return cast(ast.expr, self.visit(node))

    def visit_scope(self, node: ast.stmt) -> None:
        """Fill in a statement, except for names that a function has of its own."""
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                self.visit_scope(one)
        elif isinstance(node, ast.FunctionDef):
            node.args.defaults = [self.filled(one) for one in node.args.defaults]
            own = stored_in(node) | {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
            inner = Filler({}, {name: value for name, value in self.values.items() if name not in own})
            node.body = [inner.visit(one) for one in node.body]
        else:
            self.visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return the value of a name that is read."""
        value = self.values.get(node.id) if is_load(node) else None
        if value is None:
            return node
        copied = cast(ast.expr, ast.parse(ast.unparse(value), mode="eval").body)
        return copied if isinstance(copied, ast.Name) else self.visit(copied)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Return the result of arithmetic on two numbers."""
        node = cast(ast.BinOp, self.generic_visit(node))
        left, right = number(node.left), number(node.right)
        if left is None or right is None or type(node.op) not in _OPERATORS:
            return node
        try:
            found = _OPERATORS[type(node.op)](left, right)
        except ArithmeticError:
            return node
        return literal(found) if math.isfinite(found) else node


def assigned_by(line: ast.stmt) -> set[str]:
    """Return the names that a statement assigns."""
    if isinstance(line, ast.FunctionDef | ast.ClassDef):
        return set()
    return {one.id for one in ast.walk(line) if isinstance(one, ast.Name) and not is_load(one)}


def stored_in(node: ast.AST) -> set[str]:
    """Return the names that are assigned anywhere in a node."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not is_load(one)}


def loads(node: ast.AST) -> Iterator[str]:
    """Yield the names that are read in a node, in the order of the text."""
    if isinstance(node, ast.Name) and is_load(node):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from loads(child)


def number(node: ast.expr) -> float | None:
    """Return the value of a number's text."""
    match node:
        case ast.Constant(value) if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if isinstance(value, int | float):
            return -value
        case _:
            return None


def literal(value: object) -> ast.expr:
    """Return the text of a value."""
    return ast.parse(repr(value), mode="eval").body


def is_int(node: ast.expr) -> bool:
    """Return whether an expression is an integer of 0 or more."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)


def is_load(node: ast.Name | ast.Attribute) -> bool:
    """Return whether a name or attribute is read."""
    return isinstance(node.ctx, ast.Load)
