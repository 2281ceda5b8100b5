"""Members of a model, as its constructor assigns them: layers, lists of layers, and modules of the file's own classes.

A layer that a constructor makes has no name until it is assigned to a member: then it, its parts and its own members
get theirs (`self.blocks[0].norm`), and a class of the file has its own constructor read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import dtypes
from cudal1_data.kernelgen.frontend.values import Layer, Module, Symbol, Value, opaque, parts_of, tensors
from cudal1_data.kernelgen.ir import Node, walk

_FILLS = re.compile(
    r"(torch\.)?nn\.init\.\w+|init\.\w+_|torch\.manual_seed"
    r"|self\.[\w.]+\.(normal|uniform|fill|zero|copy|mul|add|sub|div|clamp|abs|requires_grad)_|self(\.\w+)*\.eval"
)
"""Calls in a constructor that change no tensor's shape or dtype."""
_SUPER = re.compile(r"super\((\w+, self)?\)\.__init__\(\)")
_MADE = re.compile(r"torch\.(randn|rand|randint|ones|zeros|empty|eye|arange)\(")
"""Prefixes of calls that make contiguous tensors."""
_LISTS = ("ModuleList", "Sequential")


class Builds(Protocol):
    """The part of the reader that constructors need."""

    classes: dict[str, ast.ClassDef]
    module: Module
    building: bool

    def value(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        """Return the value of an expression."""
        ...

    def assign(self, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
        """Bind the names of a target."""
        ...

    def bind(self, method: ast.FunctionDef, args: Sequence[Value], named: Mapping[str, Value]) -> dict[str, Value]:
        """Return the value of each parameter of a method."""
        ...


def methods(of: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Return a class's methods by name.

    Raises:
        UnsuitableError: It has other special methods than a constructor and a representation, or assigns a method.
    """
    found = {one.name: one for one in of.body if isinstance(one, ast.FunctionDef)}
    if special := [one for one in found if one.startswith("__") and one not in ("__init__", "__repr__")]:
        raise UnsuitableError(f"{of.name} has the method {special[0]}; templates read __init__ and plain methods")
    for statement in of.body:
        for one in ast.walk(statement) if not isinstance(statement, ast.FunctionDef) else ():
            if (
                isinstance(one, ast.Name | ast.FunctionDef)
                and (one.id if isinstance(one, ast.Name) else one.name) in found
            ):
                raise UnsuitableError(f"{of.name} assigns a method; templates read methods that are defined once")
    return found


def made(
    called: ast.expr, classes: Mapping[str, ast.ClassDef], args: tuple[Value, ...], named: dict[str, Value]
) -> Layer | None:
    """Return a layer that is not assigned to a member yet; None if the call makes no layer.

    Args:
        called: What is called.
        classes: The file's classes of modules.
        args: Arguments by position.
        named: Arguments by name.

    Raises:
        UnsuitableError: It is a list of other things than layers, or changes its input.
    """
    match called:
        case ast.Name(id=kind) if kind in classes:
            return Layer("", kind, args, named, of_file=True)
        case ast.Attribute(value=inner, attr=kind) if ast.unparse(inner) in ("nn", "torch.nn") and kind[0].isupper():
            if kind not in _LISTS:
                return None if kind == "Parameter" else Layer("", kind, args, named)
        case _:
            return None
    parts = parts_of(args[0]) if kind == "ModuleList" and args else args
    if named or not all(isinstance(one, Layer | Module) for one in parts):
        raise UnsuitableError(f"nn.{kind} has other values than layers, or layers by name; templates read layers only")
    first = next(iter(parts), None) if kind == "Sequential" else None
    if isinstance(first, Layer) and (first.kwargs.get("inplace") or any(one is True for one in first.args[:1])):
        raise UnsuitableError(f"nn.Sequential begins with {first.kind} that changes its input in place")
    return Layer("", kind, parts, {})


def construct(reader: Builds, module: Module, args: Sequence[Value], named: Mapping[str, Value]) -> None:
    """Read a module's constructor.

    Args:
        reader: The reader.
        module: The module; its attributes are added.
        args: Arguments by position.
        named: Arguments by name.

    Raises:
        UnsuitableError: A statement is not supported.
    """
    constructor = module.methods["__init__"]
    scope = reader.bind(constructor, args, named)
    around = reader.module, reader.building
    reader.module, reader.building = module, True
    try:
        for statement in constructor.body:
            _follow(reader, statement, scope)
    finally:
        reader.module, reader.building = around


def _follow(reader: Builds, statement: ast.stmt, scope: dict[str, Value]) -> None:
    attributes = reader.module.attributes
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=rights)):
            values = [_right(reader, *pair, scope) for pair in zip(targets, rights, strict=True)]
            for target, value in zip(targets, values, strict=True):
                _assign(reader, target, value, scope)
        case ast.Assign(targets=[target], value=right):
            _assign(reader, target, _right(reader, target, right, scope), scope)
        case ast.For(target=target, iter=several, body=body, orelse=[]):
            for item in parts_of(reader.value(several, scope)):
                reader.assign(target, item, scope)
                for one in body:
                    _follow(reader, one, scope)
        case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert():
            pass
        case ast.Expr(value=ast.Call(func=called, args=[ast.Constant(value=str(name)), made, *_])) if (
            ast.unparse(called) == "self.register_buffer"
        ):
            with suppress(UnsuitableError):  # only a forward pass that uses the buffer must know it
                attributes[name] = _state(reader, f"{reader.module.name}.{name}", made, scope)
        case ast.Expr(value=ast.Call(func=called)) if _FILLS.fullmatch(ast.unparse(called)):
            _fill(reader, statement, scope)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[added])):
            scope[name] = (*parts_of(scope[name]), reader.value(added, scope))
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr="append"),
                args=[added],
            )
        ) if isinstance(old := reader.module.member(name), Layer):
            part = placed(reader, reader.value(added, scope), f"{old.name}[{len(parts_of(old))}]")
            attributes[name] = replace(old, args=(*parts_of(old), part))
        case ast.Expr(value=one) if _SUPER.fullmatch(ast.unparse(one)):
            pass
        case _:
            raise UnsuitableError(f"{ast.unparse(statement)!r} in __init__ is no plain assignment")


def _fill(reader: Builds, call: ast.Expr, scope: dict[str, Value]) -> None:
    """Follow a call that fills tensors: programs repeat it for parameters, and have no other tensors of a constructor.

    Raises:
        UnsuitableError: It may change a tensor that the reader knows by how it was made.
    """
    for one in ast.walk(call):
        match one:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                value = reader.module.attributes.get(name)
                if isinstance(value, Node) and not _is_parameter(value):
                    raise UnsuitableError(f"{ast.unparse(call)!r} may change self.{name}, which is no parameter")
            case ast.Name(id=name) if isinstance(value := scope.get(name), Node):
                if not _laid_out(value):
                    raise UnsuitableError(f"{ast.unparse(call)!r} may change {name}, whose layout is unknown")
                scope[name] = opaque("torch.empty()", value.dims, dtype=value.dtype)  # good for parameters only
            case _:
                pass


def _is_parameter(value: Node) -> bool:
    return value.kind == "parameter" or (value.text == "{0}.contiguous()" and value.operands[0].kind == "parameter")


def _right(reader: Builds, target: ast.expr, right: ast.expr, scope: dict[str, Value]) -> Value:
    """Return the value of an assignment's right side, named if its target is a member."""
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return _member(reader, f"{reader.module.name}.{name}", right, scope)
        case _:
            return reader.value(right, scope)


def _assign(reader: Builds, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            _refuse_computed(value, f"{reader.module.name}.{name}")
            reader.module.attributes[name] = placed(reader, value, f"{reader.module.name}.{name}")
        case ast.Tuple(elts=targets):
            for one, part in zip(targets, parts_of(value), strict=True):
                _assign(reader, one, part, scope)
        case _:
            reader.assign(target, value, scope)


def _member(reader: Builds, name: str, right: ast.expr, scope: dict[str, Value]) -> Value:
    if isinstance(right, ast.Call) and isinstance(right.func, ast.Attribute) and right.func.attr == "Parameter":
        return _state(reader, name, right.args[0], scope)
    return reader.value(right, scope)


def _state(reader: Builds, name: str, made: ast.expr, scope: dict[str, Value]) -> Node:
    """Return a parameter or buffer, which programs read from the model."""
    value = reader.value(made, scope)
    if isinstance(value, float) and ast.unparse(made).startswith("torch.tensor("):
        return Node("parameter", (), text=name)
    if not isinstance(value, Node):
        raise UnsuitableError(f"{name} is a parameter or buffer that is not made from a tensor")
    leaf = Node("parameter", value.dims, text=name, dtype=value.dtype)
    return leaf if _laid_out(value) else opaque("{0}.contiguous()", leaf.dims, leaf, dtype=leaf.dtype)


def _refuse_computed(value: Value, name: str) -> None:
    """Reject a tensor that a call of the model would not compute as the constructor did: from parameters, or drawn."""
    found = [one for one in tensors(value) if not _is_parameter(one)]
    if any(one.kind == "parameter" or "rand" in one.text or "empty" in one.text for one in walk(*found)):
        raise UnsuitableError(f"__init__ computes {name} from a parameter, or draws it; templates read nn.Parameter")


def placed(reader: Builds, value: Value, name: str) -> Value:
    """Return a value as a member: layers without a name get it, and so do their parts.

    Args:
        reader: The reader.
        value: The value.
        name: `self.norm`.

    Raises:
        UnsuitableError: The model would not register its layers, or a layer has settings that are not read.
    """
    if isinstance(value, tuple) and any(isinstance(one, Layer | Module) for one in value):
        raise UnsuitableError(f"{name} is a plain list of layers, which PyTorch does not register; use nn.ModuleList")
    if not isinstance(value, Layer) or value.name:
        return value
    if value.kind in _LISTS and not value.of_file:
        parts = tuple(placed(reader, one, f"{name}[{number}]") for number, one in enumerate(value.args))
        return replace(value, name=name, args=parts)
    if value.of_file:
        return _of_file(reader, value, name)
    others = [one for key, one in value.kwargs.items() if key != "dtype"]
    if any(isinstance(one, Symbol | Layer | Module | Node) for one in (*value.args, *others)) or not dtypes.of_layer(
        value.kwargs.get("dtype")
    ):
        raise UnsuitableError(f"a layer's settings are numbers and a dtype of floats, not those of {name}")
    return replace(value, name=name)


def _of_file(reader: Builds, layer: Layer, name: str) -> Module:
    """Return a member whose class the file defines."""
    module = Module(name, methods(reader.classes[layer.kind]))
    if "__init__" in module.methods:
        construct(reader, module, layer.args, layer.kwargs)
    elif layer.args or layer.kwargs:
        raise UnsuitableError(f"{layer.kind} has no __init__ of its own, and gets arguments")
    return module


def _laid_out(node: Node) -> bool:
    """Return whether a tensor made in a constructor is certainly contiguous."""
    if node.kind == "pointwise":
        return all(map(_laid_out, node.operands))
    return bool(_MADE.match(node.text)) and "memory_format" not in node.text
