"""Evaluation of policies' answers: extract the programs, judge them, archive the evaluations.

The environments and the agent's stages use this module, so that they treat answers in the same way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import get_args

from cudal1_data import Task
from cudal1_data.hashes import digest

from cudal1_env.archive import Archive
from cudal1_env.errors import TaskError, check_choice
from cudal1_env.evaluator import EachEvaluator, Evaluator
from cudal1_env.extract import extract_source
from cudal1_env.records import Evaluation, Precision, Status

MAX_SOURCE_CHARS = 65_536
"""Maximum length of an answer in characters: over twice the longest program that CUDA-L1 released (26,818)."""


def evaluate_answers(
    evaluator: Evaluator,
    jobs: Sequence[tuple[Task, str]],
    *,
    precision: Precision = "training",
    max_source_chars: int = MAX_SOURCE_CHARS,
    archive: Archive | None = None,
) -> list[Evaluation]:
    """Judge answers: all programs through one `evaluate_many`.

    Args:
        evaluator: The judge.
        jobs: Task and answer, a whole answer or bare source; see `extract_source`.
        precision: How narrow intervals must be; `correct` times nothing.
        max_source_chars: A longer answer is not read and gets `NO_CODE`.
        archive: Where to append the evaluations, in the order of `jobs`; None keeps none.

    Returns:
        An evaluation for each job, in order. An answer without a program gets `NO_CODE` and starts no worker.

    Raises:
        TypeError: An answer is not text.
        SettingsError: The precision is unknown.
        TaskError: A reference cannot be judged against.
        MachineError: The machine broke; no evaluation of this call was kept.
    """
    results, programs = _sorted(jobs, precision, max_source_chars)
    judged = evaluator.evaluate_many([job for _, job in programs], precision=precision) if programs else []
    for (place, _), evaluation in zip(programs, judged, strict=True):
        results[place] = evaluation
    evaluations = [results[place] for place in range(len(jobs))]
    if archive is not None:
        archive.add_all(evaluations)
    return evaluations


def evaluate_or_refuse(
    evaluator: Evaluator,
    jobs: Sequence[tuple[Task, str]],
    *,
    precision: Precision = "training",
    max_source_chars: int = MAX_SOURCE_CHARS,
    archive: Archive | None = None,
) -> list[Evaluation | TaskError]:
    """Judge answers like `evaluate_answers`, but return the error of a task that cannot be judged.

    Such an error takes the other verdicts of a call with it, so the answers are then judged again one by one.
    """

    def judged(some: Sequence[tuple[Task, str]]) -> list[Evaluation | TaskError]:
        try:
            return list(evaluate_answers(evaluator, some, precision=precision, max_source_chars=max_source_chars))
        except TaskError as error:
            return [error] if len(some) == 1 else [outcome for job in some for outcome in judged([job])]

    outcomes = judged(jobs)
    if archive is not None:
        archive.add_all([one for one in outcomes if isinstance(one, Evaluation)])
    return outcomes


def evaluate_each_answer(
    evaluator: EachEvaluator,
    jobs: Sequence[tuple[Task, str]],
    done: Callable[[int, Evaluation | TaskError], None],
    *,
    precision: Precision = "training",
    max_source_chars: int = MAX_SOURCE_CHARS,
    archive: Archive,
) -> None:
    """Judge answers like `evaluate_answers`, but archive and report each outcome when it is known.

    Args:
        evaluator: The judge.
        jobs: Task and answer.
        done: Called with each job's position and its outcome: the evaluation, or why its task cannot be judged.
        precision: How narrow intervals must be; `correct` times nothing.
        max_source_chars: A longer answer is not read and gets `NO_CODE`.
        archive: Where to append the evaluations.

    Raises:
        TypeError: An answer is not text.
        SettingsError: The precision is unknown.
        MachineError: The machine broke; evaluations already passed to `done` were kept.
    """
    results, programs = _sorted(jobs, precision, max_source_chars)

    def told(place: int, outcome: Evaluation | TaskError) -> None:
        if isinstance(outcome, Evaluation):
            archive.add(outcome)
        done(place, outcome)

    for place, evaluation in results.items():
        told(place, evaluation)
    if programs:
        evaluator.evaluate_each(
            [job for _, job in programs],
            lambda index, outcome: told(programs[index][0], outcome),
            precision=precision,
        )


def program_of(answer: str, max_source_chars: int = MAX_SOURCE_CHARS) -> str | None:
    """Return the program that is judged for an answer; None if it holds none, or is longer than `max_source_chars`."""
    return None if len(answer) > max_source_chars else extract_source(answer)


def _sorted(
    jobs: Sequence[tuple[Task, str]], precision: Precision, max_source_chars: int
) -> tuple[dict[int, Evaluation], list[tuple[int, tuple[Task, str]]]]:
    """Return the records of answers without a program, and the other answers' programs, both with their positions."""
    check_choice("precision", precision, get_args(Precision))
    results: dict[int, Evaluation] = {}
    programs: list[tuple[int, tuple[Task, str]]] = []
    for place, (task, answer) in enumerate(jobs):
        if not isinstance(answer, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # token ids would be NO_CODE
            raise TypeError(f"expected an answer as text, got {type(answer).__name__}; decode it first")
        source = program_of(answer, max_source_chars)
        if source is None:
            results[place] = _no_code(task, answer, precision, max_source_chars)
        else:
            programs.append((place, (task, source)))
    return results, programs


def _no_code(task: Task, answer: str, precision: Precision, max_source_chars: int) -> Evaluation:
    """Return the record of an answer without a program; its source is empty."""
    if len(answer) > max_source_chars:
        message = f"the answer has {len(answer)} characters, and at most {max_source_chars} are read; write less"
    else:
        message = "the answer holds no program; write it in a ```python block or as bare source"
    return Evaluation(
        id=uuid.uuid4().hex,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        task=task.id,
        task_sha256=digest(task.source),
        task_source=task.source,
        source="",
        source_sha256=digest(""),
        status=Status.NO_CODE,
        message=message,
        precision=precision,
    )
