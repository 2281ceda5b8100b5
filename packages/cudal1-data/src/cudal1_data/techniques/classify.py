"""Tagging of a program's text, which is parsed and searched, never executed."""

from __future__ import annotations

import ast
import functools

from pydantic import BaseModel, ConfigDict

from cudal1_data.errors import BrokenTaskError
from cudal1_data.task import parse
from cudal1_data.techniques.parts import Parts
from cudal1_data.techniques.patterns import PATTERNS, Backend, backends


class Tags(BaseModel):
    """The backends and techniques of a program."""

    model_config = ConfigDict(frozen=True)

    backend: Backend
    """The most specific backend that it uses."""
    backends: tuple[Backend, ...]
    """All backends that it uses."""
    techniques: tuple[str, ...]
    """Tags of `TECHNIQUES`, in that order."""
    signs: dict[str, tuple[str, ...]]
    """Names of the matched patterns by tag."""


def classify(source: str, reference: str | None = None) -> Tags | None:
    """Tag a program.

    Args:
        source: Program text; untrusted.
        reference: The reference that it replaces; needed to detect omitted work.

    Returns:
        Its tags; None if the text defines no `ModelNew`, or is not Python, or is nested too deeply.
    """
    if "class ModelNew" not in source:
        return None
    try:
        known = _reference(reference) if reference is not None else None
        return _tags(Parts(parse(source, where="program"), known))
    except (BrokenTaskError, RecursionError, MemoryError):  # a long sum is a deep tree
        return None


@functools.lru_cache(maxsize=16)
def _reference(text: str) -> ast.Module:
    """Parse a reference, cached: many programs replace the same one."""
    return parse(text, where="reference")


def _tags(parts: Parts) -> Tags:
    signs: dict[str, tuple[str, ...]] = {}
    for pattern in PATTERNS:
        if pattern.seen(parts):
            signs[pattern.tag] = (*signs.get(pattern.tag, ()), pattern.name)
    found = backends(parts)
    return Tags(backend=found[0], backends=found, techniques=tuple(signs), signs=signs)
