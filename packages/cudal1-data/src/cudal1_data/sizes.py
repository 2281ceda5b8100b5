"""Sizes at the end of task ids: `@N=384,M=3000`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cudal1_data.errors import UnknownTaskError

ENTRY = r"[A-Za-z_]\w*=-?\d+"
"""Pattern of one constant of a size; it matches negative numbers so that `parse_size` can report them."""
SIZE = re.compile(rf"@(?P<size>{ENTRY}(,{ENTRY})*)$")


def parse_size(text: str) -> dict[str, int]:
    """Return the constants of a size.

    Raises:
        UnknownTaskError: The text is no list of `NAME=integer`, or an integer is smaller than 1.

    >>> parse_size("N=384,M=3000")
    {'N': 384, 'M': 3000}
    """
    size = _read(text) if SIZE.fullmatch("@" + text) else {}
    if not size or min(size.values()) < 1:
        raise UnknownTaskError(f"invalid size {text!r}: write one such as N=384,M=3000, in numbers of 1 or more")
    return size


def unsized(task_id: str) -> str:
    """Return a task id without its size.

    >>> unsized("starter/diag_matmul@N=384"), unsized("file/a@b")
    ('starter/diag_matmul', 'file/a@b')
    """
    return SIZE.sub("", task_id)


def with_size(task_id: str, size: Mapping[str, int]) -> str:
    """Return a task id with a size; other constants of its present size are kept.

    >>> with_size("t@N=4,M=8", {"N": 2, "K": 1})
    't@N=2,M=8,K=1'
    """
    known = SIZE.search(task_id)
    whole = {**(_read(known["size"]) if known else {}), **size}
    if not whole:
        return task_id
    return f"{unsized(task_id)}@{','.join(f'{name}={value}' for name, value in whole.items())}"


def ends_in(task_id: str, key: str) -> bool:
    """Return whether a task id is or ends in `key`, at a slash.

    >>> ends_in("cuda-l1/level1/12", "level1/12"), ends_in("cuda-l1/level1/12", "2")
    (True, False)
    """
    return f"/{task_id}".endswith(f"/{key}")


def _read(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (item.split("=") for item in text.split(","))}
