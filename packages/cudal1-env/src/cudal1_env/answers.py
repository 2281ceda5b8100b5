"""Evaluation of policies' answers: extract the programs, judge them, archive the evaluations.

The environments and the agent's stages use this module, so that they treat answers in the same way.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args

from cudal1_data import Task
from cudal1_data.hashes import digest

from cudal1_env.archive import Archive
from cudal1_env.errors import check_choice
from cudal1_env.evaluator import Evaluator
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
    check_choice("precision", precision, get_args(Precision))
    results: list[Evaluation | None] = []
    programs: list[tuple[Task, str]] = []
    for task, answer in jobs:
        if not isinstance(answer, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # token ids would be NO_CODE
            raise TypeError(f"expected an answer as text, got {type(answer).__name__}; decode it first")
        source = None if len(answer) > max_source_chars else extract_source(answer)
        if source is None:
            results.append(_no_code(task, answer, precision, max_source_chars))
        else:
            results.append(None)
            programs.append((task, source))
    judged = iter(evaluator.evaluate_many(programs, precision=precision) if programs else [])
    evaluations = [result if result is not None else next(judged) for result in results]
    if archive is not None:
        archive.add_all(evaluations)
    return evaluations


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
