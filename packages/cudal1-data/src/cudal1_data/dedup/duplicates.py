"""Which tasks ask for what a test asks for: by what is known of them, and where that says nothing, by tracing both.

Starter and generated tasks are not traced: the first say what they overlap in KernelBench, and of 1,600 generated ones
none has the graph of one of KernelBench's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from cudal1_data.errors import DataError
from cudal1_data.generator import parse_name
from cudal1_data.hashes import text_hash
from cudal1_data.progress import paced
from cudal1_data.sources import load_suite
from cudal1_data.sources.kernelbench import Same, Why, load_notes, notes, places_by_text, release, same_tasks
from cudal1_data.task import Task
from cudal1_data.tracing import TaskGraph, Tracer
from cudal1_data.tracing.process import TIMEOUT_S

_traced: dict[str, TaskGraph] = {}
"""What was traced in this process, by the reference's text: an evaluation of a run asks for the same tasks again."""


def near_duplicates(
    tasks: Iterable[Task],
    test: Iterable[Task],
    *,
    told: Callable[[str], None] = lambda _: None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Same]:
    """Return which tasks ask for what a task of a test suite asks for.

    What `same_tasks` does not find is traced, and so is the test, but for programs whose graphs the notes know. Tracing
    executes references in a process that is no sandbox. A task that cannot be traced is reported and counts as no
    near-duplicate.

    Args:
        tasks: Tasks that may be trained on.
        test: Tasks that results are reported on.
        told: Told what takes time, how far it has come, and what cannot be traced.
        timeout_s: Longest time for tracing one reference.

    Raises:
        DataError: There is something to trace, and torch is not installed.
    """
    tasks, test = tuple(tasks), tuple(test)
    found = same_tasks(tasks, test)
    unknown = [task for task in tasks if task.source and task.id not in found and not bundled(task)] if test else []
    if not unknown:
        return found
    with _Graphs(told, timeout_s) as graphs:
        mine = graphs.of(unknown, "training tasks")
        others = graphs.of(test, "tasks of the test", known=True)
    by_graph: dict[str, str] = {}
    for task, graph in zip(test, others, strict=True):
        if graph is not None:
            by_graph.setdefault(graph, task.id)
    for task, graph in zip(unknown, mine, strict=True):
        if graph in by_graph:
            found[task.id] = Same(by_graph[graph], Why.GRAPH)
    return found


def bundled(task: Task) -> bool:
    """Whether a task is a starter or generated one, by its text and not by its name alone.

    >>> task = load_suite("starter")[0]
    >>> bundled(task), bundled(task.model_copy(update={"source": "other = 1"}))
    (True, False)
    """
    suite, _, name = task.id.partition("@")[0].partition("/")
    if suite == "generated":
        try:
            return text_hash(parse_name(name).source) == text_hash(task.source)
        except DataError:
            return False
    return suite == "starter" and (text_hash(task.source), task.overlaps) in _starter()


@functools.cache
def _starter() -> frozenset[tuple[str, str | None]]:
    return frozenset((text_hash(task.source), task.overlaps) for task in load_suite("starter"))


class _Graphs:
    """Fingerprints of tasks, each text traced once."""

    def __init__(self, told: Callable[[str], None], timeout_s: float) -> None:
        self._told = told
        self._tracer = Tracer(timeout_s=timeout_s)

    def __enter__(self) -> _Graphs:
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.close()

    def of(self, tasks: Iterable[Task], what: str, *, known: bool = False) -> list[str | None]:
        """Return the fingerprint of each task, None where it cannot be traced.

        Args:
            tasks: The tasks.
            what: What to call them.
            known: Whether to take graphs from the notes, where these were traced with the same torch.
        """
        tasks = list(tasks)
        noted = _noted(self._tracer.version()) if known else {}
        graphs = [noted.get(text_hash(task.source)) for task in tasks]
        unknown = {task.source: task for task, graph in zip(tasks, graphs, strict=True) if graph is None}
        missing = [task for source, task in unknown.items() if source not in _traced]
        if missing:
            self._told(
                f"tracing the references of {len(missing)} {what}, to find near-duplicates of the test by operator "
                f"graph: mostly less than a second each, {self._tracer.timeout_s:g} s at most"
            )
        for task in paced(missing, len(missing), f"{what} traced", told=self._told):
            _traced[task.source] = self._tracer.trace(task)
        for place, task in enumerate(tasks):
            if graphs[place] is not None:
                continue
            traced = _traced[task.source]
            graphs[place] = traced.fingerprint
            if traced.error is not None:
                self._told(
                    f"{task.id} cannot be traced, so its near-duplicates are found by id and text only: {traced.error}"
                )
        return graphs


def _noted(torch: str) -> dict[str, str | None]:
    """Return the graphs that the notes know, by the `text_hash` of the programs, if they were made with this torch."""
    if release(torch) != release(load_notes().torch):
        return {}
    known = notes()
    return {text: known[places[0]].graph for text, places in places_by_text(known).items()}
