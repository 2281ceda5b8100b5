"""Suggestions for unknown names: the nearest known names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_SHOWN = 12
_ALIASES = {"gpu": "cuda"}
"""Other words for known names, which are not similar as text."""


def nearest(key: str, names: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the names most like `key`, best first, comparing whole names and their parts after the last slash.

    >>> nearest("starter/diag_matmull", ["starter/diag_matmul", "starter/softmax"])
    ['starter/diag_matmul']
    >>> nearest("softmx", ["starter/diag_matmul", "starter/softmax"])
    ['starter/softmax']
    >>> nearest("gpu", ["cpu", "cuda"])
    ['cuda']
    """
    tails: dict[str, str] = {}
    for name in names:
        tails.setdefault(name.lower(), name)
        tails.setdefault(name.rsplit("/", 1)[-1].lower(), name)
    if key.lower() not in tails and (alias := _ALIASES.get(key.lower())) in tails:
        return [tails[alias]]
    found: list[str] = []
    for match in difflib.get_close_matches(key.lower(), tails, n=2 * count, cutoff=0.6):
        if tails[match] not in found:
            found.append(tails[match])
    if not found and "/" in key:
        return nearest(key.rsplit("/", 1)[-1], names, count=count)
    return found[:count]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence about an unknown name.

    >>> did_you_mean("buckt", ["bucket", "island"]), did_you_mean("x", ["bucket", "island"])
    ("did you mean 'bucket'?", 'there are bucket, island')
    """
    if near := nearest(name, known):
        return f"did you mean {' or '.join(repr(one) for one in near)}?"
    shown = list(known)[:_SHOWN]
    rest = f" and {len(known) - _SHOWN} others" if len(known) > _SHOWN else ""
    return f"there are {', '.join(shown)}{rest}" if shown else "there is none"
