"""Stage 3: GRPO by TRL on contrastive prompts that are rebuilt from the archive at every step.

Each group's prompt shows earlier programs of its task with their scores. They are drawn anew from the current archive,
which includes this run's answers. Rewards are smoothed (paper: clip((r - mu) / sigma, -k, k)) before TRL takes the
group's advantages.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cudal1_data import Task
from cudal1_env.exemplars import bucket_of, scored
from cudal1_env.reward import RewardSmoother
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from cudal1_agent.errors import ConfigError
from cudal1_agent.evaluation.assessment import rule_of, shown_exemplars
from cudal1_agent.policies.transformers import as_messages, load_model, load_tokenizer
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.meter import Meter
from cudal1_agent.run.metrics import Record
from cudal1_agent.run.session import Session
from cudal1_agent.settings import Settings
from cudal1_agent.stages.scoring import Drawn, Scorer
from cudal1_agent.stages.trl import Keeper, arguments, finish, lora_of, unchanged_module

Prompt = str | list[dict[str, str]]


PADDED_TO = 512
"""Prompts are padded to a multiple of this many tokens if steps are compiled."""


class ContrastTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with prompts that are written at each generation."""

    def __init__(
        self, *, write_prompt: Callable[[str, int], Prompt], meter: Meter | None = None, **kwargs: Any
    ) -> None:
        """Make a trainer.

        Args:
            write_prompt: Makes the prompt from a task's id and the number of the step.
            meter: Counts the time of generation.
            **kwargs: Arguments of GRPOTrainer. The dataset's rows name a `task`; their `prompt` is a placeholder.
        """
        super().__init__(**kwargs)
        self._write_prompt = write_prompt
        self._meter = meter or Meter()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Write one prompt for each task of the batch, then call TRL's method.

        This method and the next are private to TRL (pinned below 1.17); tests/agent/test_trl_contract.py checks what is
        used of them.
        """
        tasks = dict.fromkeys(row["task"] for row in inputs)
        written = {task: self._write_prompt(task, self.state.global_step) for task in tasks}
        rewritten = [{**row, "prompt": written[row["task"]]} for row in inputs]
        return super()._generate_and_score_completions(rewritten)

    def _generate(self, prompts: list[Prompt]) -> Any:
        """Generate as TRL does, and count the time."""
        with self._meter.part("generating"):
            return super()._generate(prompts)


def run_contrast(session: Session, checkpoint: Checkpoint | None, *, model: str | Path, folder: Path) -> None:
    """Train a model by contrast, and save it to `folder / "model"`.

    Args:
        session: The run; its archive is at the checkpoint's position.
        checkpoint: Where to resume an interrupted stage.
        model: The model to begin with.
        folder: Folder of the stage.

    Raises:
        ConfigError: TRL rejects the settings, or they do not resume exactly.
    """
    from datasets import Dataset

    settings = session.settings
    config = contrast_config(settings, folder / "trainer", use_cpu=session.use_cpu)
    tokenizer = load_tokenizer(model)
    smoother = RewardSmoother(k=settings.contrast.clip, window=settings.contrast.window)
    assert config.num_generations is not None
    scorer = Scorer(session, smoother, config.num_generations)
    if checkpoint is not None:
        scorer.smoother = RewardSmoother.model_validate(checkpoint.mark.extra["smoother"])

    def extra() -> Record:
        return {"smoother": scorer.smoother.model_dump()}

    rows = [{"prompt": "", "task": task} for task in task_order(session.contrasted, config, seed=settings.seed)]
    loaded = load_model(model, tokenizer, use_cpu=session.use_cpu)
    with unchanged_module(loaded), session.progress.bar("contrast") as tick:
        trainer = ContrastTrainer(
            write_prompt=prompt_writer(session, model, scorer.drawn, chat=tokenizer.chat_template is not None),
            meter=session.meter,
            model=loaded,
            reward_funcs=[scorer],
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=lora_of(settings.peft),
            callbacks=[Keeper(session, "contrast", tick, extra, every=steps_between(config))],
        )
        if settings.policy.batching == "compiled":
            trainer.generation_config.disable_compile = False  # TRL sets True
        if config.mask_truncated_completions:
            scorer.ends = frozenset(trainer.eos_token_ids)
        finish(session, trainer, checkpoint, folder / "model", "contrast")


def contrast_config(settings: Settings, folder: Path, *, use_cpu: bool) -> GRPOConfig:
    """Return TRL's arguments for stage 3.

    TRL subtracts each group's mean from the rewards. With `scale_rewards = "none"` it does not divide, so the scale and
    the clip of the smoothing reach the advantages; dividing by the group's standard deviation would undo both. The arm
    `vanilla` has no smoothing and divides. If the policy compiles its steps, the stage has no autocast (but TF32 on a
    GPU), so that keys and values have one type.

    Args:
        settings: Settings of the run.
        folder: Where checkpoints go.
        use_cpu: Stay on the CPU.

    Raises:
        ConfigError: TRL rejects the settings, or they do not resume exactly.
    """
    contrast = settings.contrast
    if "scale_rewards" in contrast.trl:
        raise ConfigError(
            "remove scale_rewards from [contrast.trl]: the arm decides it ('group' for vanilla, 'none' for the others)"
        )
    policy = settings.policy
    compiled = policy.backend == "transformers" and policy.batching == "compiled"
    if compiled and contrast.trl.get("bf16"):
        raise ConfigError(
            "remove bf16 from [contrast.trl], or set batching = 'static' in [policy]: with float32 weights under "
            "autocast, keys and values have two types, and a compiled step's cache has one"
        )
    # The cache is as long as prompt and completion; padding leaves few lengths to compile for.
    one_size = {
        "cache_implementation": "static",
        "pad_to_multiple_of": PADDED_TO,
        "bf16": False,
        "tf32": True if not use_cpu and torch.cuda.is_tf32_supported() else None,
    }
    table = {
        "scale_rewards": "group" if contrast.arm == "vanilla" else "none",
        "chat_template_kwargs": policy.chat or None,
        "use_transformers_continuous_batching": policy.backend == "transformers" and policy.batching == "continuous",
        **(one_size if compiled else {}),
        **contrast.trl,
    }
    if policy.backend == "vllm":
        where = {"vllm_mode": "colocate"} if policy.url is None else {"vllm_mode": "server"}
        address = {} if policy.url is None else {"vllm_server_base_url": policy.url.removesuffix("/v1")}
        table |= {"use_vllm": True, **where, **address}
    if contrast.arm == "evolution":
        table |= {"learning_rate": 0.0}
    config = arguments(GRPOConfig, table, folder=folder, seed=settings.seed, use_cpu=use_cpu)
    config.shuffle_dataset = False
    check_steps(config)
    return config


def prompt_writer(
    session: Session, model: str | Path, drawn: list[Drawn], *, chat: bool
) -> Callable[[str, int], Prompt]:
    """Return a function that writes the contrastive prompt of a task at a step.

    The draw of exemplars depends only on seed, step, task and archive, so a resumed run draws the same.

    Args:
        session: The run.
        model: The model that answers.
        drawn: Receives the exemplars of each prompt.
        chat: Whether the model takes conversations.
    """
    settings = session.settings
    prompts = session.prompts(model)
    rule = rule_of(settings.contrast)
    tasks = {task.id: task for task in session.contrasted}

    def write(name: str, step: int) -> Prompt:
        task = tasks[name]
        draw = np.random.default_rng([settings.seed, 7, step, zlib.crc32(name.encode())])
        wanted = 0 if draw.random() < settings.contrast.plain_share else settings.prompt.exemplars
        known = scored(session.folder.archive.variants(task.id), task_source=task.source)
        shown = prompts.fitting(task, shown_exemplars(rule, known, task, wanted, [settings.seed, 5, step]))
        buckets = len({bucket_of(one.speedup, settings.contrast.width) for one in known})
        programs = tuple(hashlib.sha256(one.source.encode()).hexdigest() for one in shown)
        drawn.append(Drawn(name, programs, wanted, buckets))
        prompt = prompts(task, shown)
        return as_messages(prompt) if chat else prompt

    return write


def task_order(tasks: Sequence[Task], config: GRPOConfig, *, seed: int) -> list[str]:
    """Return the task of each group, for all steps: repeated passes over all tasks, each in a new order."""
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
        ConfigError: One would not, and could not be resumed exactly, because it holds no generated answers; or there
            are several processes.
    """
    if config.save_steps % steps_between(config):
        raise ConfigError(
            f"save_steps x gradient_accumulation_steps ({config.save_steps} x {config.gradient_accumulation_steps}) "
            f"must be a multiple of steps_per_generation x num_iterations ({config.steps_per_generation} x "
            f"{config.num_iterations}) in [contrast.trl]; change save_steps"
        )
    if config.world_size > 1:
        raise ConfigError(
            f"stage contrast runs in one process, got world_size = {config.world_size}; start a single process"
        )


def steps_between(config: GRPOConfig) -> int:
    """Return the number of steps after which a generation batch is used up, so that a checkpoint needs no answers."""
    assert config.steps_per_generation is not None
    generation = config.steps_per_generation * config.num_iterations
    return generation // math.gcd(generation, config.gradient_accumulation_steps)
