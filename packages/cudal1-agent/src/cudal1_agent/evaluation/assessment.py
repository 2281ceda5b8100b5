"""Assessment of a policy: its answers for every group of tasks, judged and summarised in the paper's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from cudal1_data import Task
from cudal1_env import Archive, Evaluation
from cudal1_env.exemplars import Exemplar, ExemplarRule, Exemplars, exemplars_by_name, scored
from cudal1_env.stats import SpeedupSummary, summarize_speedups

from cudal1_agent.data.prompts import parse_answer
from cudal1_agent.data.tasks import GROUPS
from cudal1_agent.policies import Policy
from cudal1_agent.policies.prompting import PromptBuilder
from cudal1_agent.progress import Progress
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import Arm, ContrastSettings, EvaluationSettings, Settings

PromptFor = Callable[[Task], str]


@dataclass(frozen=True)
class Assessed:
    """The judged answers of one task."""

    task: str
    """Task id."""
    best: Evaluation
    """The correct evaluation with the highest lower end, or the first where none is correct."""
    form: bool
    """Whether the first answer had all three sections."""

    @property
    def speedup(self) -> float | None:
        """Its speedup, None where no answer was correct."""
        return self.best.speedup.point if self.best.correct and self.best.speedup is not None else None


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
) -> dict[str, list[Assessed]]:
    """Ask a policy about every task and judge its answers.

    Args:
        policy: Writes the answers.
        groups: Tasks by group.
        prompt_for: Makes the prompt of a task.
        verdicts: Judges them.
        settings: How many answers, and how they are drawn.
        seed: Seed of the drawing.
        progress: Shows how many answers are judged.
        after: Position in the archive; no verdict before it is looked up.

    Returns:
        For each group that has tasks, the judged answers of each of them, in order.
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
    jobs = [(task, answer) for task, given in zip(tasks, answers, strict=True) for answer in given]
    with progress.bar("judging answers") as tick:
        evaluations = verdicts.judge(jobs, after=after, progress=tick)
    assessed = [
        Assessed(
            task.id,
            best_of(evaluations[index * settings.samples : (index + 1) * settings.samples]),
            parse_answer(given[0]).complete,
        )
        for index, (task, given) in enumerate(zip(tasks, answers, strict=True))
    ]
    result: dict[str, list[Assessed]] = {}
    for name, group in groups.items():
        if group:
            result[name] = assessed[: len(group)]
        assessed = assessed[len(group) :]
    return result


def best_of(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Return the correct evaluation with the highest lower end, the first of all where none is correct."""

    def rank(evaluation: Evaluation) -> float:
        return evaluation.speedup.low if evaluation.correct and evaluation.speedup is not None else 0.0

    return max(evaluations, key=rank)


def summarize(assessed: Sequence[Assessed]) -> SpeedupSummary:
    """Return the paper's columns for a group."""
    return summarize_speedups([one.speedup for one in assessed])


def group_rows(stage: str, results: Mapping[str, Sequence[Assessed]]) -> list[tuple[str, str, SpeedupSummary]]:
    """Return the rows of the stage table for one stage."""
    return [(stage, GROUPS[group], summarize(assessed)) for group, assessed in results.items()]


def shown_exemplars(
    rule: Exemplars, variants: Sequence[Exemplar], task: Task, n: int, seed: Sequence[int]
) -> list[Exemplar]:
    """Draw the exemplars for a prompt.

    Args:
        rule: How exemplars are chosen.
        variants: What is known of the task at this size.
        task: The task.
        n: How many at most.
        seed: Decides the draw together with task and variants; nothing is remembered from one draw to the next.
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
    """Return what makes the prompts of an evaluation.

    Args:
        prompts: Makes a prompt from a task and its exemplars.
        settings: Whether exemplars are shown, how many, and by which rule.
        archive: Where they come from, as it is now: what the evaluation itself finds is not shown.
    """
    if not settings.evaluation.exemplars:
        return prompts
    rule = rule_of(settings.contrast)

    def contrastive(task: Task) -> str:
        known = scored(archive.variants(task.id), task_source=task.source)
        return prompts(task, shown_exemplars(rule, known, task, settings.prompt.exemplars, [settings.seed, 2]))

    return contrastive
