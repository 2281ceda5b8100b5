"""The protocols between whoever wants verdicts and whoever makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from cudal1_data import Task

from cudal1_env.errors import TaskError
from cudal1_env.records import Evaluation, Precision


class Evaluator(Protocol):
    """Judges candidates. The local judge is one; `cudal1_env.remote.RemoteEvaluator` asks a service."""

    def evaluate(self, task: Task, source: str, *, precision: Precision = "training") -> Evaluation:
        """Judge one candidate.

        Raises:
            TaskError: The reference cannot be judged against.
            MachineError: The machine broke; the candidate is not to blame.
        """
        ...

    def evaluate_many(self, jobs: Sequence[tuple[Task, str]], *, precision: Precision = "training") -> list[Evaluation]:
        """Judge many candidates; same order as `jobs`.

        Builds run side by side, measurements one at a time, verdicts at `correct` precision side by side.
        """
        ...

    def close(self) -> None:
        """Stop every process and remove every file that this evaluator made."""
        ...


class EachEvaluator(Protocol):
    """Judges many candidates and tells each verdict as soon as it is known, as campaigns and the service need it."""

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge candidates; a task that cannot be judged concerns its own candidates only.

        Args:
            jobs: Task and program.
            done: Told each job's position and its outcome.
            precision: How narrow intervals must be.

        Raises:
            MachineError: The machine broke; what `done` was told stands.
        """
        ...


class ByEach(ABC):
    """An `Evaluator` that is made of its `evaluate_each`."""

    def evaluate(self, task: Task, source: str, *, precision: Precision = "training") -> Evaluation:
        """Judge one candidate; see `Evaluator`."""
        return self.evaluate_many([(task, source)], precision=precision)[0]

    def evaluate_many(self, jobs: Sequence[tuple[Task, str]], *, precision: Precision = "training") -> list[Evaluation]:
        """Judge many candidates; see `Evaluator`."""
        found: dict[int, Evaluation] = {}

        def done(index: int, outcome: Evaluation | TaskError) -> None:
            if isinstance(outcome, TaskError):
                raise outcome
            found[index] = outcome

        self.evaluate_each(jobs, done, precision=precision)
        return [found[index] for index in range(len(jobs))]

    @abstractmethod
    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge candidates and tell each outcome; see `EachEvaluator`."""
