"""Hashes of programs: of the text to the letter, and of what it computes up to sizes, texts and comments."""

from __future__ import annotations

import ast
import hashlib

from cudal1_data.errors import BrokenTaskError
from cudal1_data.task import parse


def digest(text: str) -> str:
    """Return the hash by which records name a program, hexadecimal SHA-256.

    Lone surrogates, which UTF-8 cannot hold, count as question marks.
    """
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def program_hash(source: str) -> str:
    r"""Hash a program without its sizes (top-level integer constants), texts and comments.

    >>> program_hash("N = 4\ndef f():\n    'Text.'\n    return N") == program_hash("N = 8  # other\ndef f(): return N")
    True

    Raises:
        BrokenTaskError: The text is no Python.
    """
    tree = parse(source, where="program")
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
            node.value = ast.Constant(0)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            kept = [line for line in node.body if not _is_text(line)]
            node.body = kept or [ast.Pass()]
    return digest(ast.unparse(tree))[:32]


def text_hash(source: str) -> str:
    """Return what two references share that are one program up to sizes, texts and comments: their `program_hash`.

    What is no Python is compared to the letter.
    """
    try:
        return program_hash(source)
    except (BrokenTaskError, MemoryError, RecursionError):
        return digest(source)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
