"""Templates on tasks: pairs that nobody has judged yet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from cudal1_data.corpus.model import Label, Pair
from cudal1_data.corpus.spoil import SPOILS, spoilt_kernel
from cudal1_data.hashes import digest
from cudal1_data.kernelgen.make import WRITINGS, Made, Writing, variants
from cudal1_data.task import Task
from cudal1_data.techniques import Tags, classify

Item = TypeVar("Item")


def build(
    tasks: Iterable[Task],
    *,
    per_task: int | None = None,
    failures: int = 0,
    writings: Sequence[Writing] = WRITINGS,
) -> Iterator[Pair]:
    """Yield the pairs of tasks.

    Args:
        tasks: At the size that variants are for.
        per_task: Right programs for each task, at most: the ways of writing take turns, within a way the templates,
            and which programs of a template are taken follows from their hashes. None for all.
        failures: Spoilt programs for each task.
        writings: Ways of writing.
    """
    for task in tasks:
        whole = variants(task, writings)
        made = _some(whole, per_task)
        plain = next((one for one in whole if one.template == "plain"), None)
        tags = _Tagger(task)
        yield from (_pair(tags, one, one.source, one.template, "right") for one in made)
        yield from _spoilt(tags, made, plain, failures)


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
        lines.setdefault(one.writing, []).append(one)
    turns = [in_turns(line, lambda one: kind(one.template, dict(one.parameters)))[::-1] for line in lines.values()]
    chosen: list[Made] = []
    while len(chosen) < count:
        for line in turns:
            if line and len(chosen) < count:
                chosen.append(line.pop())
    return chosen


def kind(template: str, parameters: Mapping[str, int | str]) -> str:
    """Return what programs have in common that differ in numbers only."""
    return f"{template}, turned" if "turned" in parameters else template


def in_turns(items: Iterable[Item], kind_of: Callable[[Item], str], known: Iterable[str] = ()) -> list[Item]:
    """Order items so that one of each kind comes first, then another one of each.

    Some templates have a few choices of parameters, others a hundred.

    Args:
        items: In the order in which those of one kind are to come.
        kind_of: An item's kind.
        known: Kinds of those that came earlier, as often as they did.

    >>> in_turns(["a1", "a2", "a3", "b1"], lambda item: item[0])
    ['a1', 'b1', 'a2', 'a3']
    >>> in_turns(["a1", "b1", "a2", "b2"], lambda item: item[0], known=["a"])
    ['b1', 'a1', 'b2', 'a2']
    """
    before = Counter(known)
    turns: list[tuple[int, Item]] = []
    for item in items:
        turns.append((before[kind_of(item)], item))
        before[kind_of(item)] += 1
    return [item for _, item in sorted(turns, key=lambda turn: turn[0])]


def _spoilt(tags: _Tagger, made: Sequence[Made], plain: Made | None, count: int) -> Iterator[Pair]:
    """Spoil programs of a task, another way and another program each time; which ones follows from the task's hash.

    Slow ones are made of the plain program, where there is one: a fast kernel forty times over may still beat the
    reference.
    """
    quick = [one for one in made if one.writing != "cuda-load-inline"]
    start = int(digest(tags.task.id)[:8], 16)
    for number in range(count if quick else 0):
        one = quick[(start + 7 * number) % len(quick)]
        kernel = spoilt_kernel(one.source) if number % 4 == 3 else None
        if kernel is not None:  # NVRTC builds when the program is first called
            yield _pair(tags, one, kernel, "spoilt: unknown name in a kernel", "runtime")
            continue
        name, label, spoil = SPOILS[(start + number) % len(SPOILS)]
        if label == "slow" and plain is not None:
            if number >= len(SPOILS):  # there is one such program
                continue
            one = plain
        yield _pair(tags, one, spoil(one.source), f"spoilt: {name}", label)


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
        writing=made.writing,
        techniques=tags.techniques(source),
        template=template,
        parameters=dict(made.parameters),
        label=label,
    )
