"""Split a campaign into parts: one process for each GPU or each machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from cudal1_env.errors import SettingsError

_Item = TypeVar("_Item")


def part_of(items: Iterable[_Item], part: str, task: Callable[[_Item], str] | None = None) -> list[_Item]:
    """Return the items of every N-th task, from the K-th on, for the part `K/N`; all items for an empty text.

    Items of one task stay together, since they share its oracle.

    Args:
        items: All items.
        part: `K/N` with 0 <= K < N, or empty.
        task: Return an item's task; None if each item is its own task.

    Raises:
        SettingsError: The text has another form.
    """
    if not part:
        return list(items)
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None or not int(match[1]) < int(match[2]):
        raise SettingsError(f"--part is {part!r}; write K/N with 0 <= K < N (0/2 and 1/2 for two GPUs)")
    mine, count = int(match[1]), int(match[2])
    if task is None:
        return list(items)[mine::count]
    numbers: dict[str, int] = {}
    return [one for one in items if numbers.setdefault(task(one), len(numbers)) % count == mine]
