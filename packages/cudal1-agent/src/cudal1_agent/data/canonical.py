"""References in canonical form: what a model must know of a reference, without the names and settings of its author.

Small models copy names and defaults badly: of 68 incorrect answers to KernelBench's level 1, some 40 had an undefined
name, or a setting that stood in the constructor's signature (docs/results/training.md, fifteenth run). In canonical
form there is nothing of that kind to copy. The text is a task of its own that computes the same; a program for it is a
program for the reference, because its constructor takes any arguments.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import cast

from cudal1_data.copies import is_copy

from cudal1_agent.data.constants import Filler, assigned_by, constants_of, is_int, is_load, loads, number, stored_in
from cudal1_agent.data.dimensions import count_from_the_end
from cudal1_agent.data.layer_arguments import write_layers
from cudal1_agent.data.plain import plain

_NAMED_FROM = 16
"""Sizes below this that no input has are written as numbers: kernel sizes, strides, groups, dimensions."""
_MAKERS = ("rand", "randn", "ones", "zeros", "empty")
"""Functions of torch whose positional arguments are a shape."""
_INPUTS = tuple("xyzwabcde")
_IMPORTS = ("import torch", "import torch.nn as nn", "import torch.nn.functional as F")


class _UnusualError(Exception):
    """The reference has a part that this module does not read."""


@lru_cache(maxsize=4096)
def canonical(reference: str) -> str:
    """Return a reference in canonical form, or as `plain` writes it if its form is unusual.

    The constructor's arguments and the numbers that it keeps in `self` are filled in, and its signature is
    `(self, *args)`. Layers have their required arguments by position and those that differ from torch's defaults by
    keyword. Each dimension of an input, and each other size of 16 and more, has a name `D0`, `D1`, ... in order of
    appearance; other constants are written as numbers. Inputs are `x`, `y`, `z`, `w`, `a`, .... Parameters and layers
    keep their names, as programs must have them.
    """
    shown = plain(reference)
    try:
        tree = _Reference(ast.parse(shown)).written()
    except (_UnusualError, SyntaxError, ValueError, RecursionError):
        return shown
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def is_copied(source: str, reference: str) -> bool:
    """Return whether a program is its reference, as its author wrote it or in canonical form."""
    return any(is_copy(source, one) for one in (reference, canonical(reference)))


class _Reference:
    """A reference while it is brought into canonical form."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        models = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Model"]
        if len(models) != 1 or not {"get_inputs", "get_init_inputs"} <= functions.keys():
            raise _UnusualError
        (self.model,) = models
        self.inputs = functions["get_inputs"]
        self.init_inputs = functions["get_init_inputs"]
        methods = {one.name: one for one in self.model.body if isinstance(one, ast.FunctionDef)}
        if "forward" not in methods or any(isinstance(one, ast.Global | ast.Nonlocal) for one in ast.walk(tree)):
            raise _UnusualError
        self.forward = methods["forward"]
        self.constants = constants_of(tree)
        if not set(_IMPORTS) >= {one for one in _imported(tree) if one.split()[-1] in ("torch", "nn", "F", "*")}:
            raise _UnusualError
        usual = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
        lines = [one for one in tree.body if not isinstance(one, usual)]
        if any(not isinstance(one, ast.Assign) or not assigned_by(one) <= self.constants.keys() for one in lines):
            raise _UnusualError
        self.constructor = methods.get("__init__") or cast(
            ast.FunctionDef, ast.parse("def __init__(self):\n    super().__init__()").body[0]
        )

    def written(self) -> ast.Module:
        """Return the canonical form."""
        self._fill_in()
        self._fill(self.constants, {})
        named = self._sizes()
        self._fill({name: value for name, value in self.constants.items() if name not in named}, {}, numbers=True)
        write_layers(self.model)
        self._name_sizes(named)
        self._name_inputs()
        count_from_the_end(self.forward, self._dimensions())
        return self._ordered()

    def _fill(
        self, constants: Mapping[str, ast.expr], values: Mapping[str, ast.expr], *, numbers: bool = False
    ) -> None:
        """Replace names in classes and functions."""
        for one in self._parts():
            Filler(constants, values, numbers=numbers).visit_scope(one)

    def _parts(self) -> list[ast.stmt]:
        """Return the model, then other classes and functions."""
        others = [one for one in self.tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
        return [self.model, *(one for one in others if one is not self.model)]

    def _fill_in(self) -> None:
        """Replace arguments of the constructor, and numbers that it keeps in `self`, by their values."""
        match self.init_inputs.body:
            case [ast.Return(ast.List(elements)) as returned]:
                given = [Filler(self.constants, {}).filled(one) for one in elements]
            case _:
                raise _UnusualError
        arguments = self.constructor.args
        rest = arguments.vararg
        if arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            raise _UnusualError
        if rest is not None and rest.arg in loads(self.constructor):
            raise _UnusualError
        names = [one.arg for one in arguments.args[1:]]
        defaults = dict(zip(names[::-1], arguments.defaults[::-1], strict=False))
        values = {**defaults, **dict(zip(names, given, strict=False))}
        if (
            (len(given) > len(names) and rest is None)
            or set(names) - values.keys()
            or not all(map(self._is_value, values.values()))
        ):
            raise _UnusualError
        inner = [one.arg for line in self.constructor.body for one in ast.walk(line) if isinstance(one, ast.arg)]
        if (stored_in(self.constructor) | set(inner)) & (values.keys() | self.constants.keys()):
            raise _UnusualError
        self.constructor.args = cast(ast.FunctionDef, ast.parse("def f(self, *args): pass").body[0]).args
        filler = Filler({}, values)
        self.constructor.body = [filler.visit(one) for one in self.constructor.body]
        if self.constructor not in self.model.body:
            self.model.body.insert(0, self.constructor)
        returned.value = ast.List([], ast.Load())
        self._fill_in_members()

    def _fill_in_members(self) -> None:
        """Replace attributes of `self` that are numbers by their values, and drop their assignments."""
        written = Counter(
            one.attr for one in ast.walk(self.model) if isinstance(one, ast.Attribute) and not is_load(one)
        )
        values = dict[str, ast.expr]()
        for line in list(self.constructor.body):
            match line:
                case ast.Assign([ast.Attribute(ast.Name("self"), name)], value) if self._is_kept(value, written[name]):
                    values[name] = value
                    self.constructor.body.remove(line)
                case _:
                    pass
        self.constructor.body = self.constructor.body or [ast.Pass()]

        class Members(ast.NodeTransformer):
            def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
                node = cast(ast.Attribute, self.generic_visit(node))
                return values.get(node.attr, node) if ast.unparse(node.value) == "self" else node

        Members().visit(self.model)

    def _is_kept(self, value: ast.expr, times: int) -> bool:
        """Return whether a member that is assigned so often always has a value that is no list, which may change."""
        return times == 1 and self._is_value(value) and not any(isinstance(one, ast.List) for one in ast.walk(value))

    def _is_value(self, node: ast.expr) -> bool:
        """Return whether an expression is a number, a text, None, the name of a size, or a tuple of these."""
        match node:
            case ast.Tuple(elements) | ast.List(elements):
                return all(map(self._is_value, elements))
            case ast.Name(name):
                return name in self.constants
            case ast.UnaryOp(ast.USub(), value):
                return isinstance(value, ast.Constant)
            case ast.BinOp(left, _, right):
                return self._is_value(left) and self._is_value(right)
            case _:
                return isinstance(node, ast.Constant)

    def _name_inputs(self) -> None:
        """Name the inputs of `forward` and of `get_inputs` by their place."""
        names = [one.arg for one in self.forward.args.args[1:]]
        *lines, last = self.inputs.body
        match last:
            case ast.Return(ast.List(elements)) if len(elements) <= len(names) <= len(_INPUTS):
                pass
            case _:
                raise _UnusualError
        self.inputs.body = lines
        for place, element in enumerate(elements):
            if not isinstance(element, ast.Name):
                elements[place] = ast.Name(f"_{place}", ast.Load())
                lines.append(ast.Assign([ast.Name(f"_{place}", ast.Store())], element))
        returned = [cast(ast.Name, one).id for one in elements]
        if len(set(returned)) < len(returned):
            raise _UnusualError
        lines.append(last)
        _rename(self.inputs, dict(zip(returned, _INPUTS, strict=False)))
        _rename(self.forward, dict(zip(names, _INPUTS, strict=False)))

    def _dimensions(self) -> dict[str, int]:
        """Return the number of dimensions of inputs that are made in one line."""
        found = dict[str, int]()
        for line in self.inputs.body:
            match line:
                case ast.Assign([ast.Name(name)], made):
                    found.pop(name, None)
                    match made:
                        case ast.Call(ast.Attribute(ast.Call() as inner, "half" | "bfloat16" | "double"), []):
                            made = inner
                        case _:
                            pass
                    if (
                        isinstance(made, ast.Call)
                        and made in _makers(made)
                        and not any(isinstance(one, ast.Starred) for one in made.args)
                    ):
                        found[name] = len(made.args)
                case _:
                    pass
        return found

    def _sizes(self) -> list[str]:
        """Return the constants that keep a name: dimensions of inputs, and other sizes that are large."""
        for call in _makers(self.tree):
            call.args = _spliced(call.args)
        for call in _makers(self.inputs):
            call.args = [self._named(one) for one in call.args]
        sizes = {name: int(number(value) or 0) for name, value in self.constants.items() if is_int(value)}
        of_inputs = [one for one in loads(self.inputs) if one in sizes]
        large = [name for one in self._parts() for name in loads(one) if sizes.get(name, 0) >= _NAMED_FROM]
        return list(dict.fromkeys([*of_inputs, *large]))

    def _name_sizes(self, named: Sequence[str]) -> None:
        """Name sizes by their place in the text."""
        taken = {one.id for one in ast.walk(self.tree) if isinstance(one, ast.Name)} - set(named)
        free = (name for name in (f"D{number}" for number in count()) if name not in taken)
        new = dict(zip(named, free, strict=False))
        self._fill({}, {old: ast.Name(name, ast.Load()) for old, name in new.items()})
        self.sizes = {name: self.constants[old] for old, name in new.items()}

    def _named(self, size: ast.expr) -> ast.expr:
        """Return a name for a number among an input's dimensions."""
        if not is_int(size) or cast(ast.Constant, size).value == 1:
            return size
        name = f"_D{len(self.constants)}"
        self.constants[name] = cast(ast.Constant, size)
        return ast.Name(name, ast.Load())

    def _ordered(self) -> ast.Module:
        """Return imports, sizes, classes and functions."""
        own = stored_in(self.tree) | {one.arg for one in ast.walk(self.tree) if isinstance(one, ast.arg)}
        rest = [one for one in self.tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
        if not own & {"torch", "nn", "F"}:
            rest = [_Modules().visit(one) for one in rest]
        used = {name for one in rest for name in loads(one)}
        wanted = dict.fromkeys([*_IMPORTS, *_imported(self.tree)])
        imports = [one for one in wanted if one in _IMPORTS[:2] or one.split()[-1].partition(".")[0] in used]
        sizes = [ast.Assign([ast.Name(name, ast.Store())], value) for name, value in self.sizes.items()]
        return ast.Module([*ast.parse("\n".join(imports)).body, *sizes, *rest], [])


def _makers(node: ast.AST) -> list[ast.Call]:
    """Return the calls that make a tensor of a shape."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return [one for one in calls if ast.unparse(one.func) in {f"torch.{name}" for name in _MAKERS}]


def _imported(tree: ast.Module) -> list[str]:
    """Return a module's imports, one line for each name."""
    found = list[str]()
    for one in tree.body:
        if isinstance(one, ast.Import):
            found += [ast.unparse(ast.Import([name])) for name in one.names]
        elif isinstance(one, ast.ImportFrom):
            found += [ast.unparse(ast.ImportFrom(one.module, [name], one.level)) for name in one.names]
    return ["import torch.nn as nn" if one == "from torch import nn" else one for one in found]


class _Modules(ast.NodeTransformer):
    """Writes `nn` and `F` for torch's modules."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        match ast.unparse(node):
            case "torch.nn":
                return ast.Name("nn", node.ctx)
            case "torch.nn.functional" | "nn.functional":
                return ast.Name("F", node.ctx)
            case _:
                return self.generic_visit(node)


def _rename(function: ast.FunctionDef, names: Mapping[str, str]) -> None:
    """Rename variables of a function; others that have one of the new names are renamed, too."""
    nodes = list(ast.walk(function))
    own = stored_in(function) | {one.arg for one in nodes if isinstance(one, ast.arg)}
    taken = own | {one.id for one in nodes if isinstance(one, ast.Name)} | set(names.values())
    clashing = (own & set(names.values())) - names.keys()
    new = dict(names)
    for name in sorted(clashing):
        new[name] = next(one for one in (f"{name}_{number}" for number in count(2)) if one not in taken)
    for node in nodes:
        match node:
            case ast.Name(name):
                node.id = new.get(name, name)
            case ast.arg(name):
                node.arg = new.get(name, name)
            case _:
                pass


def _spliced(arguments: Sequence[ast.expr]) -> list[ast.expr]:
    """Return a shape's dimensions as arguments, without tuples and stars."""
    match arguments:
        case [ast.Tuple(elements) | ast.List(elements)] if elements:
            return list(elements)
        case _:
            lists = (
                one.value.elts if isinstance(one, ast.Starred) and isinstance(one.value, ast.Tuple) else [one]
                for one in arguments
            )
            return [one for part in lists for one in part]
