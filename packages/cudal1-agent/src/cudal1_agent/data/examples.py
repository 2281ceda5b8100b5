"""Training examples of stage 1: (prompt, answer) pairs from correct programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from cudal1_data import Device, Task, usable_variants
from cudal1_data.hashes import skeleton_hash
from cudal1_env import extract_source
from cudal1_env.exemplars import Exemplar

from cudal1_agent.data.analysis import analysis
from cudal1_agent.data.prompts import build_answer
from cudal1_agent.errors import CorpusError

PromptOf = Callable[[Task, Sequence[Exemplar]], str]
"""Makes the prompt of a task from the exemplars to show."""

Fits = Callable[[str, str], bool]
"""Returns whether a prompt and its answer are short enough."""


@dataclass(frozen=True)
class Program:
    """A correct program for a task."""

    task: Task
    """The task at the size that the program is for."""
    source: str
    """The program's text."""
    techniques: tuple[str, ...]
    """Techniques that make it fast."""
    speedup: float | None = None
    """Measured speedup, point estimate; None if it was not measured."""
    backend: str = ""
    """Backend; empty if unknown."""


@dataclass(frozen=True)
class Pair:
    """One training example."""

    task: str
    """Task id."""
    prompt: str
    """The prompt."""
    answer: str
    """The answer that the model learns."""

    @cached_property
    def skeleton(self) -> str:
        """Hash of the skeleton of the program in the answer."""
        return _skeleton(extract_source(self.answer) or "")


_skeleton = lru_cache(4096)(skeleton_hash)


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
    """Return `count` pairs from the usable variants of tasks, in the order of `pairs_from`.

    Args:
        tasks: Training tasks at the size to train on.
        prompt_of: Makes the prompt.
        device: Where the variants run.
        have: What the machine has (`compiler`, ...), see `usable_variants`.
        contexts: Numbers of exemplars to draw from.
        count: Number of pairs.
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
    """Return `count` pairs in repeated passes over all programs, each pass in a new order.

    Each pair draws its number of exemplars from `contexts`, then the exemplars: programs for the task that are slower
    than the target (see `slower`), so an answer is always faster than all that its prompt shows. A prompt shows fewer
    if there are not enough of them.

    Args:
        programs: Programs that the model learns; at least one.
        prompt_of: Makes the prompt.
        contexts: Numbers of exemplars to draw from.
        count: Number of pairs.
        seed: Seed of order, contexts and scores.
        fits: Exemplars are dropped, the slowest first, until this holds.
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
            others = siblings[task.id, task.source]
            shown = slower(program, others, int(rng.choice(np.asarray(contexts))), rng)
            pair = example(program, shown, prompt_of, others)
            while shown and not fits(pair.prompt, pair.answer):
                shown.remove(min(shown, key=lambda exemplar: exemplar.speedup))
                pair = example(program, shown, prompt_of, others)
            pairs.append(pair)
    return pairs[:count]


def example(program: Program, shown: Sequence[Exemplar], prompt_of: PromptOf, siblings: Sequence[Program] = ()) -> Pair:
    """Return the training example of a program; its prompt shows exemplars, which are among its siblings."""
    design = f"Use {', '.join(program.techniques) or 'plain PyTorch'}."
    techniques = {one.source: one.techniques for one in siblings}
    found = analysis(shown, [techniques[one.source] for one in shown], program.techniques)
    answer = build_answer(found, design, program.source)
    return Pair(program.task.id, prompt_of(program.task, shown), answer)


def by_length(
    pairs: Sequence[Pair], length: Callable[[Pair], int], *, batch: int, seed: int, batches: int = 16
) -> list[Pair]:
    """Return the pairs reordered: within each run of `batches` batches, pairs of similar length share a batch.

    Short sequences then have little padding, and the order of the batches stays random.

    Args:
        pairs: Pairs in the order of training.
        length: Length of a pair in tokens.
        batch: Pairs in a batch.
        seed: Seed of the order of the batches.
        batches: How many batches are sorted together.
    """
    rng = np.random.default_rng([seed, 3])
    ordered: list[Pair] = []
    for start in range(0, len(pairs), batch * batches):
        part = sorted(pairs[start : start + batch * batches], key=length)
        for index in rng.permutation(-(-len(part) // batch)):
            ordered.extend(part[int(index) * batch : (int(index) + 1) * batch])
    return ordered


def slower(target: Program, programs: Sequence[Program], count: int, rng: np.random.Generator) -> list[Exemplar]:
    """Draw exemplars that are slower than a target.

    A measured target gets measured programs with a lower speedup, and their speedups. An unmeasured target gets
    programs with no more techniques, in place of slower ones. Their scores are random (log-uniform from 0.5 to 4),
    higher with more techniques: such examples teach the form of stage 3, not figures.

    Args:
        target: Program of the answer.
        programs: All programs of its task.
        count: Maximum number of exemplars.
        rng: The only source of randomness.
    """
    if not count:
        return []
    if target.speedup is not None:
        known = [one for one in programs if one.speedup is not None and one.speedup < target.speedup]
        chosen = [known[int(index)] for index in rng.permutation(len(known))[:count]]
        return [Exemplar(one.source, round(one.speedup or 0.0, 2)) for one in chosen]
    if any(one.speedup is not None for one in programs):
        return []  # whether the measured programs are slower is unknown
    others = [one for one in programs if one.source != target.source and len(one.techniques) <= len(target.techniques)]
    chosen = [others[int(index)] for index in rng.permutation(len(others))[:count]]
    scores = sorted(np.exp(rng.uniform(np.log(0.5), np.log(4.0), size=len(chosen))).tolist())
    ranked = sorted(range(len(chosen)), key=lambda index: len(chosen[index].techniques))
    score_of = dict(zip(ranked, scores, strict=True))
    return [Exemplar(one.source, round(score_of[index], 2)) for index, one in enumerate(chosen)]
