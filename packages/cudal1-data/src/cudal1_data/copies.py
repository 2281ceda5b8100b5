"""Detection of programs that only copy their reference: always correct, never faster."""

from __future__ import annotations

import ast

from cudal1_data.errors import BrokenTaskError
from cudal1_data.hashes import drop_texts
from cudal1_data.task import parse

_LEFT_OUT = ("get_inputs", "get_init_inputs")
"""Functions that a program may omit or change without effect."""


def is_copy(source: str, reference: str) -> bool:
    r"""Return whether a program is its reference under the name `ModelNew`.

    `ModelNew` either inherits the reference's `Model` unchanged or has the same body. Comments, layout, the order of
    definitions and the creation of inputs are ignored. Text that is not Python is no copy.

    >>> reference = "class Model(nn.Module):\n    def forward(self, x):\n        return x + 1"
    >>> is_copy(reference + "\n\nclass ModelNew(Model):\n    pass", reference)
    True
    >>> is_copy(reference.replace("Model(", "ModelNew("), reference)
    True
    >>> is_copy(reference.replace("Model(", "ModelNew(").replace("x + 1", "1 + x"), reference)
    False
    """
    try:
        given, known = _definitions(source), _definitions(reference)
    except (BrokenTaskError, MemoryError, RecursionError):
        return False
    new = given.pop("ModelNew", None)
    if not isinstance(new, ast.ClassDef):
        return False
    inherits = [ast.unparse(base) for base in new.bases] == ["Model"]
    if not (inherits and all(isinstance(line, ast.Pass) for line in new.body)):
        new.name = "Model"
        given["Model"] = new
    return {_text(one) for one in given.values()} == {_text(one) for one in known.values()}


def _definitions(source: str) -> dict[str, ast.stmt]:
    """Return the statements of a program by name or position, without imports and text."""
    tree = parse(source, where="program")
    drop_texts(tree)
    found: dict[str, ast.stmt] = {}
    for place, node in enumerate(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
            continue
        name = node.name if isinstance(node, ast.ClassDef | ast.FunctionDef) else str(place)
        if name not in _LEFT_OUT:
            found[name] = node
    return found


def _text(node: ast.stmt) -> str:
    return ast.unparse(node).replace("super(ModelNew, self)", "super()").replace("super(Model, self)", "super()")
