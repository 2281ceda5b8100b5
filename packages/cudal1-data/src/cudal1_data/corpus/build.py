"""Pairs made by applying templates to tasks, without a verdict yet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from cudal1_data.corpus.failures import FAILURES, kernel_with_unknown_name
from cudal1_data.corpus.model import Label, Pair
from cudal1_data.corpus.store import Corpus
from cudal1_data.errors import DataError
from cudal1_data.hashes import digest
from cudal1_data.kernelgen.codegen.rewrites import plain_program
from cudal1_data.kernelgen.make import BACKENDS, Made, Option, options
from cudal1_data.task import Task, parse
from cudal1_data.techniques import Backend, classify

Item = TypeVar("Item")


MAX_PER_SKELETON = 3
"""Maximum number of a task's programs that differ in numbers only."""
_DIGITS = re.compile(r"\d+")


def render(
    task: Task,
    seed: int = 0,
    *,
    backends: Sequence[Backend] = BACKENDS,
    per_skeleton: int = MAX_PER_SKELETON,
    tagged: bool = False,
) -> Iterator[Pair]:
    """Yield a task's pairs one by one, each rendered on demand.

    Backends alternate, and so do the templates of a backend; the seed decides which parameters of a template come
    first. The same task and seed give the same pairs in the same order, on every machine.

    Args:
        task: The task at the programs' size.
        seed: Decides the order.
        backends: Backends of the programs.
        per_skeleton: Maximum number of programs that differ in numbers only.
        tagged: Whether to tag the pairs with their techniques, which takes several times as long as rendering.

    Raises:
        DataError: A backend has no template, `per_skeleton` is less than 1, or the reference is not Python.

    >>> from itertools import islice
    >>> from cudal1_data import load_task
    >>> task = load_task("starter/rms_norm", device="cuda")
    >>> [pair.backend for pair in islice(render(task, 7, backends=("triton", "cuda-nvrtc")), 3)]
    ['triton', 'cuda-nvrtc', 'triton']
    """
    tags = _Tagger(task, tagged)
    for made in _rendered(task, seed, backends, per_skeleton):
        yield _pair(tags, made, made.source, made.template, "correct")


def build(
    tasks: Iterable[Task],
    *,
    per_task: int | None = None,
    failures: int = 0,
    backends: Sequence[Backend] = BACKENDS,
    seed: int = 0,
) -> Iterator[Pair]:
    """Yield the pairs of tasks.

    Args:
        tasks: Tasks at the size of the variants.
        per_task: Maximum number of correct programs for each task; None for all. See `render` for their order.
        failures: Number of programs with a fault for each task.
        backends: Backends of the programs.
        seed: Decides which programs come first.
    """
    for task in tasks:
        made = list(islice(_rendered(task, seed, backends, MAX_PER_SKELETON), per_task))
        plain = None
        if failures and "pytorch" in backends:
            plain = Made(plain_program(task.source), "pytorch", "plain", ())
        tags = _Tagger(task, True)
        yield from (_pair(tags, one, one.source, one.template, "correct") for one in made)
        yield from _failures(tags, made, plain, failures)


def _rendered(task: Task, seed: int, backends: Sequence[Backend], per_skeleton: int) -> Iterator[Made]:
    if unknown := [one for one in backends if one not in BACKENDS]:
        raise DataError(f"no template writes for the backend {unknown[0]!r}; the backends are {', '.join(BACKENDS)}")
    if per_skeleton < 1:
        raise DataError(f"per_skeleton is {per_skeleton}; it must be 1 or more")
    parse(task.source, where=task.id)
    lines: dict[str, list[Option]] = {}
    for one in options(task, backends):
        lines.setdefault(one.backend, []).append(one)
    queues: list[list[Option]] = []
    for line in lines.values():
        drawn = sorted(line, key=lambda one: digest(f"{seed} {task.id} {one.template} {one.parameters}"))
        queues.append(alternated(drawn, lambda one: kind(one.template, dict(one.parameters)))[::-1])
    seen = {digest(task.source)}
    skeletons: Counter[str] = Counter()
    forms: Counter[object] = Counter()
    while any(queues):
        for queue in queues:
            while queue:
                option = queue.pop()
                form = (kind(option.template, dict(option.parameters)), option.form) if option.form else None
                if form is not None and forms[form] >= per_skeleton:
                    continue  # its skeleton has reached `per_skeleton`
                made = option.render()
                if made is None or digest(made.source) in seen:
                    continue
                seen.add(digest(made.source))
                skeleton = _skeleton(made.source)
                skeletons[skeleton] += 1
                if skeletons[skeleton] <= per_skeleton:
                    forms[form] += 1
                    yield made
                    break


def limited(pairs: Iterable[Pair], per_skeleton: int) -> Corpus:
    """Keep the best pairs of each reference and skeleton: of the newest protocol first, then the fastest.

    Args:
        pairs: Pairs, in any order.
        per_skeleton: Maximum number of pairs of a reference whose programs differ in numbers only.
    """
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.reference_sha256, _skeleton(pair.source)), []).append(pair)
    kept = [pair for group in groups.values() for pair in sorted(group, key=_merit, reverse=True)[:per_skeleton]]
    return Corpus(kept)


def _merit(pair: Pair) -> tuple[str, float]:
    latest, speedup = pair.latest(), pair.best()
    return latest.protocol if latest else "", speedup.point if speedup else 0.0


def _skeleton(source: str) -> str:
    return digest(_DIGITS.sub("#", source))


class _Tagger:
    """Tagger of one task's programs, with one cache entry for parameters that do not affect tags."""

    def __init__(self, task: Task, tagged: bool) -> None:
        self.task = task
        self.tagged = tagged
        self._known: dict[object, tuple[str, ...]] = {}

    def techniques(self, made: Made, source: str) -> tuple[str, ...]:
        """Return a program's tags.

        Args:
            made: A template's program.
            source: That program's text, or a mutant of it.
        """
        if not self.tagged:
            return ()
        given = tuple((name, _shown(name, value)) for name, value in made.parameters if name in _TELLING)
        key = (made.backend, made.template, given, source if source != made.source else "")
        if key not in self._known:
            tags = classify(source, self.task.source)
            self._known[key] = () if tags is None else tags.techniques
        return self._known[key]


_TELLING = ("mode", "threads", "vector", "per_block", "looped", "depth", "transposed", "part_m")
"""Parameters whose value affects a program's techniques; sizes of tiles, warps and stages change numbers only."""


def _shown(name: str, value: int | str) -> object:
    """Return what a parameter changes in the text besides numbers: a warp or a block, one or several."""
    if isinstance(value, str) or name in ("depth", "transposed"):
        return value
    return value > (32 if name == "threads" else 1)


def kind(template: str, parameters: Mapping[str, int | str]) -> str:
    """Return a program's kind: its template, marked if made from the transposed reference."""
    return f"{template}, transposed" if "transposed" in parameters else template


def alternated(items: Iterable[Item], kind_of: Callable[[Item], str], known: Iterable[str] = ()) -> list[Item]:
    """Order items so that kinds alternate: one of each kind first, then a second one of each.

    Some templates have a few choices of parameters, others a hundred.

    Args:
        items: The items; those of one kind keep their order.
        kind_of: An item's kind.
        known: Kinds of the items that came earlier, one entry per item.

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
    """Mutate programs of a task, each with another fault; the task's hash decides which.

    A slow mutant repeats the plain program, if there is one: a fast kernel run 40 times may still beat the reference.
    """
    quick = [one for one in made if one.backend != "cuda-load-inline"]
    start = int(digest(tags.task.id)[:8], 16)
    for number in range(count if quick else 0):
        one = quick[(start + 7 * number) % len(quick)]
        kernel = kernel_with_unknown_name(one.source) if number % 4 == 3 else None
        if kernel is not None:  # NVRTC builds at the first call
            yield _pair(tags, one, kernel, "mutant: unknown name in a kernel", "runtime")
            continue
        name, label, mutant = FAILURES[(start + number) % len(FAILURES)]
        if label == "slow" and plain is not None:
            if number >= len(FAILURES):  # there is only one slow mutant of the plain program
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
        techniques=tags.techniques(made, source),
        template=template,
        parameters=dict(made.parameters),
        label=label,
    )
