"""TRL: a reward function, and an environment with a tool, for `GRPOTrainer`. This module does not import TRL.

    rows = [{"prompt": [{"role": "user", "content": prompt_of(task)}], "task": task.id} for task in suite]
    trainer = GRPOTrainer(model=..., reward_funcs=speed_reward(evaluator, suite), train_dataset=...)

Written for TRL 1.16. A machine failure is an exception, not a reward: it ends the training step, which can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudal1_data import Suite, Task

from cudal1_env.adapters import learn_audit
from cudal1_env.answers import evaluate_answers
from cudal1_env.archive import Archive
from cudal1_env.errors import SettingsError
from cudal1_env.evaluator import Evaluator
from cudal1_env.records import Evaluation, Precision, Status
from cudal1_env.reward import Rule, reward, reward_of

Completion = str | Sequence[dict[str, Any]]  # a text, or messages with `content`
Judged = Callable[[Task, str], tuple[Evaluation, float]]  # from task and program to verdict and reward


def speed_reward(
    evaluator: Evaluator,
    suite: Suite,
    *,
    rule: Rule = "speedup",
    precision: Precision = "training",
    archive: Archive | None = None,
) -> Callable[..., list[float | None]]:
    """Return a reward function; the dataset's column `task` has a task id in each row.

    Args:
        evaluator: The judge.
        suite: The tasks.
        rule: Rule of the reward; see `cudal1_env.reward`.
        precision: How narrow intervals must be.
        archive: Where evaluations are kept; None keeps none.
    """
    learn_audit(evaluator, suite.name)

    def speed(completions: Sequence[Completion], task: Sequence[str] = (), **more: Any) -> list[float | None]:
        if len(task) != len(completions):
            raise SettingsError(f"{len(completions)} answers and {len(task)} task ids; give the rows a column `task`")
        jobs = [(suite[name], text_of(one)) for name, one in zip(task, completions, strict=True)]
        evaluations = evaluate_answers(evaluator, jobs, precision=precision, archive=archive)
        if (log_metric := more.get("log_metric")) is not None and evaluations:
            log_metric("correct", sum(one.correct for one in evaluations) / len(evaluations))
        return [reward_of(one, rule) for one in evaluations]

    return speed


def environment_factory(
    evaluator: Evaluator, suite: Suite, *, attempts: int = 3, rule: Rule = "speedup", precision: Precision = "training"
) -> Callable[[], KernelEnvironment]:
    """Return the factory that `GRPOTrainer(environment_factory=...)` calls for each rollout; rows have a column `task`.

    The reward of a rollout is that of its best attempt; without an attempt, that of an answer without a program.

    Args:
        evaluator: The judge.
        suite: The tasks.
        attempts: Programs that a rollout may submit.
        rule: Rule of the reward.
        precision: How narrow intervals must be.
    """
    learn_audit(evaluator, suite.name)

    def judge(task: Task, program: str) -> tuple[Evaluation, float]:
        (evaluation,) = evaluate_answers(evaluator, [(task, program)], precision=precision)
        return evaluation, reward_of(evaluation, rule)

    least = reward(Status.NO_CODE, None, rule)
    return lambda: KernelEnvironment(judge, suite, attempts, least)


class KernelEnvironment:
    """One rollout: the policy submits programs (`submit` is its tool) and reads verdicts."""

    def __init__(self, judge: Judged, suite: Suite, attempts: int, least: float) -> None:
        self._judge, self._suite, self._attempts, self._least = judge, suite, attempts, least
        self._task: Task = suite[0]
        self._left, self._best = 0, least

    def reset(self, **row: Any) -> None:
        """Begin a rollout on the task of a dataset's row."""
        self._task = self._suite[str(row["task"])]
        self._left, self._best = self._attempts, self._least

    def submit(self, program: str) -> str:
        """Judge a program for the task and return the verdict.

        Args:
            program: The whole Python program, which defines ModelNew.

        Returns:
            Status, message and number of attempts left.
        """
        if self._left == 0:
            return "No attempts are left."
        evaluation, reward = self._judge(self._task, program)
        self._left -= 1
        self._best = max(self._best, reward)
        return f"{evaluation.status}: {evaluation.message} ({self._left} attempts left)"

    def get_reward(self) -> float:
        """Return the reward of the best attempt, or that of an answer without a program if there was none."""
        return self._best


def text_of(completion: Completion) -> str:
    """Return a completion's text: itself, or the content of its last message; empty without messages."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"] or "") if completion else ""
