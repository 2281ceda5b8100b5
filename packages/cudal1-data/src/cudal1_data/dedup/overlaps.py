"""Near-duplicates between two suites: tasks with the same operator graph or behaviour, at any shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from cudal1_data.dedup.behaviours import Behaviours
from cudal1_data.tracing.tasks import TaskGraph


class Overlap(BaseModel):
    """A task of the first suite, and those of the second with its graph or behaviour."""

    model_config = ConfigDict(frozen=True)

    task: str
    """Id in the first suite."""
    same: tuple[str, ...]
    """Ids in the second suite."""
    operators: tuple[str, ...]
    """Operators of the first."""
    by: Literal["graph", "behaviour"] = "graph"
    """Evidence: the same operators, or the same results on small inputs."""


class OverlapReport(BaseModel):
    """The near-duplicates of two suites."""

    model_config = ConfigDict(frozen=True)

    suite: str
    """Name of the first suite."""
    other: str
    """Name of the second."""
    tasks: int
    """Number of tasks of the first with a graph."""
    others: int
    """Number of tasks of the second with a graph."""
    overlaps: tuple[Overlap, ...]
    """Tasks of the first that have near-duplicates in the second."""
    failed: dict[str, str]
    """Tasks that cannot be traced, with the reason."""

    def text(self) -> str:
        """Return the report as readable text."""
        width = max((len(one.task) for one in self.overlaps), default=0)
        lines = [f"{one.task:{width}}  {', '.join(one.same)}{_shown(one)}" for one in self.overlaps]
        lines += [f"cannot be traced: {name}: {reason}" for name, reason in self.failed.items()]
        lines.append(
            f"{len(self.overlaps)} of {self.tasks} tasks of {self.suite} have the operator graph or behaviour "
            f"of one of {self.others} tasks of {self.other}"
        )
        return "\n".join(lines)


def _shown(one: Overlap) -> str:
    return "  (by behaviour)" if one.by == "behaviour" else ""


def find_overlaps(suite: tuple[str, Sequence[TaskGraph]], other: tuple[str, Sequence[TaskGraph]]) -> OverlapReport:
    """Compare two suites.

    Args:
        suite: Name and graphs of the first suite. A task in both suites (by id) is no near-duplicate of itself. The id
            of a file (`file/NAME`) names a task only within its suite.
        other: Name and graphs of the second suite.
    """
    by_graph: dict[str, list[str]] = {}
    for task in other[1]:
        if task.fingerprint is not None:
            by_graph.setdefault(task.fingerprint, []).append(task.id)
    behaviours = Behaviours([(task.id, task.behaviour) for task in other[1]])
    overlaps: list[Overlap] = []
    for task in suite[1]:
        itself = None if task.id.startswith("file/") and suite[0] != other[0] else task.id
        same = [name for name in by_graph.get(task.fingerprint or "", []) if name != itself]
        alike = [name for name in behaviours.find(task.behaviour) if name != itself]
        if same or alike:
            by = "graph" if same else "behaviour"
            overlaps.append(Overlap(task=task.id, same=tuple(same or alike), operators=task.operators, by=by))
    failed = {task.id: task.error for task in (*suite[1], *other[1]) if task.error is not None}
    return OverlapReport(
        suite=suite[0],
        other=other[0],
        tasks=sum(task.fingerprint is not None for task in suite[1]),
        others=sum(map(len, by_graph.values())),
        overlaps=tuple(overlaps),
        failed=failed,
    )
