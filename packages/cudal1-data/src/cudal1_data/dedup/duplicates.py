"""Near-duplicates of a test suite: by known facts, and otherwise by tracing both.

Two tasks are the same if their operator graphs or their results on small inputs are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cudal1_data.dedup.behaviours import Behaviours
from cudal1_data.progress import paced
from cudal1_data.sources.kernelbench import Same, Why, same_tasks
from cudal1_data.task import Task
from cudal1_data.tracing import TaskGraph, trace_tasks
from cudal1_data.tracing.process import TIMEOUT_S

_traced: dict[str, TaskGraph] = {}
"""Traces of this process by the reference's text: an evaluation of a run needs the same tasks again."""


def near_duplicates(
    tasks: Iterable[Task],
    test: Iterable[Task],
    *,
    notify: Callable[[str], None] = lambda _: None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Same]:
    """Return the tasks that are near-duplicates of a task of a test suite.

    The tasks that `same_tasks` does not find are traced, and so is the test. Tracing executes references in a process
    without a sandbox. A task that cannot be traced is reported.

    Args:
        tasks: Tasks for training.
        test: Tasks for reporting results.
        notify: Called with progress messages and with tasks that cannot be traced.
        timeout_s: Maximum time to trace one reference, in seconds.

    Raises:
        DataError: There are tasks to trace, and torch is not installed.
    """
    tasks, test = tuple(tasks), tuple(test)
    found = same_tasks(tasks, test)
    unknown = [task for task in tasks if task.source and task.id not in found] if test else []
    if not unknown:
        return found
    _trace([*unknown, *test], notify, timeout_s)
    by_graph: dict[str, str] = {}
    for task in test:
        if (fingerprint := _traced[task.source].fingerprint) is not None:
            by_graph.setdefault(fingerprint, task.id)
    behaviours = Behaviours([(task.id, _traced[task.source].behaviour) for task in test])
    for task in unknown:
        graph = _traced[task.source]
        if graph.fingerprint in by_graph:
            found[task.id] = Same(by_graph[graph.fingerprint], Why.GRAPH)
        elif same := behaviours.find(graph.behaviour):
            found[task.id] = Same(same[0], Why.BEHAVIOUR)
    return found


def _trace(tasks: Sequence[Task], notify: Callable[[str], None], timeout_s: float) -> None:
    """Trace the references that were not traced before; each text once."""
    missing = list({task.source: task for task in tasks if task.source not in _traced}.values())
    if missing:
        notify(
            f"tracing {len(missing)} references of training tasks and of the test, to find near-duplicates by operator "
            f"graph and behaviour: mostly less than a second each, {timeout_s:g} s at most"
        )
    found = paced(trace_tasks(missing, timeout_s=timeout_s), len(missing), "references traced", notify=notify)
    for task, graph in zip(missing, found, strict=True):
        _traced[task.source] = graph
        if graph.error is not None:
            known = "by id, text and behaviour" if graph.behaviour else "by id and text"
            notify(f"{task.id} cannot be traced, so its near-duplicates are found {known} only: {graph.error}")
