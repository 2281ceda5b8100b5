"""The protocols between the users of verdicts (environments, campaigns, the service) and the judges that give them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from cudal1_data import Task

from cudal1_env.errors import TaskError
from cudal1_env.gate import AuditReport
from cudal1_env.records import Evaluation, Precision


class Evaluator(Protocol):
    """A judge of candidates: the local judge, or `cudal1_env.remote.RemoteEvaluator`, the client of a service."""

    def evaluate(self, task: Task, source: str, *, precision: Precision = "training") -> Evaluation:
        """Judge one candidate.

        Raises:
            TaskError: The reference cannot be judged against.
            MachineError: The machine broke; the candidate is not to blame.
        """
        ...

    def evaluate_many(self, jobs: Sequence[tuple[Task, str]], *, precision: Precision = "training") -> list[Evaluation]:
        """Judge many candidates; return the verdicts in the order of `jobs`.

        Builds run in parallel and measurements one at a time; verdicts at `correct` precision run in parallel.
        """
        ...

    def learn(self, audit: AuditReport) -> None:
        """Load an audit: tasks that it marks pay nothing above 1, and their records say so."""
        ...

    def close(self) -> None:
        """Stop every process that this evaluator started and remove every file that it made."""
        ...


class EachEvaluator(Protocol):
    """A judge of many candidates that reports each verdict as soon as it is known, for campaigns and the service."""

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge candidates; a task that cannot be judged affects only its own candidates.

        Args:
            jobs: Pairs of task and program.
            done: Called with each job's position and its outcome.
            precision: How narrow intervals must be.

        Raises:
            MachineError: The machine broke; outcomes already passed to `done` remain valid.
        """
        ...


class ByEach(ABC):
    """Base class of an `Evaluator` that implements only `evaluate_each`."""

    _doubts: Mapping[str, Sequence[str]] = MappingProxyType({})
    """What audits doubt of tasks, by the hash of the reference; see `AuditReport.doubts`."""

    def learn(self, audit: AuditReport) -> None:
        """Load an audit; see `Evaluator`."""
        self._doubts = {**self._doubts, **audit.doubts()}

    def _limited_by_audits(self, record: Evaluation) -> Evaluation:
        """Return a record from elsewhere with the limit of this evaluator's audits."""
        return record.doubted(self._doubts.get(record.task_sha256, ()))

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
        """Judge candidates and report each outcome; see `EachEvaluator`."""
