"""Parts copied from a reference into a program: imports, constants, classes of members, and the constructor."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping

from cudal1_data.kernelgen.errors import UnsuitableError

_WRITERS = re.compile(r"torch|nn|F|math|tl|triton|libdevice|functools|load_inline|built|extension|CUDA|ModelNew")
"""Names that generated programs or the reader use themselves."""
_NUMBERED = re.compile(r"(SOURCE|fused|product|step_)\d+")


def classes(tree: ast.Module, model: ast.ClassDef) -> dict[str, ast.ClassDef]:
    """Return the classes of modules that a model's constructor needs, by name.

    Args:
        tree: The reference.
        model: The class of the model.
    """
    plain = {
        one.name: one
        for one in tree.body
        if isinstance(one, ast.ClassDef)
        and one is not model
        and [ast.unparse(base) for base in one.bases] in (["nn.Module"], ["torch.nn.Module"])
        and not one.keywords
        and not one.decorator_list
    }
    needed: dict[str, ast.ClassDef] = {}
    left: list[ast.AST] = [one for one in model.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    while left:
        for one in ast.walk(left.pop()):
            if isinstance(one, ast.Name) and one.id in plain and one.id not in needed:
                needed[one.id] = plain[one.id]
                left.append(plain[one.id])
    return needed


def head(tree: ast.Module, source: str, members: Mapping[str, ast.ClassDef]) -> str:
    """Return a reference's imports, constants and classes of members.

    Args:
        tree: The reference.
        source: Its text.
        members: The classes to copy, by name.

    Raises:
        UnsuitableError: They need other definitions, or use names that programs use themselves.
    """
    kept = _kept(tree)
    for one in kept:
        if isinstance(one, ast.ImportFrom) and one.module == "__future__":
            raise UnsuitableError(
                "the reference imports from __future__, which a program cannot repeat after its own lines"
            )
        if isinstance(one, ast.Assign):
            refuse_taken(_bound(one))
    known = _known(tree)
    for one in kept:
        _refuse_unknown(one, known)
    refuse_taken(set(members))
    for one in members.values():
        given = {arg.arg for arg in ast.walk(one) if isinstance(arg, ast.arg)}
        _refuse_unknown(one, {*known, *members, *given, *_bound(one)})
    texts: list[str] = []
    for one in tree.body:
        if isinstance(one, ast.ClassDef) and members.get(one.name) is one:
            texts.append(f"\n\n{ast.get_source_segment(source, one)}\n\n")
        elif one in kept:
            texts.append(ast.unparse(one))
    return "\n".join(texts)


def refuse_changed_constants(tree: ast.Module) -> None:
    """Reject a file whose constants are not what plain assignments at its top level say.

    Raises:
        UnsuitableError: Another statement may change a constant, or a default was computed before a constant's last
            assignment.
    """
    plain = [one for one in tree.body if isinstance(one, ast.Assign) and not _stores_inside(one)]
    bound = [name for one in plain for name in _bound(one)]
    functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assert)
    for one in tree.body:
        if one in plain or isinstance(one, definitions) or _only_as_script(one):
            continue
        names = {inner.id for inner in ast.walk(one) if isinstance(inner, ast.Name)}
        text = ast.unparse(one).partition("\n")[0][:60]
        only_told = isinstance(one, ast.Expr) and re.match(r"(torch\.[\w.]+|print)\([\w., ]*\)$", text)
        if not only_told and (found := names & {*bound, *functions}):
            raise UnsuitableError(f"{text!r} may change {min(found)}; templates read plain assignments of constants")
        if "set_default_" in text:
            raise UnsuitableError(f"{text!r} changes what PyTorch computes in all of the file")
    for one in ast.walk(tree):
        if isinstance(one, ast.Global) and set(one.names) & set(bound):
            raise UnsuitableError(f"a function assigns the constant {one.names[0]}; templates read constants")
        if isinstance(one, ast.FunctionDef):
            defaults = [*one.args.defaults, *filter(None, one.args.kw_defaults)]
            for name in (inner.id for part in defaults for inner in ast.walk(part) if isinstance(inner, ast.Name)):
                if bound.count(name) > 1:
                    raise UnsuitableError(f"{one.name} has a default of {name}, which is assigned more than once")


def _stores_inside(statement: ast.Assign) -> bool:
    """Return whether an assignment is to a part or an attribute of something."""
    return any(isinstance(inner, ast.Subscript | ast.Attribute) for one in statement.targets for inner in ast.walk(one))


def _only_as_script(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def constructor(tree: ast.Module, source: str, model: ast.ClassDef, members: Mapping[str, ast.ClassDef]) -> str:
    """Return the text of `__init__` for a class not named `Model`; empty if the model has none.

    Args:
        tree: The reference.
        source: Its text.
        model: The class.
        members: The classes that are copied, by name.

    Raises:
        UnsuitableError: It needs parts of the reference that are not copied.
    """
    found = [one for one in model.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    if not found:
        return ""
    (function,) = found
    text = ast.get_source_segment(source, function, padded=True) or ""
    plain = ast.unparse(function)
    changed = _Nameless().visit(ast.parse(plain))
    if ast.unparse(changed) != plain:
        text = ast.unparse(changed)
    given = {one.arg for one in ast.walk(changed) if isinstance(one, ast.arg)}
    _refuse_unknown(changed, {*_known(tree), *members, *given, *_bound(changed)})
    of_class = {one.name for one in model.body if isinstance(one, ast.FunctionDef)}
    of_class |= {name for one in model.body if not isinstance(one, ast.FunctionDef) for name in _bound(one)}
    for one in ast.walk(changed):
        if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self" and one.attr in of_class:
            raise UnsuitableError(f"__init__ calls self.{one.attr}, a method of the model, which programs do not have")
    return text


def refuse_taken(names: set[str]) -> None:
    """Reject names that programs use themselves.

    Raises:
        UnsuitableError: The reference uses such a name.
    """
    for name in names:
        if _WRITERS.fullmatch(name) or _NUMBERED.fullmatch(name):
            raise UnsuitableError(f"the reference has the name {name}, which programs use themselves")


class _Nameless(ast.NodeTransformer):
    """Transformer of `super(Model, self)` to `super()`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node) == "super(Model, self)":
            node.args = []
        return node


def _kept(tree: ast.Module) -> list[ast.stmt]:
    return [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom | ast.Assign)]


def _known(tree: ast.Module) -> set[str]:
    return {name for one in _kept(tree) for name in _bound(one)}


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {one.asname or one.name.partition(".")[0] for one in node.names}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _refuse_unknown(node: ast.AST, known: set[str]) -> None:
    known = {"torch", "nn", "F", *dir(builtins)} | known
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id not in known:
            raise UnsuitableError(
                f"the file defines {one.id} outside of the model; programs copy imports, constants, nn.Modules"
            )
