"""Assessment of a policy: its answers for every group of tasks, judged and summarised in the paper's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from cudal1_data import Task
from cudal1_data.hashes import skeleton_hash
from cudal1_env import Archive, Evaluation
from cudal1_env.exemplars import Exemplar, ExemplarRule, Exemplars, exemplars_by_name, scored
from cudal1_env.records import Precision
from cudal1_env.stats import SpeedupSummary, summarize_speedups

from cudal1_agent.data.canonical import is_copied
from cudal1_agent.data.prompts import parse_answer
from cudal1_agent.evaluation.success import success
from cudal1_agent.policies import Policy
from cudal1_agent.policies.prompting import PromptBuilder
from cudal1_agent.progress import Progress
from cudal1_agent.run.metrics import Record
from cudal1_agent.run.verdicts import Key, Verdicts, source_key
from cudal1_agent.settings import Arm, ContrastSettings, EvaluationSettings, Settings

PromptFor = Callable[[Task], str]


@dataclass(frozen=True)
class Assessed:
    """The judged answers of one task."""

    task: str
    """Task id."""
    evaluations: tuple[Evaluation, ...]
    """The verdict of each answer."""
    form: bool
    """Whether the first answer had all three sections."""
    family: str = ""
    """Category of the task, or its level if it has none."""
    copies: frozenset[str] = frozenset()
    """Hashes of the answers that are copies of their reference."""

    @property
    def best(self) -> Evaluation:
        """The best of the evaluations; see `best_of`."""
        return best_of(self.evaluations)

    @property
    def speedup(self) -> float | None:
        """Its speedup, None if no answer is correct or it was not timed."""
        return self.best.speedup.point if self.best.correct and self.best.speedup is not None else None

    @property
    def counts(self) -> tuple[int, int]:
        """How many answers there are, and how many are correct."""
        return len(self.evaluations), sum(one.correct for one in self.evaluations)

    @property
    def own(self) -> int:
        """How many answers are correct and not copies of their reference."""
        return sum(one.correct and one.source_sha256 not in self.copies for one in self.evaluations)

    def without(self, learnt: Set[str]) -> Assessed | None:
        """Return the task without the answers that have a learnt skeleton; None if no answer is left."""
        kept = tuple(one for one in self.evaluations if skeleton_hash(one.source) not in learnt)
        return replace(self, evaluations=kept) if kept else None


def assess(
    policy: Policy,
    groups: Mapping[str, Sequence[Task]],
    prompt_for: PromptFor,
    verdicts: Verdicts,
    settings: EvaluationSettings,
    *,
    seed: int,
    progress: Progress,
    after: int = 0,
    precision: Precision = "training",
) -> dict[str, list[Assessed]]:
    """Generate a policy's answers to every task and judge them.

    Args:
        policy: Generates the answers.
        groups: Tasks by group.
        prompt_for: Makes the prompt of a task.
        verdicts: Judges them.
        settings: How many answers, and how they are drawn.
        seed: Seed of the sampling.
        progress: Shows how many answers are judged.
        after: Position in the archive; verdicts up to it are not looked up.
        precision: How narrow intervals must be; `correct` does not time programs.

    Returns:
        For each group that has tasks, the judged answers of each of them, in order. Tasks that cannot be judged are
        left out: they are in `verdicts.refused`.
    """
    tasks = [task for group in groups.values() for task in group]
    with verdicts.meter.part("generating"):
        answers = policy.sample(
            [prompt_for(task) for task in tasks],
            settings.samples,
            temperature=settings.temperature,
            max_new_tokens=settings.max_new_tokens,
            seed=seed,
        )
    # Each program once, even without `reuse`: measuring it again would give it another chance.
    jobs = {
        (task.id, source_key(answer)): (task, answer)
        for task, given in zip(tasks, answers, strict=True)
        for answer in given
    }
    with progress.bar("judging answers") as tick:
        judged = verdicts.judge(list(jobs.values()), precision=precision, after=after, progress=tick)
    found = {key: one for key, one in zip(jobs, judged, strict=True) if one is not None}
    given_to = {task.id: given for task, given in zip(tasks, answers, strict=True)}
    result: dict[str, list[Assessed]] = {}
    for name, group in groups.items():
        judged_tasks = [task for task in group if task.source not in verdicts.refused]
        if judged_tasks:
            result[name] = [_assessed(task, given_to[task.id], found) for task in judged_tasks]
    return result


def _assessed(task: Task, answers: Sequence[str], found: Mapping[Key, Evaluation]) -> Assessed:
    evaluations = tuple(found[task.id, source_key(answer)] for answer in answers)
    return Assessed(
        task.id,
        evaluations,
        parse_answer(answers[0]).complete,
        task.category or f"level {task.level}",
        frozenset(one.source_sha256 for one in evaluations if is_copied(one.source, task.source)),
    )


def best_of(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Return the correct evaluation with the highest lower bound (`counted_low`), or the first if none is correct."""

    def rank(evaluation: Evaluation) -> tuple[bool, float]:
        return evaluation.correct, evaluation.counted_low or 0.0

    return max(evaluations, key=rank)


def summarize(assessed: Sequence[Assessed]) -> SpeedupSummary:
    """Return the paper's columns for a group."""
    return summarize_speedups([one.speedup for one in assessed])


def table_record(assessed: Sequence[Assessed], learnt: Set[str]) -> Record:
    """Return the figures of a group: its columns, shares of correct answers, by family, and without learnt skeletons.

    Args:
        assessed: The tasks of the group.
        learnt: Skeletons that the model was trained on. `unlearnt` leaves out answers that have one, correct or not,
            and tasks without another answer.
    """
    families: dict[str, list[Assessed]] = {}
    for one in assessed:
        families.setdefault(one.family, []).append(one)
    other = [kept for one in assessed if (kept := one.without(learnt)) is not None] if learnt else []
    return {
        **_figures(assessed),
        "families": {name: _figures(found) for name, found in sorted(families.items())},
        "unlearnt": _figures(other) if other else None,
    }


def _figures(assessed: Sequence[Assessed]) -> Record:
    found = success([one.counts for one in assessed], own=[one.own for one in assessed]).model_dump()
    # Verdicts at `correct` precision have no speedup; then the columns of speedups are left out.
    timed = all(one.speedup is not None for one in assessed if one.best.correct)
    return {**(summarize(assessed).model_dump() if timed else {}), "success": found}


def shown_exemplars(
    rule: Exemplars, variants: Sequence[Exemplar], task: Task, n: int, seed: Sequence[int]
) -> list[Exemplar]:
    """Draw the exemplars for a prompt.

    Args:
        rule: How exemplars are chosen.
        variants: Known programs of the task at this size.
        task: The task.
        n: Maximum number of exemplars.
        seed: Seed of the draw, which depends only on it, the task and the variants.
    """
    rng = np.random.default_rng([*seed, crc32(task.id.encode())])
    return rule.choose(variants, n, rng) if n and variants else []


def rule_of(contrast: ContrastSettings) -> Exemplars:
    """Return the rule by which an arm of stage 3 draws exemplars."""
    rules: dict[Arm, ExemplarRule] = {
        "bucket": "bucket",
        "evolution": "bucket",
        "island": "island",
        "random": "random",
        "none": "none",
        "vanilla": "none",
    }
    return exemplars_by_name(rules[contrast.arm], tau=contrast.tau, width=contrast.width)


def prompts_for(prompts: PromptBuilder, settings: Settings, archive: Archive) -> PromptFor:
    """Return a function that makes the prompts of an evaluation.

    Args:
        prompts: Makes a prompt from a task and its exemplars.
        settings: Whether exemplars are shown, how many, and by which rule.
        archive: Where they come from when a prompt is made.
    """
    if not settings.evaluation.exemplars:
        return prompts
    rule = rule_of(settings.contrast)

    def contrastive(task: Task) -> str:
        known = scored(archive.variants(task.id), task_source=task.source)
        return prompts(task, shown_exemplars(rule, known, task, settings.prompt.exemplars, [settings.seed, 2]))

    return contrastive
