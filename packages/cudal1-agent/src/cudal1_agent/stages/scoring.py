"""The reward function of stage 3: verdicts as smoothed rewards, and a record of each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cudal1_data import Task
from cudal1_env import Evaluation, Status
from cudal1_env.reward import RewardSmoother, reward, reward_of

from cudal1_agent.data.prompts import parse_answer
from cudal1_agent.run.session import Session

TRUNCATED = "TRUNCATED"
"""Outcome of an answer that reached the length limit: it is neither judged nor learnt from."""
REFUSED = "REFUSED"
"""Outcome of an answer to a task that cannot be judged on this machine: it is not learnt from."""
NO_SECTIONS = "NO_SECTIONS"
"""Outcome of an answer that lacks one of the three sections: a failure that is not judged."""


@dataclass(frozen=True)
class Drawn:
    """The exemplars in a prompt of stage 3."""

    task: str
    """Task id."""
    programs: tuple[str, ...]
    """SHA-256 of each exemplar in the prompt."""
    wanted: int
    """Number of exemplars requested."""
    buckets: int
    """Number of score buckets that the task's programs fill."""

    @property
    def shown(self) -> int:
        """Number of exemplars in the prompt."""
        return len(self.programs)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one answer."""

    name: str
    """The verdict's status, `TRUNCATED`, `NO_SECTIONS` or `REFUSED`."""
    reward: float | None
    """None if the answer is not learnt from."""
    evaluation: Evaluation | None = None
    """The verdict; None if the answer was not judged."""


@dataclass
class Scorer:
    """TRL's reward function: judges answers and smooths rewards. Checkpoints hold the state of its smoother."""

    session: Session
    smoother: RewardSmoother
    generations: int
    """Answers in a group."""
    drawn: list[Drawn] = field(default_factory=list[Drawn])
    """The exemplars in the prompts of the current batch."""
    ends: frozenset[int] = frozenset()
    """Tokens that end an answer; an answer without one was truncated. If empty, none counts as truncated."""
    tasks: Mapping[str, Task] = field(init=False)
    __name__: str = field(init=False, default="smoothed")
    """Name of the reward in TRL's log."""

    def __post_init__(self) -> None:
        """Index the tasks."""
        self.tasks = {task.id: task for task in self.session.contrasted}

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        task: Sequence[str],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        """Return one reward for each completion, None for those that are not learnt from."""
        self.session.meter.count("generated_tokens", sum(map(len, completion_ids)))
        outcomes = self.outcomes(task, [text_of(completion) for completion in completions], completion_ids)
        raw = [outcome.reward for outcome in outcomes if outcome.reward is not None]
        smooth = self.session.settings.contrast.arm != "vanilla"
        self.smoother = self.smoother.updated(raw)
        rewards = [
            None if outcome.reward is None else self.smoother.smooth(outcome.reward) if smooth else outcome.reward
            for outcome in outcomes
        ]
        known = [value for value in rewards if value is not None]
        correct = [one.evaluation for one in outcomes if one.evaluation is not None and one.evaluation.correct]
        speedups = [one.speedup.point for one in correct if one.speedup is not None]
        log_metric("correct", len(correct) / len(outcomes))
        if raw:
            log_metric("raw_reward", float(np.mean(raw)))
        if speedups:
            log_metric("speedup", float(np.exp(np.mean(np.log(speedups)))))
        written: dict[str, list[str]] = {}
        for one in correct:
            written.setdefault(one.task, []).append(one.source_sha256)
        clipped = [abs(value) >= self.smoother.k for value in known] if smooth else []
        groups = [outcomes[start : start + self.generations] for start in range(0, len(outcomes), self.generations)]
        self.session.folder.metrics.append(
            {
                "event": "batch",
                "stage": "contrast",
                "step": trainer_state.global_step,
                "statuses": dict(Counter(outcome.name for outcome in outcomes)),
                "clip_share": float(np.mean(clipped)) if clipped else 0.0,
                "groups": len(groups),
                "groups_alike": sum(alike(group) for group in groups),
                "exemplars": [one.shown for one in self.drawn],
                "exemplars_wanted": [one.wanted for one in self.drawn],
                "buckets": [one.buckets for one in self.drawn],
                "shown": {one.task: list(one.programs) for one in self.drawn},
                "correct": written,
            }
        )
        self.drawn.clear()
        return rewards

    def outcomes(
        self, task: Sequence[str], answers: Sequence[str], completion_ids: Sequence[Sequence[int]]
    ) -> list[Outcome]:
        """Return the outcome of each answer; only complete answers with the three sections are judged."""
        rule = self.session.settings.contrast.reward
        found: dict[int, Outcome] = {}
        judged: list[int] = []
        for index, (answer, ids) in enumerate(zip(answers, completion_ids, strict=True)):
            if self.ends and (not ids or ids[-1] not in self.ends):
                found[index] = Outcome(TRUNCATED, None)
            elif not parse_answer(answer).complete:
                found[index] = Outcome(NO_SECTIONS, reward(Status.NO_CODE, None, rule))
            else:
                judged.append(index)
        evaluations = self.session.verdicts.judge([(self.tasks[task[index]], answers[index]) for index in judged])
        for index, one in zip(judged, evaluations, strict=True):
            found[index] = Outcome(REFUSED, None) if one is None else Outcome(one.status, reward_of(one, rule), one)
        return [found[index] for index in range(len(answers))]


def alike(group: Sequence[Outcome]) -> bool:
    """Return whether the answers of a group have one outcome and speedup intervals that overlap."""
    if len({outcome.name for outcome in group}) > 1:
        return False
    speedups = [one.evaluation.speedup for one in group if one.evaluation is not None and one.evaluation.correct]
    lows = [one.low for one in speedups if one is not None]
    highs = [one.high for one in speedups if one is not None]
    return not lows or max(lows) <= min(highs)


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as text or as a conversation."""
    return completion if isinstance(completion, str) else completion[0]["content"]
