"""Hashes of programs: of the exact text, without sizes, texts and comments, and without numbers and names."""

from __future__ import annotations

import ast
import hashlib
import re

from cudal1_data.errors import BrokenTaskError
from cudal1_data.task import parse


def digest(text: str) -> str:
    """Return the hash that names a program in records, hexadecimal SHA-256.

    Lone surrogates, which UTF-8 cannot encode, count as question marks.
    """
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def program_hash(source: str) -> str:
    r"""Hash a program without its sizes (top-level integer constants), texts and comments.

    >>> program_hash("N = 4\ndef f():\n    'Text.'\n    return N") == program_hash("N = 8  # other\ndef f(): return N")
    True

    Raises:
        BrokenTaskError: The text is not Python.
    """
    tree = parse(source, where="program")
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
            node.value = ast.Constant(0)
    drop_texts(tree)
    return digest(ast.unparse(tree))[:32]


def text_hash(source: str) -> str:
    """Return the `program_hash` of a reference, or the hash of its exact text if it is not Python.

    References that differ only in sizes, texts and comments share it.
    """
    try:
        return program_hash(source)
    except (BrokenTaskError, MemoryError, RecursionError):
        return digest(source)


def skeleton_hash(source: str) -> str:
    r"""Hash a program without its numbers, comments and layout, and with the names that it defines numbered.

    Programs with the same skeleton differ in sizes, tile shapes and names only. Library names are kept. Kernels in
    strings count; their names are found after a C type. In text that is not Python, only numbers are masked.

    >>> skeleton_hash("def f(a):\n    return a.relu() * 2  # two") == skeleton_hash("def g(x): return x.relu() * 8")
    True
    >>> skeleton_hash("def f(a): return a.relu()") == skeleton_hash("def f(a): return a.tanh()")
    False
    """
    try:
        tree = parse(source, where="program")
        drop_texts(tree)
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                node.value = " ".join(_C_COMMENT.sub(" ", node.value).split())
                names.update(name for found in _C_NAMES.findall(node.value) for name in found)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
        text = ast.unparse(tree)
    except (BrokenTaskError, MemoryError, RecursionError):
        text, names = source, set[str]()
    wanted = {name for name in names if not _C_TYPE.fullmatch(name)}
    numbered: dict[str, str] = {}
    parts: list[str] = []
    for token in _TOKEN.findall(text):
        if token in wanted:
            parts.append(numbered.setdefault(token, f"v{len(numbered)}"))
        else:
            parts.append("#" if token[0].isdigit() else token)
    return digest("".join(parts))[:16]


_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\W")
_TYPES = (
    r"(?:auto|bool|char|double|float\d?|half2?|__half2?|__nv_bfloat162?|int\d?|long|short|unsigned|void|\w+_t|Tensor)"
)
_C_TYPE = re.compile(rf"{_TYPES}|const|__restrict__|__launch_bounds__")
_C_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_C_NAMES = re.compile(
    rf"\b(?:{_TYPES}[\s*&]+(?:const\s+)?(?:__restrict__\s+)?)+(?:__launch_bounds__\([^()]*\)\s*)?([A-Za-z_]\w*)"
    r"|,\s*([A-Za-z_]\w*)\s*=(?!=)"
)
"""Names that a C++ kernel defines: after a type, or after a comma and with a value."""


def drop_texts(tree: ast.Module) -> None:
    """Remove docstrings and other standalone strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            kept = [line for line in node.body if not _is_text(line)]
            node.body = kept or [ast.Pass()]


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
