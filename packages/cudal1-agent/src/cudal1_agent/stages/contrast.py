"""Stage 3: GRPO by TRL on contrastive prompts that are rebuilt from the archive at every step.

Each group shows two earlier programs of its task with their scores, drawn anew from the archive as it is by then,
this run's own answers among them. Rewards are smoothed (paper: clip((r - mu) / sigma, -k, k)) before TRL takes the
group's advantages.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cudal1_data import Task
from cudal1_env.exemplars import exemplars_by_name
from cudal1_env.gate import MAX_REWARD_OF_MARKED, find_audit
from cudal1_env.reward import RewardSmoother, reward_of
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from cudal1_agent.errors import ConfigError
from cudal1_agent.evaluation.assessment import shown_exemplars
from cudal1_agent.policies.transformers import as_messages, load_tokenizer
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.metrics import Record
from cudal1_agent.run.session import Session
from cudal1_agent.stages.trl import Keeper, arguments, finish

Prompt = str | list[dict[str, str]]


class ContrastTrainer(GRPOTrainer):
    """TRL's GRPOTrainer, with prompts that are written when they are needed."""

    def __init__(self, *, write_prompt: Callable[[str, int], Prompt], **kwargs: Any) -> None:
        """Make a trainer.

        Args:
            write_prompt: Makes the prompt from a task's id and the number of the step.
            **kwargs: Arguments of GRPOTrainer. The dataset's rows name a `task`; their `prompt` is a placeholder.
        """
        super().__init__(**kwargs)
        self._write_prompt = write_prompt

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Write one prompt for each task of the batch, then do as TRL does.

        The method is private to TRL (pinned below 1.17); tests/agent/test_trl_contract.py holds what is used of it.
        """
        written = {task: self._write_prompt(task, self.state.global_step) for task in {row["task"] for row in inputs}}
        rewritten = [{**row, "prompt": written[row["task"]]} for row in inputs]
        return super()._generate_and_score_completions(rewritten)


@dataclass
class Scorer:
    """TRL's reward function: judge the answers, smooth their rewards. Its state belongs in the checkpoint."""

    session: Session
    smoother: RewardSmoother
    tasks: Mapping[str, Task] = field(init=False)
    unsound: frozenset[str] = field(init=False)
    """Tasks that the suite's audit marked: they pay nothing above 1, as in the environment."""
    __name__: str = field(init=False, default="smoothed")
    """What TRL calls the reward in its log."""

    def __post_init__(self) -> None:
        """Index the tasks."""
        self.tasks = {task.id: task for task in self.session.tasks.train}
        audit = find_audit("auto", self.session.settings.suite, self.session.device)
        self.unsound = frozenset(
            name for name, task in self.tasks.items() if audit is not None and audit.complaint(task) is not None
        )

    def __call__(
        self, completions: Sequence[Any], task: Sequence[str], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float]:
        """Return one smoothed reward for each completion."""
        answers = [text_of(completion) for completion in completions]
        jobs = [(self.tasks[name], answer) for name, answer in zip(task, answers, strict=True)]
        evaluations = self.session.verdicts.judge(jobs)
        rule = self.session.settings.contrast.reward
        rewards = [
            reward_of(evaluation, rule, most=MAX_REWARD_OF_MARKED if name in self.unsound else math.inf)
            for name, evaluation in zip(task, evaluations, strict=True)
        ]
        self.smoother = self.smoother.updated(rewards)
        log_metric("raw_reward", float(np.mean(rewards)))
        log_metric("correct", float(np.mean([evaluation.correct for evaluation in evaluations])))
        speedups = [one.speedup.point for one in evaluations if one.correct and one.speedup is not None]
        if speedups:
            log_metric("speedup", float(np.exp(np.mean(np.log(speedups)))))
        return [self.smoother.smooth(reward) for reward in rewards]


def run_contrast(session: Session, checkpoint: Checkpoint | None, *, model: str | Path, folder: Path) -> None:
    """Train a model by contrast and leave the result in `folder / "model"`.

    Args:
        session: The run; its archive stands where the checkpoint has it.
        checkpoint: Where to resume an interrupted stage.
        model: The model to begin with.
        folder: Folder of the stage.

    Raises:
        ConfigError: TRL does not take the settings, or they do not resume exactly.
    """
    from datasets import Dataset

    settings = session.settings
    config = arguments(
        GRPOConfig, settings.contrast.trl, folder=folder / "trainer", seed=settings.seed, use_cpu=session.use_cpu
    )
    config.shuffle_dataset = False
    check_steps(config)
    tokenizer = load_tokenizer(model)
    scorer = Scorer(session, RewardSmoother(k=settings.contrast.clip))
    if checkpoint is not None:
        scorer.smoother = RewardSmoother.model_validate(checkpoint.mark.extra["smoother"])

    def extra() -> Record:
        return {"smoother": scorer.smoother.model_dump()}

    rows = [{"prompt": "", "task": task} for task in task_order(session.tasks.train, config, seed=settings.seed)]
    with session.progress.bar("contrast") as tick:
        trainer = ContrastTrainer(
            write_prompt=prompt_writer(session, model, chat=tokenizer.chat_template is not None),
            model=str(model),
            reward_funcs=[scorer],
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Keeper(session.folder, "contrast", tick, extra)],
        )
        finish(trainer, checkpoint, folder / "model")


def prompt_writer(session: Session, model: str | Path, *, chat: bool) -> Callable[[str, int], Prompt]:
    """Return what writes the contrastive prompt of a task at a step.

    The draw of exemplars depends on seed, step, task and archive alone, so a resumed run draws the same.
    """
    settings = session.settings
    prompts = session.prompts(model)
    rule = exemplars_by_name(settings.prompt.scheme)
    tasks = {task.id: task for task in session.tasks.train}

    def write(name: str, step: int) -> Prompt:
        task = tasks[name]
        draw = np.random.default_rng([settings.seed, 7, step, zlib.crc32(name.encode())])
        count = int(draw.choice(settings.contrast.contexts))
        shown = shown_exemplars(rule, session.folder.archive, task, count, [settings.seed, 5, step])
        prompt = prompts(task, shown)
        return as_messages(prompt) if chat else prompt

    return write


def task_order(tasks: Sequence[Task], config: GRPOConfig, *, seed: int) -> list[str]:
    """Return the task of each group, for all steps: pass after pass over all tasks, each in a new order."""
    assert config.generation_batch_size is not None
    assert config.num_generations is not None
    assert config.steps_per_generation is not None
    micro_steps = config.max_steps * config.gradient_accumulation_steps
    batches = -(-micro_steps // (config.steps_per_generation * config.num_iterations))
    groups = batches * (config.generation_batch_size // config.num_generations)
    rng = np.random.default_rng([seed, 6])
    order: list[str] = []
    while len(order) < groups:
        order.extend(tasks[int(index)].id for index in rng.permutation(len(tasks)))
    return order[:groups]


def check_steps(config: GRPOConfig) -> None:
    """Check that every checkpoint falls between two generation batches.

    Raises:
        ConfigError: One would not: a checkpoint holds no generated answers, so it could not be resumed exactly.
    """
    assert config.steps_per_generation is not None
    generation = config.steps_per_generation * config.num_iterations
    if (config.save_steps * config.gradient_accumulation_steps) % generation:
        raise ConfigError(
            f"save_steps x gradient_accumulation_steps ({config.save_steps} x {config.gradient_accumulation_steps}) "
            f"must be a multiple of steps_per_generation x num_iterations ({config.steps_per_generation} x "
            f"{config.num_iterations}) in [contrast.trl]; change save_steps"
        )
    if config.world_size > 1:
        raise ConfigError(
            f"stage contrast runs in one process, got world_size = {config.world_size}; start a single process"
        )


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as text or as a conversation."""
    return completion if isinstance(completion, str) else completion[0]["content"]
