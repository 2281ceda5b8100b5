"""The one protocol between whoever wants verdicts and whoever makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cudal1_data import Task

from cudal1_env.records import Evaluation, Precision


class Evaluator(Protocol):
    """Judges candidates. The local judge is one; a cluster of judges is another."""

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
