"""Checks before a run: every table of settings, the model, its context, memory and disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudal1_agent.data.tasks import TaskSets
from cudal1_agent.errors import ConfigError
from cudal1_agent.policies.embedded import is_embedded
from cudal1_agent.policies.prompting import PromptBuilder
from cudal1_agent.policies.transformers import LARGE, load_tokenizer, parameters_of, tokens_of
from cudal1_agent.run.judge import judge_settings, stays_on_cpu
from cudal1_agent.settings import EmbeddedModel, Settings

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """Sizes of a model that decide how much memory it takes."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    context: int


@dataclass(frozen=True)
class Estimate:
    """Upper estimate of a run's memory and disk, in bytes."""

    weights_bytes: int
    """Weights of the policy, and of the reference policy if there is one."""
    training_bytes: int
    """Gradients and the optimizer's state."""
    activations_bytes: int
    """Activations that the largest step keeps, including logits."""
    disk_bytes: int
    """Models and checkpoints of all stages."""

    @property
    def memory_bytes(self) -> int:
        """Memory that the policy's device needs."""
        return self.weights_bytes + self.training_bytes + self.activations_bytes

    def text(self) -> str:
        """Return the estimate as text."""
        return (
            f"memory of the policy: {self.memory_bytes / GIB:.2f} GiB (weights {self.weights_bytes / GIB:.2f}, "
            f"training {self.training_bytes / GIB:.2f}, activations {self.activations_bytes / GIB:.2f}); "
            f"disk: {self.disk_bytes / GIB:.2f} GiB"
        )


def check_settings(settings: Settings, folder: Path) -> None:
    """Check every table that another library reads, and that the settings agree.

    Args:
        settings: Settings of the run.
        folder: The run directory.

    Raises:
        ConfigError: A table is invalid, or settings contradict each other.
    """
    from trl.trainer.sft_config import SFTConfig

    from cudal1_agent.stages.contrast import contrast_config
    from cudal1_agent.stages.trackers import check_trackers
    from cudal1_agent.stages.trl import arguments, lora_of

    use_cpu = stays_on_cpu(settings)
    if settings.evaluation.train_tasks == 0:
        raise ConfigError(
            "evaluation.train_tasks = 0 leaves nothing to compare stages on; set it to 1 or more, or leave it out"
        )
    tables: dict[str, Callable[[], object]] = {
        "sft.trl": lambda: arguments(SFTConfig, settings.sft.trl, folder=folder, seed=0, use_cpu=use_cpu),
        "self_train.trl": lambda: arguments(SFTConfig, settings.self_train.trl, folder=folder, seed=0, use_cpu=use_cpu),
        "contrast.trl": lambda: contrast_config(settings, folder, use_cpu=use_cpu),
    }
    for name, made in tables.items():
        if name.partition(".")[0] in settings.stages:
            try:
                made()
            except ConfigError as error:
                raise ConfigError(f"[{name}]: {error}") from error
    lora_of(settings.peft)
    judge_settings(settings)
    check_trackers(settings.report_to)
    if settings.policy.backend == "openai":
        raise ConfigError(
            "a model behind an OpenAI endpoint cannot be trained: it answers with its own weights; set backend to "
            "'transformers' or 'vllm' in [policy], or evaluate it (cudal1-agent evaluate)"
        )


def check_model(model: str | Path, settings: Settings, tasks: TaskSets, prompts: PromptBuilder) -> None:
    """Check that a model has a tokenizer, a chat template, and a context that is long enough for each task.

    Args:
        model: The model that the run begins with.
        settings: Settings of the run.
        tasks: The tasks of the run.
        prompts: Makes the prompts for the model.

    Raises:
        PolicyError: The model cannot be loaded.
        ConfigError: It has no chat template, or a prompt and its answer are longer than its context.
    """
    tokenizer = load_tokenizer(model)
    if tokenizer.chat_template is None and not is_embedded(model):
        raise ConfigError(
            f"the model {model} has no chat template, which defines its prompts and where its answers end; use "
            "its instruction-tuned version, or put a chat_template.jinja into its folder"
        )
    context = shape_of(model).context
    longest = settings.evaluation.max_new_tokens
    if "contrast" in settings.stages:
        longest = max(longest, int(settings.contrast.trl.get("max_completion_length", 512)))
    asked = [*tasks.train, *(task for group in tasks.groups.values() for task in group)]
    sizes = {task.id: tokens_of(tokenizer, prompts(task), "", settings.policy.chat) for task in asked}
    task = max(sizes, key=lambda name: sizes[name])
    if sizes[task] + longest > context:
        raise ConfigError(
            f"the prompt of {task} without exemplars has {sizes[task]} tokens, and with an answer of {longest} it is "
            f"longer than the model's context of {context}; shorten answers (evaluation.max_new_tokens, "
            "contrast.trl.max_completion_length), take a longer context (embedded.context), or leave the "
            "task out"
        )


def shape_of(model: str | Path) -> Shape:
    """Return the shape of a model in a folder or on the hub.

    Raises:
        PolicyError: The model cannot be loaded.
    """
    from transformers import AutoConfig

    parameters = parameters_of(model)
    config: Any = AutoConfig.from_pretrained(model)
    return Shape(
        parameters, config.num_hidden_layers, config.hidden_size, config.vocab_size, config.max_position_embeddings
    )


def embedded_shape(shape: EmbeddedModel) -> Shape:
    """Return the shape of an embedded model from its settings."""
    layer = 4 * shape.hidden**2 + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    parameters = shape.vocabulary * shape.hidden + shape.layers * layer + shape.hidden
    return Shape(parameters, shape.layers, shape.hidden, shape.vocabulary, shape.context)


def estimate(shape: Shape, settings: Settings, *, use_cpu: bool) -> Estimate:
    """Return the memory and disk that a run needs at most.

    Weights are float32, or bfloat16 from `LARGE` parameters on. Adam keeps two values per trained parameter. With
    gradient checkpointing, a step keeps one hidden state per layer and the activations of one layer (about 34 bytes per
    hidden value: Korthikanti et al., arXiv 2205.05198, section 4.1). Logits are kept in the compute type, in float32,
    and as gradient. A stage keeps two checkpoints while it runs, and leaves a model.

    Args:
        shape: Shape of the model.
        settings: Settings of the run.
        use_cpu: Whether the policy stays on the CPU.
    """
    width = 2 if shape.parameters >= LARGE else 4
    weights = shape.parameters * width
    rank = int(settings.peft.get("r", 8)) if settings.peft else 0
    # Adapters of at most the seven matrices of a layer: about 18 hidden widths per rank.
    trained = min(18 * rank * shape.hidden * shape.layers, shape.parameters) if rank else shape.parameters
    state = trained * (4 if rank else width) * 3
    reference = weights if float(settings.contrast.trl.get("beta", 0.0)) and not rank else 0
    activations = 0
    for name, length in (
        ("sft", settings.sft.trl.get("max_length")),
        ("self_train", settings.self_train.trl.get("max_length")),
        ("contrast", settings.prompt.max_tokens + int(settings.contrast.trl.get("max_completion_length", 512))),
    ):
        if name not in settings.stages:
            continue
        table: dict[str, Any] = getattr(settings, name).trl
        tokens = int(table.get("per_device_train_batch_size", 8)) * int(length or shape.context)
        autocast = not use_cpu and (name != "contrast" or settings.policy.batching != "compiled")
        compute = 2 if autocast or width == 2 else 4
        checkpointed = bool(table.get("gradient_checkpointing", not use_cpu))
        layers = shape.layers * compute + 34 if checkpointed else shape.layers * 34 * compute // 2
        logits = shape.vocabulary * (compute + 4 + compute)
        activations = max(activations, tokens * (shape.hidden * layers + logits))
    stages = len(settings.stages) + (settings.self_train.iterations - 1 if "self_train" in settings.stages else 0)
    disk = weights * (stages + 1) + 2 * (trained * (4 if rank else width) * 3)
    return Estimate(weights + reference, state, activations, disk)


def check_room(needed: Estimate, folder: Path, *, use_cpu: bool) -> None:
    """Check that memory and disk suffice.

    Args:
        needed: Memory and disk that the run needs.
        folder: The run directory, which need not exist.
        use_cpu: Whether the policy stays on the CPU.

    Raises:
        ConfigError: They do not.
    """
    place = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if needed.disk_bytes > free:
        raise ConfigError(
            f"the run needs {needed.disk_bytes / GIB:.1f} GiB on the disk of {folder}, which has {free / GIB:.1f} GiB "
            "free; free some, name another --run-dir, or train adapters (a table [peft])"
        )
    if use_cpu:
        return
    import torch

    room = torch.cuda.mem_get_info()[0]
    if needed.memory_bytes > room:
        raise ConfigError(
            f"the policy needs about {needed.memory_bytes / GIB:.1f} GiB and the GPU has {room / GIB:.1f} GiB free; "
            "train adapters (a table [peft]), or lower per_device_train_batch_size and max_length"
        )
