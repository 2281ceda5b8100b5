"""Settings of a run: frozen, typed, read from TOML, written into the run directory.

The defaults are the quickstart: `cudal1-agent train` without arguments. `configs/quickstart.toml` spells them
out, and a test holds the two equal. Tables named `trl` go to TRL's own configuration classes unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

from cudal1_data.suggest import did_you_mean
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

StageName = Literal["sft", "self_train", "contrast"]
STAGES: tuple[StageName, ...] = ("sft", "self_train", "contrast")

Tracker = Literal["tensorboard", "wandb", "trackio"]
"""Where metrics may be sent beside the run directory."""

Table = dict[str, Any]
"""Settings of another library, by name."""

RENAMED = {"sft": {"most_per_task": "max_per_task"}}
"""Settings that had another name once, by table: config files and run directories with the old name are still read."""


class Frozen(BaseModel):
    """Base of all settings: frozen, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EmbeddedModel(Frozen):
    """The model that is made on the spot where none is named: a byte-level BPE and a small Llama."""

    vocabulary: int = Field(default=2048, ge=300)
    """Tokens of the vocabulary, the 256 bytes included. A line of the corpus is often one token."""
    hidden: int = Field(default=256, ge=16)
    """Width of the residual stream."""
    layers: int = Field(default=2, ge=1)
    """Decoder layers. At equal cost two learn the corpus sooner than three or more (docs/log.md)."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; divides `hidden`."""
    intermediate: int = Field(default=704, ge=16)
    """Width of the feed-forward layers."""
    deviation: float = Field(default=0.05, gt=0)
    """Standard deviation of the first weights."""
    context: int = Field(default=1024, ge=128)
    """Longest sequence in tokens, prompt and answer together."""


SHAPES: dict[str, EmbeddedModel] = {
    "3m": EmbeddedModel(layers=3, context=2048),
    "60m": EmbeddedModel(
        vocabulary=16384, hidden=640, layers=10, heads=10, intermediate=1792, deviation=0.02, context=4096
    ),
}
"""Shapes of models made from scratch, by name: `embedded = "60m"`. Of 3 and 61 million parameters."""


class PolicySettings(Frozen):
    """How the policy's answers are made, in every stage and in `evaluate`."""

    backend: Literal["transformers", "vllm", "openai"] = "transformers"
    """`transformers`: in this process. `vllm`: vLLM's engine in this process (extra `vllm`, a GPU), or a vLLM server at
    `url` that serves the model. `openai`: any endpoint at `url` that speaks OpenAI's chat protocol; it can be
    evaluated, not trained."""
    url: str | None = None
    """Address up to and with the version, as in `http://localhost:8000/v1`."""
    name: str | None = None
    """Name of the model at `url`; None is the model's own."""
    batch: int = Field(default=32, ge=1)
    """Answers that `transformers` writes at a time; requests under way at an endpoint."""
    batching: Literal["static", "continuous", "compiled"] = "static"
    """`static`: batches sorted by length, each as long as its longest answer. `compiled`: the same with a cache of one
    size, for which transformers compiles the step from token to token on a GPU: the first batch takes longer.
    `continuous`: transformers' own continuous batching, in which an answer that ends makes room for another; on GPUs
    only."""
    chat: Table = Field(default_factory=dict)
    """Further arguments of the model's chat template, such as `enable_thinking`."""
    engine: Table = Field(default_factory=dict)
    """Further arguments of `vllm.LLM`."""

    @model_validator(mode="after")
    def _has_its_address(self) -> Self:
        if self.backend == "openai" and (self.url is None or self.name is None):
            raise ValueError("backend 'openai' needs url and name in [policy]")
        if self.backend == "transformers" and self.url is not None:
            raise ValueError("backend 'transformers' has no url; set backend to 'openai' or 'vllm' in [policy]")
        return self


class PromptSettings(Frozen):
    """What the policy is shown."""

    style: Literal["auto", "compact", "full"] = "auto"
    """`auto`: `compact` for the embedded model, `full` for any other."""
    exemplars: int = Field(default=2, ge=0)
    """Previous implementations in a prompt of stage 3, and of an evaluation that shows any."""
    max_tokens: int = Field(default=640, ge=32)
    """Longest prompt; exemplars that would make it longer are left out, the slowest first."""


def with_current_names(table: Mapping[str, Any], name: str) -> Table:
    """Return one table of the settings with old names replaced.

    >>> with_current_names({"most_per_task": 3}, "sft")
    {'max_per_task': 3}
    """
    return {RENAMED.get(name, {}).get(key, key): value for key, value in table.items()}


class SftSettings(Frozen):
    """Stage 1: supervised fine-tuning on correct programs of a suite's variants or of a corpus."""

    corpus: Path | None = None
    """Corpus to learn from instead of the suite's variants (docs/corpus.md): a .parquet or .jsonl file, or a folder
    that `cudal1-data corpus export` wrote."""
    stream: str | None = None
    """Learn from a stream of generated tasks instead, such as `generated?seed=0`: pairs are rendered by templates while
    the model trains, in any number and without a file. They are not judged."""
    workers: int | None = Field(default=None, ge=0)
    """Processes that render the stream; None is one for each core but one, 0 renders in the trainer's process."""
    unverified: bool = False
    """Also learn pairs of the corpus that are labelled `correct` but were not judged on the device."""
    max_per_task: int = Field(default=12, ge=1)
    """Maximum number of corpus pairs for each task; backends alternate, the fastest program first. 12: the paper has
    six writers with two programs each."""
    contexts: tuple[int, ...] = Field(default=(0, 0, 1, 2), min_length=1)
    """How many exemplars a training prompt shows: each pair draws one of these. Without any it is the prompt of the
    evaluation; with some, stage 1 learns the form of stage 3."""
    trl: Table = Field(
        default={
            "max_steps": 900,
            "per_device_train_batch_size": 4,
            "learning_rate": 2e-3,
            "lr_scheduler_type": "linear",
            "warmup_steps": 20,
            "adam_beta2": 0.98,
            "weight_decay": 0.0,
            "max_length": 1024,
            "logging_steps": 10,
            "save_steps": 100,
        }
    )
    """Settings of TRL's SFTConfig."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.corpus is not None and self.stream is not None:
            raise ValueError("corpus and stream are two sources of stage 1; leave one of them out of [sft]")
        return self

    @model_validator(mode="before")
    @classmethod
    def _reads_old_names(cls, values: Any) -> Any:
        return with_current_names(cast(Table, values), "sft") if isinstance(values, Mapping) else values


class SelfTrainSettings(Frozen):
    """Stage 2: self-training on sampled answers that were judged correct."""

    iterations: int = Field(default=1, ge=1)
    """Rounds of sampling and training."""
    samples: int = Field(default=2, ge=1)
    """Answers for each training task and iteration."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    max_per_task: int = Field(default=4, ge=1)
    """Maximum number of answers of a task that are learnt in an iteration; programs that differ in layout and comments
    only are one."""
    precision: Literal["training", "correct"] = "correct"
    """How answers are judged. `correct` times nothing: all that this stage asks for, in a fraction of the time. Stage 3
    then finds no speedups of these answers to show; its exemplars are measured before it begins."""
    trl: Table = Field(
        default={
            "max_steps": 60,
            "per_device_train_batch_size": 4,
            "learning_rate": 3e-4,
            "lr_scheduler_type": "linear",
            "warmup_steps": 5,
            "adam_beta2": 0.98,
            "weight_decay": 0.0,
            "max_length": 1024,
            "logging_steps": 10,
            "save_steps": 60,
        }
    )
    """Settings of TRL's SFTConfig; `max_steps` counts for each iteration."""


Arm = Literal["bucket", "random", "island", "none", "evolution", "vanilla"]
"""What stage 3 may be compared with: runs that differ in this one setting."""


class ContrastSettings(Frozen):
    """Stage 3: GRPO on prompts that show earlier programs with their scores."""

    arm: Arm = "bucket"
    """`bucket`, `island`, `random`: how exemplars are drawn from the archive. `none`: the same without exemplars.
    `evolution`: exemplars by buckets, but the weights stay as they are. `vanilla`: GRPO as TRL has it, without
    exemplars and with each group's rewards divided by their deviation in place of the smoothing."""
    tau: float = Field(default=1.0, gt=0)
    """Temperature of the draw of buckets, as a speedup."""
    width: float = Field(default=0.25, ge=0.001)
    """Width of a score bucket, as a speedup."""
    seed_programs: int = Field(default=6, ge=0)
    """Correct programs that the archive has of each training task before the stage, where so many are known: the
    task's variants and what templates write are measured. 0 measures none."""
    seed_buckets: int = Field(default=3, ge=1)
    """Score buckets that they fill, where the known programs do."""
    reward: Literal["speedup", "log", "milestone"] = "log"
    """What a verdict is worth; see `cudal1_env.reward`."""
    clip: float = Field(default=1.5, gt=0)
    """k of the reward smoothing: rewards are clipped to k rolling standard deviations."""
    window: int = Field(default=256, ge=2)
    """Rewards over which mean and deviation of the smoothing are taken, the latest."""
    plain_share: float = Field(default=0.5, ge=0, le=1)
    """Share of prompts without exemplars. With some, what is learnt from contrast also reaches such prompts, which
    the stage tables ask with; the paper has none."""
    trl: Table = Field(
        default={
            "max_steps": 32,
            "per_device_train_batch_size": 32,
            "num_generations": 8,
            "max_completion_length": 320,
            "learning_rate": 3e-4,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 2,
            "adam_beta2": 0.98,
            "weight_decay": 0.0,
            "loss_type": "grpo",
            "beta": 0.0,
            "top_k": 0,
            "temperature": 0.7,
            "logging_steps": 1,
            "mask_truncated_completions": True,
            "save_steps": 8,
        }
    )
    """Settings of TRL's GRPOConfig. A generation batch holds `generation_batch_size / num_generations` tasks."""


class EvaluationSettings(Frozen):
    """The stage table."""

    samples: int = Field(default=1, ge=1)
    """Answers for each task; the fastest correct one counts."""
    temperature: float = Field(default=0.0, ge=0)
    """0: greedy, and then `samples` must be 1."""
    exemplars: bool = False
    """Show exemplars from the archive, as stage 3 does. Without them every stage is asked the same question."""
    max_new_tokens: int = Field(default=320, ge=16)
    """Longest answer."""
    champions: int = Field(default=3, ge=0)
    """How many of a run's fastest programs are confirmed at its end: measured again at `report` precision, on inputs
    that chose nothing. The report shows these first, and says of others that they were not measured again."""
    train_tasks: int | None = Field(default=None, ge=0)
    """How many training tasks are evaluated, from the first on; None is all of them."""
    held_out_sizes: int | None = Field(default=16, ge=0)
    """How many held-out sizes of training tasks (a): the first of each task, then the second; None is all of them."""
    held_out_tasks: int | None = Field(default=None, ge=0)
    """How many held-out tasks (b); None is all of them."""
    reuse: bool = True
    """Look up a program that this run has already judged on the same task and machine instead of measuring it again.
    Stage tables never do: what a policy was selected on is no result."""

    @model_validator(mode="after")
    def _greedy_is_one(self) -> Self:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"samples is {self.samples} and temperature 0, so all answers would be equal; set a temperature, or "
                "samples to 1"
            )
        return self


class Settings(Frozen):
    """Everything that decides a run."""

    seed: int = Field(default=0, ge=0)
    """Seed of the model, the order of the data, and all sampling."""
    suite: str = "starter"
    """What `cudal1_data.load_suite` is asked for."""
    test_suite: str | None = None
    """Suite whose tasks are held out instead of the suite's own; training tasks that overlap it are left out."""
    train_on_test: bool = False
    """Train on test data all the same: on a suite that marks nothing for training (KernelBench), and on tasks that
    overlap the test suite. What the run writes is marked `trained_on_test`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run and the policy is trained; `auto`: what the machine has."""
    stages: tuple[StageName, ...] = Field(default=STAGES, min_length=1)
    """Which stages, in this order."""
    model: str | None = None
    """Folder or hub name of a causal language model; None makes the embedded one."""
    embedded: EmbeddedModel = EmbeddedModel()
    """Shape of the embedded model: a table, or one of the names `3m` and `60m`."""
    policy: PolicySettings = PolicySettings()
    """How answers are made."""
    peft: Table = Field(default_factory=dict)
    """Settings of peft's LoraConfig, such as `r = 16`; then adapters are trained, and merged when a stage ends. Empty:
    all weights are."""
    prompt: PromptSettings = PromptSettings()
    """What the policy is shown."""
    sft: SftSettings = SftSettings()
    """Stage 1."""
    self_train: SelfTrainSettings = SelfTrainSettings()
    """Stage 2."""
    contrast: ContrastSettings = ContrastSettings()
    """Stage 3."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """The stage table."""
    report_to: tuple[Tracker, ...] = ()
    """Trackers that TRL sends each stage's log to, some of `tensorboard` (files in the run directory's `trackers/`),
    `wandb` and `trackio` (their own environment variables say where); each must be installed. One that fails is dropped
    with a sentence, and the run goes on. By default metrics go nowhere but to `metrics.jsonl`."""
    judge: Table = Field(default_factory=dict)
    """Settings of `cudal1_env.judge.JudgeSettings`."""
    judge_url: str = ""
    """Service that judges (`cudal1-env serve`) instead of this machine; CUDAL1_TOKEN in the environment has its token.
    The table `judge` is then the service's to set."""

    @field_validator("embedded", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in SHAPES:
                raise ValueError(f"unknown shape {value!r}; it is a table or a name: {did_you_mean(value, SHAPES)}")
            return SHAPES[value]
        return value

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: tuple[StageName, ...]) -> tuple[StageName, ...]:
        if list(stages) != [name for name in STAGES if name in stages]:
            raise ValueError(
                f"stages are {', '.join(stages)}; name some of {', '.join(STAGES)}, each once and in this order"
            )
        return stages
