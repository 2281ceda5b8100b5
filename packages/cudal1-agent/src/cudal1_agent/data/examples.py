"""Training examples of stage 1: (prompt, answer) pairs from correct programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np
from cudal1_data import Device, Task, usable_variants
from cudal1_env.exemplars import Exemplar

from cudal1_agent.data.prompts import build_answer
from cudal1_agent.errors import CorpusError

PromptOf = Callable[[Task, Sequence[Exemplar]], str]
"""Makes the prompt of a task from the exemplars to show."""

Fits = Callable[[str, str], bool]
"""Whether a prompt and its answer are short enough."""


@dataclass(frozen=True)
class Program:
    """A correct program for a task."""

    task: Task
    """The task at the size that the program is for."""
    source: str
    """What is to be written."""
    techniques: tuple[str, ...]
    """What makes it fast."""
    speedup: float | None = None
    """As it was measured, best estimate; None where it was not."""


@dataclass(frozen=True)
class Pair:
    """One training example."""

    task: str
    """Task id."""
    prompt: str
    """What is given."""
    answer: str
    """The answer that the model learns."""


def training_pairs(
    tasks: Sequence[Task],
    prompt_of: PromptOf,
    *,
    device: Device,
    have: Set[str],
    contexts: Sequence[int],
    count: int,
    seed: int,
) -> list[Pair]:
    """Return `count` pairs from the usable variants of tasks, laid out as `pairs_from` says.

    Args:
        tasks: Training tasks at the size to train on.
        prompt_of: Makes the prompt.
        device: Where the variants are to run.
        have: What the machine has (`compiler`, ...), see `usable_variants`.
        contexts: Numbers of exemplars to draw from.
        count: How many pairs.
        seed: Seed of order, contexts and scores.

    Raises:
        CorpusError: No task has a usable variant.
    """
    programs = [
        Program(task, variant.source, variant.techniques)
        for task in tasks
        for variant in usable_variants(task, device, have)
    ]
    if not programs:
        raise CorpusError(
            f"none of the {len(tasks)} training tasks has a variant that runs on {device}; "
            "leave stage sft out (--stages self_train,contrast) or use a suite with variants, such as starter"
        )
    return pairs_from(programs, prompt_of, contexts=contexts, count=count, seed=seed)


def pairs_from(
    programs: Sequence[Program],
    prompt_of: PromptOf,
    *,
    contexts: Sequence[int],
    count: int,
    seed: int,
    fits: Fits = lambda prompt, answer: True,
) -> list[Pair]:
    """Return `count` pairs: pass after pass over every program, each pass in a new order.

    Each pair draws how many exemplars its prompt shows from `contexts`, then which: other programs for the task or
    the target itself, so that copying is learnt too. Where programs of the task were measured, these are shown with
    their speedups. Else scores are drawn at random (log-uniform from 0.5 to 4). Stage 1 ignores speed, its targets do
    not depend on scores, and what it learns from them is the form of stage 3.

    Args:
        programs: Programs that the model learns; at least one.
        prompt_of: Makes the prompt.
        contexts: Numbers of exemplars to draw from.
        count: How many pairs.
        seed: Seed of order, contexts and scores.
        fits: Exemplars are left out, the slowest first, until this holds.
    """
    siblings: dict[tuple[str, str], list[Program]] = {}
    for program in programs:
        siblings.setdefault((program.task.id, program.task.source), []).append(program)
    rng = np.random.default_rng([seed, 1])
    pairs: list[Pair] = []
    while len(pairs) < count:
        for index in rng.permutation(len(programs)):
            program = programs[int(index)]
            task = program.task
            shown = _exemplars(siblings[task.id, task.source], int(rng.choice(np.asarray(contexts))), rng)
            pair = example(program, shown, prompt_of)
            while shown and not fits(pair.prompt, pair.answer):
                shown.remove(min(shown, key=lambda exemplar: exemplar.speedup))
                pair = example(program, shown, prompt_of)
            pairs.append(pair)
    return pairs[:count]


def example(program: Program, shown: Sequence[Exemplar], prompt_of: PromptOf) -> Pair:
    """Return the training example of a program whose prompt shows some exemplars."""
    design = f"Use {', '.join(program.techniques) or 'plain PyTorch'}."
    answer = build_answer(describe(shown), design, program.source)
    return Pair(program.task.id, prompt_of(program.task, shown), answer)


def by_length(pairs: Sequence[Pair], *, batch: int, seed: int, batches: int = 16) -> list[Pair]:
    """Return the pairs in another order: within each run of some batches, pairs of like length share a batch.

    Short sequences then carry little padding, and the order of the batches stays random.

    Args:
        pairs: In the order in which they would be trained on.
        batch: Pairs in a batch.
        seed: Seed of the order of the batches.
        batches: How many batches are sorted together.
    """
    rng = np.random.default_rng([seed, 3])
    ordered: list[Pair] = []
    for start in range(0, len(pairs), batch * batches):
        part = sorted(pairs[start : start + batch * batches], key=lambda pair: len(pair.prompt) + len(pair.answer))
        for index in rng.permutation(-(-len(part) // batch)):
            ordered.extend(part[int(index) * batch : (int(index) + 1) * batch])
    return ordered


def describe(exemplars: Sequence[Exemplar]) -> str:
    """Return the analysis that a training answer gives: which exemplar scores best.

    >>> describe([Exemplar("", 1.0), Exemplar("", 2.5)])
    'code2 is fastest (2.50).'
    """
    if not exemplars:
        return "There is nothing to compare."
    best = max(range(len(exemplars)), key=lambda index: exemplars[index].speedup)
    return f"code{best + 1} is fastest ({exemplars[best].speedup:.2f})."


def _exemplars(programs: Sequence[Program], count: int, rng: np.random.Generator) -> list[Exemplar]:
    measured = [Exemplar(one.source, round(one.speedup, 2)) for one in programs if one.speedup is not None]
    if measured:
        return [measured[int(index)] for index in rng.permutation(len(measured))[:count]]
    chosen = rng.permutation(len(programs))[:count]
    scores = np.exp(rng.uniform(np.log(0.5), np.log(4.0), size=len(chosen)))
    return [Exemplar(programs[int(i)].source, round(float(s), 2)) for i, s in zip(chosen, scores, strict=True)]
