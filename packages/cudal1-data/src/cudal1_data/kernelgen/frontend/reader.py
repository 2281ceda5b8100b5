"""Reader of a reference program's graph. The text is parsed and evaluated symbolically, never executed."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

from cudal1_data.errors import BrokenTaskError
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import (
    arithmetic,
    calls,
    copied,
    dtypes,
    layers,
    lookups,
    loops,
    members,
    pieces,
    shapes,
    stores,
    truths,
)
from cudal1_data.kernelgen.frontend.layout import merged
from cudal1_data.kernelgen.frontend.memory import Memory
from cudal1_data.kernelgen.frontend.values import (
    Layer,
    Listed,
    Module,
    Symbol,
    Value,
    opaque,
    parts_of,
    written,
)
from cudal1_data.kernelgen.frontend.views import without_views_between
from cudal1_data.kernelgen.ir import Dims, Node, Reference, contiguous
from cudal1_data.kernelgen.sizes import Size, Table, named
from cudal1_data.task import parse

_MAX_STEPS = 5000
"""Maximum number of expressions evaluated in one reference: unrolled loops could need many."""
_NOT_FOLLOWED = (
    *(BrokenTaskError, LookupError, TypeError, AttributeError, ValueError, AssertionError),
    *(ArithmeticError, RecursionError, StopIteration),
)
"""Exceptions that an unusual reference can raise in the reader."""
_OF_TORCH = re.compile(r"torch\.linalg\.|(torch\.)?nn\.functional\.")
"""Prefixes of functions in PyTorch's modules."""


def read(source: str, *, in_place: bool = False) -> Reference:
    """Read a reference program.

    Args:
        source: Its text, at the variants' size.
        in_place: Give an input whose last two axes are swapped in memory its strides, so that kernels read it as it is.

    Raises:
        UnsuitableError: The program has a construct or a tensor shape that the reader does not support.
    """
    try:
        return _Reader(source).reference(in_place=in_place)
    except UnsuitableError:
        raise
    except _NOT_FOLLOWED as error:
        raise UnsuitableError(f"the program cannot be followed without running it: {error}") from error


def _swapped(given: ast.FunctionDef) -> set[int]:
    """Return the places of the inputs whose last two axes `get_inputs` swaps in memory, as the last thing it does."""
    last = {ast.unparse(one.targets[0]): ast.unparse(one.value) for one in given.body if isinstance(one, ast.Assign)}
    returned = next((one.value for one in given.body if isinstance(one, ast.Return)), None)
    names = [ast.unparse(one) for one in returned.elts] if isinstance(returned, ast.List | ast.Tuple) else []
    wanted = "{0}.transpose(-2, -1).contiguous().transpose(-2, -1)"
    return {place for place, name in enumerate(names) if last.get(name) == wanted.format(name)}


def _strides_across(dims: Dims) -> Dims:
    """Return the strides of a tensor with its last two axes swapped in memory."""
    *rest, last, first = contiguous((*dims[:-2], dims[-1], dims[-2]))
    return (*rest, first, last)


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = parse(source, where="reference")
        (*_, self.model) = (one for one in self.tree.body if isinstance(one, ast.ClassDef) and one.name == "Model")
        self.functions = {one.name: one for one in self.tree.body if isinstance(one, ast.FunctionDef)}
        self.classes = copied.classes(self.tree, self.model)
        self.module = Module("self", members.methods(self.model))
        """The module whose method is read: the model, or a member."""
        self.building = False
        """Whether a constructor is read."""
        self.constants: dict[str, Value] = {}
        self.leaves: dict[str, Node] = {}
        self.body: loops.Body | None = None
        """The current loop."""
        self.sizes = Table(source)
        self.memory = Memory()
        self.scopes: list[dict[str, Value]] = []
        """Names of the functions that are read, the innermost last."""
        self.loops = 0
        self.steps = 0

    def reference(self, *, in_place: bool) -> Reference:
        copied.refuse_changed_constants(self.tree)
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name | ast.Tuple):
                value = self.value(statement.value, {})
                for target in statement.targets:
                    self.assign(target, value, self.constants)
                    self._name_constants(target)
        head = copied.head(self.tree, self.source, self.classes)
        if [ast.unparse(one) for one in self.model.bases] not in (["nn.Module"], ["torch.nn.Module"]):
            raise UnsuitableError("Model is not a plain nn.Module; templates read a class whose only base is nn.Module")
        given = parts_of(self._returned(self.functions["get_init_inputs"], {}))
        text = copied.constructor(self.tree, self.source, self.model, self.classes)
        if "__init__" in self.module.methods:
            members.construct(self, self.module, given, {})
        inputs = parts_of(self._returned(self.functions["get_inputs"], {}))
        forward = self.module.methods["forward"]
        scope = self.bind(forward, inputs, {})
        names = tuple(scope)[: len(inputs)]
        copied.refuse_taken(set(names))
        swapped = _swapped(self.functions["get_inputs"]) if in_place else set[int]()
        for place, (name, value) in enumerate(zip(names, inputs, strict=True)):
            if not isinstance(value, Node):
                raise UnsuitableError(f"the input {name} is no tensor; templates read tensors as inputs")
            if min(value.dims, default=0) < 0:
                raise UnsuitableError(f"the input {name} has the shape {value.dims}; sizes are 0 or more")
            strides = _strides_across(value.dims) if place in swapped else ()
            scope[name] = Node("input", value.dims, text=name, dtype=value.dtype, strides=strides)
        result = self._returned(forward, scope)
        several = isinstance(result, tuple)
        returned = result if isinstance(result, tuple) else (result,)
        roots = tuple(root for root in returned if isinstance(root, Node) and not root.leaf)
        if len(roots) != len(returned):
            raise UnsuitableError("forward returns a value other than a computed tensor; templates write only those")
        roots = lookups.as_calls(merged(without_views_between(pieces.sunk(roots))))
        return Reference(head, text, names, roots, several, self.sizes)

    def _name_constants(self, target: ast.expr) -> None:
        """Mark top-level integers as named sizes, unless `forward` has an argument of that name."""
        local = {one.arg for one in ast.walk(self.module.methods["forward"].args) if isinstance(one, ast.arg)}
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and one.id not in local:
                value = self.constants[one.id]
                if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                    self.constants[one.id] = named(value, one.id, self.sizes)

    def bind(
        self, method: ast.FunctionDef, args: Sequence[Value], named: Mapping[str, Value], *, of_class: bool = True
    ) -> dict[str, Value]:
        """Return the value of each parameter of a method, or of a function outside of classes."""
        given = method.args
        if given.kwarg or method.decorator_list:
            raise UnsuitableError(
                f"{method.name} has a decorator, or parameters like **rest; templates read plain ones"
            )
        names = [one.arg for one in (*given.posonlyargs, *given.args)][of_class:]
        if len(args) > len(names) and not given.vararg:
            raise UnsuitableError(f"{method.name} gets {len(args)} arguments and has {len(names)}")
        bound = dict(zip(names, args, strict=False))
        if twice := bound.keys() & named.keys():
            raise UnsuitableError(f"{method.name} gets {sorted(twice)} twice")
        defaults = dict(zip(reversed(names), reversed(given.defaults), strict=False))
        alone = [one.arg for one in given.kwonlyargs]
        _refuse_modules([*names, *alone])
        defaults |= {name: one for name, one in zip(alone, given.kw_defaults, strict=True) if one is not None}
        for name in (*names, *alone):
            if name not in bound:
                bound[name] = named[name] if name in named else self.value(defaults[name], {})
        if given.vararg:
            bound[given.vararg.arg] = tuple(args[len(names) :])
        if unknown := named.keys() - bound.keys():
            raise UnsuitableError(f"{method.name} has no arguments {sorted(unknown)}")
        return bound

    def _returned(self, function: ast.FunctionDef, scope: dict[str, Value]) -> Value:
        self.scopes.append(scope)
        for statement in function.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                result = self.memory.current(self.value(statement.value, scope))
                self.scopes.pop()
                return result
            self.follow(statement, scope)
        raise UnsuitableError(f"{function.name} does not end with a return; templates read functions that do")

    def follow(self, statement: ast.stmt, scope: dict[str, Value]) -> None:
        """Evaluate a statement other than a return."""
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=index)], value=right):
                self._store(name, self._index(index, scope), self.value(right, scope), scope)
            case ast.Assign(targets=[target], value=right) | ast.AnnAssign(target=target, value=ast.expr() as right):
                self.assign(target, self.value(right, scope), scope)
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.For():
                loops.follow(self, statement, scope)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[added])):
                scope[name] = (*parts_of(scope[name]), self.value(added, scope))
            case _:
                first = ast.unparse(statement).partition("\n")[0][:60]
                raise UnsuitableError(f"{first!r} is neither an assignment nor a return")

    def _store(self, name: str, index: tuple[Value, ...], value: Value, scope: dict[str, Value]) -> None:
        """Follow `name[index] = value`."""
        around = {f"{place} {key}": one for place, names in enumerate(self.scopes[:-1]) for key, one in names.items()}
        whole = scope[name] = self.memory.current(scope[name])
        scope[name] = result = stores.stored(name, index, value, around | scope)
        assert isinstance(whole, Node)
        self.memory.change(whole, result)

    def assign(self, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
        """Bind the names of a target."""
        if isinstance(target, ast.Name):
            _refuse_modules([target.id] if scope is not self.constants else [])
            scope[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple):
            for one, part in zip(target.elts, value, strict=True):
                self.assign(one, part, scope)
        else:
            raise UnsuitableError(f"{ast.unparse(target)!r} is assigned; templates read assignments to names")

    def value(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        """Return the value of an expression."""
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise UnsuitableError("the program has too many steps for templates")
        match node:
            case ast.Constant(value=int() as constant) if constant > 1 and not isinstance(constant, bool):
                return Size(constant, str(constant), str(constant), self.sizes)
            case ast.Constant(value=bool() | int() | float() | str() | None as constant):
                return constant
            case ast.Name(id=name):
                return self.memory.current(scope[name] if name in scope else self.constants[name])
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return self._values(parts, scope)
            case (
                ast.ListComp(elt=inner, generators=[ast.comprehension(ifs=[]) as each])
                | ast.GeneratorExp(elt=inner, generators=[ast.comprehension(ifs=[]) as each])
            ):
                found: list[Value] = []
                for one in parts_of(self.value(each.iter, scope)):
                    inside = dict(scope)
                    self.assign(each.target, one, inside)
                    found.append(self.value(inner, inside))
                return tuple(found)
            case ast.Constant(value=value) if value is ...:
                return Symbol("...", dtype="ellipsis")
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return arithmetic.negative(self.value(inner, scope))
            case ast.UnaryOp(op=ast.Invert(), operand=inner):
                return truths.inverted(self.value(inner, scope))
            case ast.BinOp(left=left, op=op, right=right):
                return arithmetic.combined(op, *self._pair(left, right, scope))
            case ast.Compare(left=left, ops=ops, comparators=[right, *_]):
                return arithmetic.compared(ops, *self._pair(left, right, scope))
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Subscript(value=inner, slice=index):
                return self._item(self.value(inner, scope), self._index(index, scope))
            case ast.Call():
                return self._call(node, scope)
            case ast.Starred(value=inner):
                value = self.value(inner, scope)
                if not isinstance(value, Node):
                    raise UnsuitableError(f"{ast.unparse(node)!r} is not of a tensor")
                return Symbol("*{}", of=value)
            case _:
                raise UnsuitableError(f"{ast.unparse(node)[:60]!r} is no expression that templates read")

    def _values(self, parts: Sequence[ast.expr], scope: dict[str, Value]) -> tuple[Value, ...]:
        """Return the values of a list's parts, with `*sizes` expanded."""
        found: list[Value] = []
        for one in parts:
            spread = self.value(one.value, scope) if isinstance(one, ast.Starred) else None
            found += spread if isinstance(spread, tuple) else [self.value(one, scope)]
        return tuple(self.memory.current(one) for one in found)

    def _pair(self, left: ast.expr, right: ast.expr, scope: dict[str, Value]) -> tuple[Value, Value]:
        """Return two operands; the second one may change the first in place."""
        sides = self.value(left, scope), self.value(right, scope)
        return self.memory.current(sides[0]), sides[1]

    def _attribute(self, node: ast.Attribute, scope: dict[str, Value]) -> Value:
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.module.member(name)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return Symbol(f"torch.{name}", dtype=dtypes.named(name))
            case ast.Attribute(value=ast.Name(id="math"), attr=name):
                return cast("float", getattr(math, name))
            case _:
                pass
        value = self.value(node.value, scope)
        if isinstance(value, tuple) and node.attr == "values":
            return value[0]
        if isinstance(value, Module):
            return value.member(node.attr)
        if isinstance(value, Layer):
            if node.attr == "eps" and value.kind.startswith(("LayerNorm", "BatchNorm", "InstanceNorm")):
                return cast("float", value.argument(1, "eps", 1e-5))
            return layers.parameter(value, node.attr, self.leaves)
        if not isinstance(value, Node):
            raise UnsuitableError(f"{ast.unparse(node)!r} is not of a tensor")
        match node.attr:
            case "shape":
                return value.dims
            case "T":
                turned = opaque("{0}.T", value.dims[::-1], value, dtype=value.dtype)
                self.memory.share(value, turned)
                return turned
            case "values":
                return opaque("{0}.values", value.dims, value, dtype=value.dtype)
            case "device" | "dtype":
                return Symbol(f"{{}}.{node.attr}", of=value, dtype=value.dtype if node.attr == "dtype" else "device")
            case _:
                raise UnsuitableError(
                    f".{node.attr} of a tensor is not read; templates read shape, T, device and dtype"
                )

    def _index(self, node: ast.expr, scope: dict[str, Value]) -> tuple[Value, ...]:
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        return tuple(
            slice(*(None if end is None else self.value(end, scope) for end in (one.lower, one.upper, one.step)))
            if isinstance(one, ast.Slice)
            else self.value(one, scope)
            for one in parts
        )

    def _item(self, value: Value, index: tuple[Value, ...]) -> Value:
        value = self.memory.current(value)
        if isinstance(value, tuple | Layer):
            (place,) = index
            parts = parts_of(value)
            return parts[place] if isinstance(place, int) else parts[cast("slice", place)]
        if not isinstance(value, Node):
            raise UnsuitableError("[...] indexes a value other than a tensor or list")
        found = self._part(value, index)
        self.memory.share(value, found)
        return found

    def _part(self, value: Node, index: tuple[Value, ...]) -> Node:
        """Return `value[index]`."""
        if any(isinstance(one, Symbol) and one.dtype == "ellipsis" for one in index):
            index = pieces.expanded(index, len(value.dims))
            if self.body is None and (taken := pieces.sliced(value, index)) is not None:
                return taken
        if any(isinstance(one, Symbol) for one in index):
            return loops.part(value, index, self.body)
        if value.dtype == "bool" and value.kind == "pointwise" and (seen := truths.viewed(value, index)) is not None:
            return seen
        if self.body is None and len(index) == 1 and (found := lookups.rows(value, index[0], "{0}[{1}]", wraps=True)):
            return found
        operands = [value]
        inner = ", ".join(written(one, operands) for one in index)
        return opaque(f"{{0}}[{inner}]", shapes.indexed(value.dims, index), *operands, dtype=value.dtype)

    def _call(self, node: ast.Call, scope: dict[str, Value]) -> Value:
        receiver = self._receiver(node.func, scope)
        given = (*node.args, *(one.value for one in node.keywords))
        values = self._values(given, scope)
        count = len(values) - len(node.keywords)
        args, named = (
            values[:count],
            {str(one.arg): value for one, value in zip(node.keywords, values[count:], strict=True)},
        )
        if args and isinstance(args[0], Listed):
            return loops.joined(ast.unparse(node.func), args, named)
        match node.func:
            case ast.Name(id=name) if name in scope:
                return self._called(scope[name], args, named)
            case ast.Name(id=name) if name in self.functions and not self.building:
                function = self.functions[name]
                return self._returned(function, self.bind(function, args, named, of_class=False))
            case ast.Name(id="len"):
                (one,) = args
                return one.dims[0] if isinstance(one, Node) else len(parts_of(one))
            case ast.Name(id="float"):
                return float(cast("str", args[0]))
            case ast.Name(id="range" | "enumerate" | "zip" as name) if not named:
                return loops.items(name, args, most=_MAX_STEPS)
            case ast.Attribute(value=ast.Name(id="math"), attr=name):
                return cast("float", getattr(math, name)(*args))
            case _ if self.building and (layer := members.made(node.func, self.classes, args, named)) is not None:
                return layer
            case ast.Attribute(value=ast.Name(id="torch" | "F" | "nn"), attr=name):
                return self.memory.called(name, args, calls.call(name, ast.unparse(node.func), args, named))
            case ast.Attribute(value=ast.Attribute(), attr=name) if _OF_TORCH.match(ast.unparse(node.func)):
                return self.memory.called(name, args, calls.call(name, ast.unparse(node.func), args, named))
            case ast.Attribute(value=inner, attr=name):
                value = self.module if isinstance(inner, ast.Name) and inner.id == "self" else receiver
                value = self.memory.current(self.value(inner, scope) if value is None else value)
                if isinstance(value, Module):
                    if name in value.methods:
                        return self._run(value, name, args, named)
                    return self._called(value.member(name), args, named)
                if isinstance(value, Layer) and name == "forward":
                    return self._called(value, args, named)
                if name == "size" and isinstance(value, Node) and not named:
                    return self._item(value.dims, args) if args else value.dims
                if isinstance(value, Node) and (taken := self._taken(name, value, args, named)) is not None:
                    return self.memory.called(name, (value,), taken)
                # Programs without a kernel for `contiguous()` copy nothing there, and the tensor may have no such view.
                laid_out = name == "view" and isinstance(value, Node) and value.expression == "a"
                result = calls.call(name, ".reshape" if laid_out else f".{name}", (value, *args), named)
                return self.memory.called(name, (value, *args), result)
            case ast.Subscript():
                return self._called(self.value(node.func, scope), args, named)
            case _:
                raise UnsuitableError(
                    f"{ast.unparse(node.func)!r} is called; templates read calls of functions by name"
                )

    def _taken(self, name: str, value: Node, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """Return pieces of a tensor that kernels may read in place; None if a method takes none."""
        if name in ("chunk", "split"):
            return pieces.chunks(name, value, args, named, in_place=self.body is None)
        return pieces.narrowed(value, args, named) if name == "narrow" and self.body is None else None

    def _receiver(self, called: ast.expr, scope: dict[str, Value]) -> Value:
        """Return the value whose method is called, which Python computes before the arguments; None for a name's."""
        inner = called.value if isinstance(called, ast.Attribute) else None
        name = inner
        while isinstance(name, ast.Attribute):
            name = name.value
        return None if inner is None or isinstance(name, ast.Name) else self.value(inner, scope)

    def _called(self, value: Value, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """Return the result of a member's call."""
        if isinstance(value, Module):
            return self._run(value, "forward", args, named)
        if not isinstance(value, Layer) or not value.name or named:
            raise UnsuitableError("a call is neither of a function by name nor of a member with arguments by position")
        if value.kind != "Sequential":
            result = layers.layer(value, args, self.leaves)
            if isinstance(result, Node) and layers.changes_operand(value):
                (operand,) = args
                assert isinstance(operand, Node)
                self.memory.apply(operand, result, value.name)
            return self.memory.called(value.kind.lower(), args, result)
        for one in value.args:
            args = (self._called(one, args, {}),)
        (result,) = args
        return result

    def _run(self, module: Module, name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """Return the result of a method, with `self` as its module."""
        if name not in module.methods:
            raise UnsuitableError(f"{module.name} has no method {name}; templates read methods of its own class")
        method = module.methods[name]
        bound = self.bind(method, args, named)
        around, self.module = self.module, module
        try:
            return self._returned(method, bound)
        finally:
            self.module = around


def _refuse_modules(names: Sequence[str]) -> None:
    if found := set(names) & {"self", "torch", "nn", "F", "math"}:
        raise UnsuitableError(f"the name {min(found)} is assigned; templates read it as the module or the model")
