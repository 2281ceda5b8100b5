"""Decontamination: which pairs of a corpus are test data, or belong to tasks that this run evaluates."""

from __future__ import annotations

from collections.abc import Iterable

from cudal1_data import Task
from cudal1_data.corpus import Pair
from cudal1_data.hashes import digest, text_hash
from cudal1_data.sources.kernelbench import notes, place_of, places_by_text


class Decontamination:
    """Filter for pairs that must not be trained on, by the id of their task and the text of their reference.

    References that differ only in sizes, texts and comments are the same program. Held-out sizes of training tasks are
    compared by their exact text.

    Args:
        held_out: Tasks that this run never trains on.
        sizes: Training tasks of the run at sizes that it never trains on.
    """

    def __init__(self, held_out: Iterable[Task], sizes: Iterable[Task] = ()) -> None:
        tasks = tuple(held_out)
        self._names = {name for task in tasks for name in _names(task.id)}
        self._programs = {text_hash(task.source) for task in tasks}
        self._sizes = {digest(task.source) for task in sizes}
        self._kernelbench = places_by_text(notes())
        self._known: dict[str, str] = {}

    def kernelbench(self, pair: Pair) -> str | None:
        """Return the KernelBench task that equals a pair's task, in any form and under any name; None if none does."""
        place = place_of(pair.task) or next(iter(self._kernelbench.get(self._hash(pair), ())), None)
        return None if place is None else f"kernelbench/{place}"

    def evaluated(self, pair: Pair) -> bool:
        """Return whether the run evaluates or holds out a pair's task."""
        return (
            not self._names.isdisjoint(_names(pair.task))
            or self._hash(pair) in self._programs
            or pair.reference_sha256 in self._sizes
        )

    def _hash(self, pair: Pair) -> str:
        if pair.reference_sha256 not in self._known:
            self._known[pair.reference_sha256] = text_hash(pair.reference)
        return self._known[pair.reference_sha256]


def _names(task_id: str) -> set[str]:
    """Return a task's id without its size, and its place in KernelBench."""
    base = task_id.partition("@")[0]
    return {base, place_of(base) or base}
