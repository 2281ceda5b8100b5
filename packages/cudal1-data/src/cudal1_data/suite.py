"""A suite: an ordered, immutable collection of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import overload

from cudal1_data.errors import BrokenTaskError, UnknownTaskError
from cudal1_data.sizes import ends_in, unsized
from cudal1_data.suggest import nearest
from cudal1_data.task import Split, Task

Programs = Mapping[str, Mapping[str, str]]
"""Published programs by task id and column name: untrusted text that this package never runs."""

Scores = Mapping[str, Mapping[str, float]]
"""Published figures by task id and column name (`score_default`: speedup over the unchanged reference)."""


@dataclass(frozen=True)
class Broken:
    """A broken task that its suite leaves out."""

    path: Path
    """The file, or the table that holds the row."""
    error: BrokenTaskError
    """The fault, as a sentence."""
    task_id: str | None = None
    """Task id, if known."""

    def __iter__(self) -> Iterator[Path | BrokenTaskError]:
        """Unpack as `path, error`."""
        return iter((self.path, self.error))


class Suite(Sequence[Task]):
    """Tasks in order, by position or by id.

    ```
    >>> from cudal1_data import load_suite
    >>> suite = load_suite("starter")
    >>> suite["starter/diag_matmul"].level
    1
    >>> suite["diag_matmul"] in suite.train
    True

    ```
    """

    def __init__(
        self,
        name: str,
        tasks: Iterable[Task],
        *,
        broken: Iterable[Broken] = (),
        programs: Programs | None = None,
        scores: Scores | None = None,
    ) -> None:
        """Collect tasks under a name.

        Args:
            name: The suite's name or specification.
            tasks: Its tasks, in order. A second task with the same id goes to `broken`.
            broken: Unusable files and rows.
            programs: Published programs by task id and column.
            scores: Published figures by task id and column.
        """
        self.name = name
        known: dict[str, Task] = {}
        faults = list(broken)
        for task in tasks:
            if task.id in known:
                error = BrokenTaskError(f"{name}: the task id {task.id} occurs twice; the first task counts")
                faults.append(Broken(Path(name), error, task.id))
            else:
                known[task.id] = task
        self._by_id = known
        self._tasks = tuple(known.values())
        self.broken: tuple[Broken, ...] = tuple(faults)
        self.programs: Programs = MappingProxyType(dict(programs or {}))
        self.scores: Scores = MappingProxyType(dict(scores or {}))

    @overload
    def __getitem__(self, key: int | str) -> Task: ...
    @overload
    def __getitem__(self, key: slice) -> Suite: ...
    def __getitem__(self, key: int | str | slice) -> Task | Suite:
        """Return the task at a position or with an id, or a slice as a suite.

        Raises:
            UnknownTaskError: No task has that id; the message offers the nearest.
            IndexError: No task has that position.
        """
        if isinstance(key, str):
            return self._by_id[self.find(key)]
        if isinstance(key, slice):
            return self._part(self._tasks[key])
        return self._tasks[key]

    def __len__(self) -> int:
        """Count the tasks."""
        return len(self._tasks)

    def __reduce__(self) -> tuple[Callable[..., Suite], tuple[object, ...]]:
        """Support copy and pickle: a vector environment sends its suite to other processes."""
        return _remade, (self.name, self._tasks, self.broken, dict(self.programs), dict(self.scores))

    def __repr__(self) -> str:
        """Show name and size."""
        left_out = f", {len(self.broken)} broken" if self.broken else ""
        return f"Suite({self.name!r}, {len(self)} tasks{left_out})"

    @property
    def ids(self) -> tuple[str, ...]:
        """Task ids in order."""
        return tuple(self._by_id)

    @property
    def train(self) -> Suite:
        """Tasks for training."""
        return self._split("train")

    @property
    def validation(self) -> Suite:
        """Tasks for decisions about training."""
        return self._split("validation")

    @property
    def test(self) -> Suite:
        """Held-out tasks."""
        return self._split("test")

    def find(self, key: str) -> str:
        """Return the full id of a task named by its id or by the end of it (`diag_matmul`, `level1/12`).

        Raises:
            UnknownTaskError: No task, or more than one, has that name; the message offers the nearest.
        """
        found = self.matches(key)
        if len(found) == 1:
            return found[0]
        near = found or nearest(key, self._by_id)
        reason = "several tasks of {suite} are named" if found else "no task of {suite} is named"
        raise UnknownTaskError(
            f"{reason.format(suite=self.name)} {key!r}; "
            + (f"did you mean {', '.join(near)}?" if near else f"`cudal1-data list {self.name}` lists them")
        )

    def matches(self, key: str) -> list[str]:
        """Return the ids that `key` names: `key` itself, else the ids that end in it, with or without their size.

        The size may be omitted, because a scaled suite has each task at one size: `level1/12` names
        `kernelbench/level1/12@M=1024`, unless an id ends in exactly `level1/12`.
        """
        if key in self._by_id:
            return [key]
        ends = [task_id for task_id in self._by_id if ends_in(task_id, key)]
        return ends or [one for one in self._by_id if "@" in one and ends_in(unsized(one), key)]

    def where(self, keep: Callable[[Task], bool]) -> Suite:
        """Return the tasks for which `keep` holds, as a suite of the same name."""
        return self._part(task for task in self._tasks if keep(task))

    def _split(self, split: Split) -> Suite:
        return self.where(lambda task: task.split == split)

    def _part(self, tasks: Iterable[Task]) -> Suite:
        kept = tuple(tasks)
        programs = {task.id: self.programs[task.id] for task in kept if task.id in self.programs}
        scores = {task.id: self.scores[task.id] for task in kept if task.id in self.scores}
        return Suite(self.name, kept, broken=self.broken, programs=programs, scores=scores)


def _remade(
    name: str, tasks: tuple[Task, ...], broken: tuple[Broken, ...], programs: Programs, scores: Scores
) -> Suite:
    return Suite(name, tasks, broken=broken, programs=programs, scores=scores)
