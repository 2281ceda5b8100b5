"""Layers with their arguments as torch's signatures have them."""

from __future__ import annotations

import ast
import inspect

import torch

from cudal1_agent.data.constants import literal, number


def write_layers(model: ast.ClassDef) -> None:
    """Write the required arguments of layers by position, and others that differ from their defaults by keyword."""
    for call in [one for one in ast.walk(model) if isinstance(one, ast.Call)]:
        match call.func:
            case ast.Attribute(ast.Name("nn") | ast.Attribute(ast.Name("torch"), "nn"), name):
                layer = getattr(torch.nn, name, None)
                if inspect.isclass(layer) and issubclass(layer, torch.nn.Module):
                    _write_layer(call, layer)
            case _:
                pass


def _write_layer(call: ast.Call, layer: type[torch.nn.Module]) -> None:
    """Write a layer's required arguments by position, and others that differ from their defaults by keyword."""
    parameters = list(inspect.signature(layer).parameters.values())
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return
    names = [one.name for one in parameters]
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return
    given = dict(zip(names, call.args, strict=False)) | {str(one.arg): one.value for one in call.keywords}
    windowed = "Conv" in layer.__name__ or "Pool" in layer.__name__
    given = {name: _alike(value) if windowed else value for name, value in given.items()}
    if "Pool" in layer.__name__ and "stride" in given and _same(given["stride"], given.get("kernel_size")):
        given.pop("stride")
    required = [one.name for one in parameters if one.default is one.empty and one.name in given]
    others = {one.name: one.default for one in parameters if one.default is not one.empty and one.name in given}
    if not given.keys() <= set(names) or names[: len(required)] != required:
        return
    call.args = [given[name] for name in required]
    usual = {name for name, default in others.items() if _same(given[name], _default(default))}
    call.keywords = [ast.keyword(name, given[name]) for name in others if name not in usual]


def _default(value: object) -> ast.expr | None:
    return literal(value) if value is None or isinstance(value, bool | int | float | str) else None


def _same(one: ast.expr, other: ast.expr | None) -> bool:
    """Return whether two expressions have the same text, or the same number."""
    if other is None:
        return False
    left, right = number(one), number(other)
    return ast.unparse(one) == ast.unparse(other) if left is None or right is None else left == right


def _alike(node: ast.expr) -> ast.expr:
    """Return one number for a tuple of equal ones, as torch reads both."""
    if isinstance(node, ast.Tuple) and node.elts and len({ast.unparse(one) for one in node.elts}) == 1:
        return node.elts[0]
    return node
