"""Pairs from templates on tasks, without a verdict yet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from cudal1_data.corpus.failures import FAILURES, kernel_with_unknown_name
from cudal1_data.corpus.model import Label, Pair
from cudal1_data.hashes import digest
from cudal1_data.kernelgen.make import BACKENDS, Made, variants
from cudal1_data.task import Task
from cudal1_data.techniques import Backend, Tags, classify

Item = TypeVar("Item")


def build(
    tasks: Iterable[Task],
    *,
    per_task: int | None = None,
    failures: int = 0,
    backends: Sequence[Backend] = BACKENDS,
) -> Iterator[Pair]:
    """Yield the pairs of tasks.

    Args:
        tasks: At the size that variants are for.
        per_task: Maximum number of correct programs for each task; None for all. Backends alternate, and so do the
            templates of a backend. Hashes decide which programs of a template are taken.
        failures: Programs with a fault for each task.
        backends: Backends of the programs.
    """
    for task in tasks:
        whole = variants(task, backends)
        made = _some(whole, per_task)
        plain = next((one for one in whole if one.template == "plain"), None)
        tags = _Tagger(task)
        yield from (_pair(tags, one, one.source, one.template, "correct") for one in made)
        yield from _failures(tags, made, plain, failures)


class _Tagger:
    """Tags programs of one task; those that differ in numbers of a template's parameters only are tagged once."""

    _NUMBERS = re.compile(r"num_warps=\d+|num_stages=\d+|#pragma unroll \d+|\d{2,}")

    def __init__(self, task: Task) -> None:
        self.task = task
        self._known: dict[str, Tags | None] = {}

    def techniques(self, source: str) -> tuple[str, ...]:
        key = self._NUMBERS.sub(lambda match: re.sub(r"\d+", "99", match[0]), source)
        if key not in self._known:
            self._known[key] = classify(source, self.task.source)
        tags = self._known[key]
        return () if tags is None else tags.techniques


def _some(made: Sequence[Made], count: int | None) -> list[Made]:
    if count is None or len(made) <= count:
        return list(made)
    lines: dict[str, list[Made]] = {}
    for one in sorted(made, key=lambda one: digest(one.source)):
        lines.setdefault(one.backend, []).append(one)
    queues = [alternated(line, lambda one: kind(one.template, dict(one.parameters)))[::-1] for line in lines.values()]
    chosen: list[Made] = []
    while len(chosen) < count:
        for line in queues:
            if line and len(chosen) < count:
                chosen.append(line.pop())
    return chosen


def kind(template: str, parameters: Mapping[str, int | str]) -> str:
    """Return what programs have in common that differ in numbers only."""
    return f"{template}, transposed" if "transposed" in parameters else template


def alternated(items: Iterable[Item], kind_of: Callable[[Item], str], known: Iterable[str] = ()) -> list[Item]:
    """Order items so that kinds alternate: one of each kind first, then another one of each.

    Some templates have a few choices of parameters, others a hundred.

    Args:
        items: In the order in which those of one kind are to come.
        kind_of: An item's kind.
        known: Kinds of those that came earlier, as often as they did.

    >>> alternated(["a1", "a2", "a3", "b1"], lambda item: item[0])
    ['a1', 'b1', 'a2', 'a3']
    >>> alternated(["a1", "b1", "a2", "b2"], lambda item: item[0], known=["a"])
    ['b1', 'a1', 'b2', 'a2']
    """
    before = Counter(known)
    ranked: list[tuple[int, Item]] = []
    for item in items:
        ranked.append((before[kind_of(item)], item))
        before[kind_of(item)] += 1
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def _failures(tags: _Tagger, made: Sequence[Made], plain: Made | None, count: int) -> Iterator[Pair]:
    """Mutate programs of a task, each time another program with another fault; the task's hash decides which.

    A slow mutant repeats the plain program, where there is one: a fast kernel run forty times may still beat the
    reference.
    """
    quick = [one for one in made if one.backend != "cuda-load-inline"]
    start = int(digest(tags.task.id)[:8], 16)
    for number in range(count if quick else 0):
        one = quick[(start + 7 * number) % len(quick)]
        kernel = kernel_with_unknown_name(one.source) if number % 4 == 3 else None
        if kernel is not None:  # NVRTC builds when the program is first called
            yield _pair(tags, one, kernel, "mutant: unknown name in a kernel", "runtime")
            continue
        name, label, mutant = FAILURES[(start + number) % len(FAILURES)]
        if label == "slow" and plain is not None:
            if number >= len(FAILURES):  # there is one such program
                continue
            one = plain
        yield _pair(tags, one, mutant(one.source), f"mutant: {name}", label)


def _pair(tags: _Tagger, made: Made, source: str, template: str, label: Label) -> Pair:
    task = tags.task
    return Pair(
        task=task.id,
        family=task.category,
        level=task.level,
        split=task.split,
        overlaps=task.overlaps,
        reference=task.source,
        reference_sha256=digest(task.source),
        source=source,
        source_sha256=digest(source),
        backend=made.backend,
        techniques=tags.techniques(source),
        template=template,
        parameters=dict(made.parameters),
        label=label,
    )
