"""Verdicts on answers: from the archive if this run has judged the program before, otherwise measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from cudal1_data import Task
from cudal1_data.hashes import digest
from cudal1_env import Archive, Evaluation, Evaluator, evaluate_answers, extract_source
from cudal1_env.records import PROTOCOL_VERSION, Precision

CHUNK = max(4, min(len(os.sched_getaffinity(0)), 12))
"""Programs judged between two writes to the archive: a killed run measures at most these again. A judge prepares
as many at a time as it has cores, and tasks of at most twelve."""

Key = tuple[str, str]
"""Task id and SHA-256 of the program."""


class Verdicts:
    """Judges answers through an evaluator and an archive.

    A small policy repeats itself, and a program does not get faster by being measured again: with `reuse`, the
    same program for the same task at the same size is measured once in a run. That keeps one measurement's luck for
    as long as the run lasts; without it every answer is measured by itself.
    """

    def __init__(self, evaluator: Evaluator, archive: Archive, *, reuse: bool = True) -> None:
        """Judge through `evaluator` and keep everything in `archive`."""
        self.archive = archive
        self._evaluator = evaluator
        self._reuse = reuse
        self.measured = 0
        """Answers that were given to the evaluator so far."""

    def judge(
        self,
        jobs: Sequence[tuple[Task, str]],
        *,
        precision: Precision = "training",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Evaluation]:
        """Return the verdict on each answer, in order.

        Args:
            jobs: Task and answer.
            precision: How narrow intervals must be; `correct` times nothing.
            progress: Told how many of how many answers to be measured are done.

        Raises:
            TaskError: A reference cannot be judged against.
            MachineError: The machine broke; finished evaluations are in the archive.
        """
        keys = [(task.id, source_key(answer)) for task, answer in jobs]
        found: dict[int, Evaluation] = {}
        first: dict[Key, int] = {}
        fresh: list[int] = []
        for index, ((task, _), key) in enumerate(zip(jobs, keys, strict=True)):
            known = self._known(task, key, precision) if self._reuse else None
            if known is not None:
                found[index] = known
            elif not (self._reuse and key in first):
                first[key] = index
                fresh.append(index)
        # A task's programs together: they share its oracle in the judge.
        fresh.sort(key=lambda index: jobs[index][0].id)
        for start in range(0, len(fresh), CHUNK):
            part = fresh[start : start + CHUNK]
            for index, evaluation in zip(
                part,
                evaluate_answers(
                    self._evaluator, [jobs[index] for index in part], precision=precision, archive=self.archive
                ),
                strict=True,
            ):
                found[index] = evaluation
            self.measured += len(part)
            if progress is not None:
                progress(start + len(part), len(fresh))
        return [found.get(index) or found[first[key]] for index, key in enumerate(keys)]

    def _known(self, task: Task, key: Key, precision: Precision) -> Evaluation | None:
        known = self.archive.find(*key)
        if known is None or known.task_source != task.source or known.protocol != PROTOCOL_VERSION:
            return None
        if known.correct and known.precision == "correct" != precision:
            return None  # it is correct, but was not timed
        return known


def source_key(answer: str) -> str:
    """Return the SHA-256 of the program in an answer, as its evaluation has it."""
    return digest(extract_source(answer) or "")
