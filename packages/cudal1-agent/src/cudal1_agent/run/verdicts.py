"""Verdicts on answers: from the archive if this run has judged the program before, otherwise measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cudal1_data import Task
from cudal1_data.hashes import digest
from cudal1_env import Archive, Evaluation, TaskError
from cudal1_env.answers import evaluate_each_answer, program_of
from cudal1_env.evaluator import EachEvaluator
from cudal1_env.records import PROTOCOL_VERSION, Precision

from cudal1_agent import gpu_memory
from cudal1_agent.run.meter import Meter

Key = tuple[str, str]
"""Task id and SHA-256 of the program."""


class Verdicts:
    """Verdicts on answers, from an archive or an evaluator.

    A small policy repeats itself, and a program does not get faster by being measured again. With `reuse`, a program
    for a task at one size is measured once per run and machine; the error of that measurement then stays for the whole
    run. Without `reuse`, every answer is measured.

    A task that cannot be judged on this machine is left out from then on, and the others are judged.
    """

    def __init__(
        self,
        evaluator: EachEvaluator,
        archive: Archive,
        *,
        reuse: bool = True,
        floor: int = 0,
        meter: Meter | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Judge through `evaluator` and keep everything in `archive`.

        Args:
            evaluator: The judge.
            archive: Where verdicts are kept.
            reuse: Look verdicts up.
            floor: Position in the archive; verdicts up to it are not looked up, because another machine measured them.
            meter: Counts time and verdicts; None makes one.
            notify: Receives a line on each task that is left out.
        """
        self.archive = archive
        self.meter = meter or Meter()
        self._evaluator = evaluator
        self._reuse = reuse
        self._floor = floor
        self.measured = 0
        """Number of answers given to the evaluator so far."""
        self.refused: dict[str, str] = {}
        """Why a task cannot be judged, by the task's source."""
        self._notify = notify

    def judge(
        self,
        jobs: Sequence[tuple[Task, str]],
        *,
        precision: Precision = "training",
        after: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Evaluation | None]:
        """Return the verdict on each answer, in order; None if its task cannot be judged.

        Args:
            jobs: Task and answer.
            precision: How narrow intervals must be; `correct` does not time programs.
            after: Position in the archive; verdicts up to it are not looked up.
            progress: Receives the number of answers measured and the total to measure.

        Raises:
            TaskError: No task was judged so far, because none can be.
            MachineError: The machine broke; finished evaluations are in the archive.
        """
        with self.meter.part("judging"):
            return self._judged(jobs, precision, max(after, self._floor), progress)

    def _judged(
        self,
        jobs: Sequence[tuple[Task, str]],
        precision: Precision,
        after: int,
        progress: Callable[[int, int], None] | None,
    ) -> list[Evaluation | None]:
        keys = [(task.id, source_key(answer)) for task, answer in jobs]
        found: dict[int, Evaluation] = {}
        first: dict[Key, int] = {}
        fresh: list[int] = []
        for index, ((task, _), key) in enumerate(zip(jobs, keys, strict=True)):
            known = self._known(task, key, precision, after) if self._reuse else None
            if known is not None:
                found[index] = known
            elif task.source not in self.refused and not (self._reuse and key in first):
                first[key] = index
                fresh.append(index)
        # A task's programs together: they share its oracle in the judge.
        fresh.sort(key=lambda index: jobs[index][0].id)
        gpu_memory.release()
        self._measure(jobs, fresh, precision, found, progress)
        if self.refused and not found and not self.measured:
            raise TaskError(next(iter(self.refused.values())))
        return [found.get(index) or found.get(first.get(key, index)) for index, key in enumerate(keys)]

    def _measure(
        self,
        jobs: Sequence[tuple[Task, str]],
        part: Sequence[int],
        precision: Precision,
        found: dict[int, Evaluation],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Judge some of the jobs and put each verdict into `found`; tasks that cannot be judged go into `refused`."""
        told = 0

        def done(place: int, outcome: Evaluation | TaskError) -> None:
            nonlocal told
            told += 1
            task = jobs[part[place]][0]
            if isinstance(outcome, Evaluation):
                found[part[place]] = outcome
                self.measured += 1
                self.meter.count("verdicts", 1)
            elif task.source not in self.refused:
                self.refused[task.source] = str(outcome)
                self._notify(f"{task.id} is left out: {outcome}")
            if progress is not None:
                progress(told, len(part))

        chosen = [jobs[index] for index in part]
        evaluate_each_answer(self._evaluator, chosen, done, precision=precision, archive=self.archive)

    def _known(self, task: Task, key: Key, precision: Precision, after: int) -> Evaluation | None:
        earlier = [
            one
            for one in self.archive.program(*key, after=after)
            if one.task_source == task.source
            and one.protocol == PROTOCOL_VERSION
            # A verdict at precision `correct` does not say how fast the program is.
            and not (one.correct and one.precision == "correct" != precision)
        ]
        return earlier[-1] if earlier else None


def source_key(answer: str) -> str:
    """Return the SHA-256 of the program in an answer, as its evaluation has it."""
    return digest(program_of(answer) or "")
