"""Stage 2: self-training on sampled answers that were judged correct; speed is ignored.

REINFORCE with a reward of 1 or 0 and no baseline (paper, section on self-training), so failures are not learnt from.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cudal1_env import extract_source
from pydantic import TypeAdapter

from cudal1_agent.data.canonical import is_copied
from cudal1_agent.data.examples import Pair
from cudal1_agent.data.prompts import parse_answer
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.files import write_aside
from cudal1_agent.run.session import Session
from cudal1_agent.stages.sft import pairs_of, supervise

KEPT = "kept.json"
"""The correct answers of an iteration, in its folder."""

_pairs: TypeAdapter[list[Pair]] = TypeAdapter(list[Pair])


def collect(session: Session, _: Checkpoint | None, *, model: str | Path, folder: Path, iteration: int) -> None:
    """Sample answers for every training task, judge them and keep the correct ones in `folder`.

    Args:
        session: The run.
        _: Unused: an interrupted collection draws the same answers again and finds their verdicts in the archive.
        model: The model that answers.
        folder: Folder of the iteration.
        iteration: Its number, from 0.
    """
    settings = session.settings.self_train
    tasks = session.tasks.train
    prompts = session.prompts(model)
    texts = [prompts(task) for task in tasks]
    with session.progress.bar(f"self_train {iteration}: answers") as tick:
        policy = session.policy(model, tick)
        with session.meter.part("generating"):
            answers = policy.sample(
                texts,
                settings.samples,
                temperature=settings.temperature,
                max_new_tokens=session.settings.evaluation.max_new_tokens,
                seed=session.settings.seed + iteration,
            )
        policy.close()
    pairs = [
        Pair(task.id, text, answer) for task, text, given in zip(tasks, texts, answers, strict=True) for answer in given
    ]
    jobs = [(task, answer) for task, given in zip(tasks, answers, strict=True) for answer in given]
    with session.progress.bar(f"self_train {iteration}: judging") as tick:
        evaluations = session.verdicts.judge(jobs, precision=settings.precision, progress=tick)
    correct = [
        pair
        for pair, evaluation in zip(pairs, evaluations, strict=True)
        if evaluation is not None and evaluation.correct
    ]
    kept = chosen(correct, settings.max_per_task, {task.id: task.source for task in tasks})
    write_aside(folder / KEPT, _pairs.dump_json(kept).decode())
    counts: dict[str, Any] = {
        "answers": len(pairs),
        "correct": len(correct),
        "kept": len(kept),
        "tasks": len(tasks),
        "tasks_solved": len({pair.task for pair in correct}),
    }
    session.folder.metrics.append({"event": "self_train", "stage": "self_train", "iteration": iteration, **counts})
    session.progress.line(
        f"self_train {iteration}: {len(correct)} of {len(pairs)} answers are correct; {len(kept)} are learnt"
    )


def chosen(correct: Sequence[Pair], most: int, references: Mapping[str, str]) -> list[Pair]:
    """Return the correct answers that are learnt: complete, not copies of a reference, each program of a task once.

    A copy is always correct, so a model that learns its copies ends up writing nothing else. The limit `most` keeps
    tasks that are solved often from dominating the training.

    Args:
        correct: Pairs of all tasks.
        most: Maximum number of answers of a task.
        references: Reference of each task.
    """
    seen: set[tuple[str, str]] = set()
    counts: Counter[str] = Counter()
    kept: list[Pair] = []
    for pair in correct:
        source = extract_source(pair.answer) or ""
        key = (pair.task, normalized(source))
        if is_copied(source, references[pair.task]):
            continue
        if parse_answer(pair.answer).complete and key not in seen and counts[pair.task] < most:
            seen.add(key)
            counts[pair.task] += 1
            kept.append(pair)
    return kept


def normalized(source: str) -> str:
    """Return a program without comments, in one layout; unchanged if it is not Python.

    >>> normalized("x = (1)  # one") == normalized("x=1")
    True
    """
    try:
        return ast.unparse(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return source


def learn(session: Session, checkpoint: Checkpoint | None, *, model: str | Path, folder: Path, iteration: int) -> None:
    """Train on what `collect` kept, and save the model to `folder / "model"`.

    Args:
        session: The run.
        checkpoint: Where to resume an interrupted stage.
        model: The model that answered.
        folder: Folder of the iteration.
        iteration: Its number, from 0.
    """
    table = session.settings.self_train.trl
    kept = _pairs.validate_json((folder / KEPT).read_bytes())
    if not kept:
        session.progress.line("self_train: no answer was correct; the model stays as it is")
        copy_model(model, folder / "model")
        return
    pairs = repeated(kept, pairs_of(table), seed=session.settings.seed + iteration)
    supervise(session, "self_train", model, pairs, table, folder, checkpoint)


def repeated(pairs: Sequence[Pair], count: int, *, seed: int) -> list[Pair]:
    """Return `count` pairs in repeated passes over all of them, each in a new order."""
    rng = np.random.default_rng([seed, 4])
    result: list[Pair] = []
    while len(result) < count:
        result.extend(pairs[int(index)] for index in rng.permutation(len(pairs)))
    return result[:count]


def copy_model(model: str | Path, folder: Path) -> None:
    """Save an unchanged model to another folder."""
    from transformers import AutoModelForCausalLM

    from cudal1_agent.policies.transformers import load_tokenizer

    AutoModelForCausalLM.from_pretrained(model).save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)
