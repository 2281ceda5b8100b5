"""Settings of a run: frozen, typed, read from TOML, written into the run directory.

The defaults are the quickstart, which `cudal1-agent train` runs without arguments. `configs/quickstart.toml` of the
source repository lists them; a test checks that the two are equal. Tables named `trl` go to TRL's configuration classes
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

from cudal1_data.suggest import did_you_mean
from cudal1_data.techniques import Backend
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

StageName = Literal["sft", "self_train", "contrast"]
STAGES: tuple[StageName, ...] = ("sft", "self_train", "contrast")

Tracker = Literal["tensorboard", "wandb", "trackio"]
"""Trackers that can receive metrics in addition to the run directory."""

Table = dict[str, Any]
"""Settings of another library, by name."""

RENAMED = {"sft": {"most_per_task": "max_per_task"}}
"""Old names of settings and their current names, by table. Files with old names can still be read."""


class Frozen(BaseModel):
    """Base of all settings: frozen, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EmbeddedModel(Frozen):
    """Shape of the model that is made if none is named: a byte-level BPE and a small Llama."""

    vocabulary: int = Field(default=2048, ge=300)
    """Vocabulary size in tokens, including the 256 bytes. A line of the corpus is often one token."""
    hidden: int = Field(default=256, ge=16)
    """Width of the residual stream."""
    layers: int = Field(default=2, ge=1)
    """Decoder layers. At equal cost, two learn the corpus sooner than three or more (docs/log.md)."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; `hidden` is a multiple of twice their number."""
    intermediate: int = Field(default=704, ge=16)
    """Width of the feed-forward layers."""
    deviation: float = Field(default=0.05, gt=0)
    """Standard deviation of the initial weights."""
    context: int = Field(default=1024, ge=128)
    """Longest sequence in tokens, prompt and answer together."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden is {self.hidden} and heads {self.heads}, but each head needs a whole, even number of values; "
                "set hidden to a multiple of twice the heads"
            )
        return self


SHAPES: dict[str, EmbeddedModel] = {
    "3m": EmbeddedModel(layers=3, context=2048),
    "60m": EmbeddedModel(
        vocabulary=16384, hidden=640, layers=10, heads=10, intermediate=1792, deviation=0.02, context=6144
    ),
}
"""Named shapes of the embedded model (`embedded = "60m"`), of 3 and 61 million parameters."""


class PolicySettings(Frozen):
    """How answers are generated, in every stage and in `evaluate`."""

    backend: Literal["transformers", "vllm", "openai"] = "transformers"
    """`transformers`: in this process. `vllm`: vLLM's engine in this process (needs the extra `vllm` and a GPU), or a
    vLLM server at `url` that serves the model. `openai`: any endpoint at `url` with OpenAI's chat API; its model can
    be evaluated, not trained."""
    url: str | None = None
    """Address including the version, such as `http://localhost:8000/v1`."""
    name: str | None = None
    """Name of the model at `url`; None uses its folder or hub name."""
    batch: int = Field(default=32, ge=1)
    """Maximum answers per batch with `transformers`, in batches of equal size; concurrent requests to an endpoint."""
    batching: Literal["static", "continuous", "compiled"] = "static"
    """`static`: batches sorted by prompt length; each runs until its longest answer ends. `compiled`: the same with a
    cache of fixed size, for which transformers compiles the decoding step on a GPU; the first batch takes longer, so
    short answers to few prompts are `static`.
    `continuous`: transformers' continuous batching, in which a finished answer makes room for another; GPU only."""
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
    """Settings of the prompts."""

    style: Literal["auto", "canonical", "compact", "full"] = "auto"
    """`auto`: `compact` for the embedded model, `full` for any other. `canonical`: compact, with references in a form
    that does not depend on their authors' names and settings (`data/canonical.py`); for models that learn a stream."""
    exemplars: int = Field(default=2, ge=0)
    """Maximum number of previous implementations in a prompt, in stage 3 and in evaluations that show them."""
    max_tokens: int = Field(default=640, ge=32)
    """Longest prompt in tokens; exemplars that do not fit are dropped, the slowest first."""


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
    stream: str | tuple[str, ...] | None = Field(default=None, min_length=1)
    """Stream of generated tasks to learn from instead, such as `generated?seed=0`, or several that alternate. Templates
    render any number of pairs while the model trains, without a file. The pairs are not judged."""
    respelled: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the stream's tasks that are written as other people would write them: with layers for functions, other
    formulas, one operation a line. Held-out tasks are not."""
    taught: tuple[Backend, ...] = ()
    """Backends of the kernels that a stream teaches as answers; all that templates write for the device by default. The
    others may be exemplars."""
    workers: int | None = Field(default=None, ge=0)
    """Processes that render the stream; None uses all cores but one, 0 the trainer's process."""
    unverified: bool = False
    """Also learn corpus pairs that are labelled `correct` but were not judged on the device."""
    max_per_task: int = Field(default=12, ge=1)
    """Maximum number of corpus pairs per task; backends alternate, the fastest program first. The paper has 12: six
    writers with two programs each."""
    contexts: tuple[int, ...] = Field(default=(0, 0, 1, 2), min_length=1)
    """Numbers of exemplars in a training prompt; each pair draws one of them. Prompts with 0 have the form of the
    evaluation, the others that of stage 3."""
    trl: Table = Field(
        default={
            "max_steps": 780,
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
    """Maximum number of answers learnt per task and iteration. Programs that differ only in layout and comments count
    once."""
    precision: Literal["training", "correct"] = "correct"
    """Precision of the verdicts. This stage needs only correctness, and `correct` takes a fraction of the time because
    it does not time programs. Stage 3 then has no speedups of these answers to show; its exemplars are measured before
    it begins."""
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
    """Settings of TRL's SFTConfig; `max_steps` applies to each iteration."""


Arm = Literal["bucket", "random", "island", "none", "evolution", "vanilla"]
"""Variants of stage 3, compared in runs that differ only in this setting."""


class ContrastSettings(Frozen):
    """Stage 3: GRPO on prompts that show earlier programs with their scores."""

    arm: Arm = "bucket"
    """`bucket`, `island`, `random`: how exemplars are drawn from the archive. `none`: no exemplars. `evolution`: as
    `bucket`, without weight updates. `vanilla`: TRL's GRPO without exemplars; rewards are divided by each group's
    standard deviation instead of being smoothed."""
    tau: float = Field(default=1.0, gt=0)
    """Temperature for drawing buckets, in units of speedup."""
    width: float = Field(default=0.25, ge=0.001)
    """Width of a score bucket, in units of speedup."""
    seed_programs: int = Field(default=6, ge=0)
    """Correct programs per training task in the archive before the stage, if that many are known: the task's variants
    and template programs are measured. 0 measures none."""
    seed_buckets: int = Field(default=3, ge=1)
    """Score buckets that these programs fill, if the known programs can."""
    tasks: int | None = Field(default=5, ge=1)
    """Number of training tasks that this stage uses, at equal distances in the suite; None, or a larger number than
    there are, uses all. Before the first step, `seed_programs` programs of each are measured."""
    reward: Literal["speedup", "log", "milestone"] = "log"
    """Reward of a verdict; see `cudal1_env.reward`."""
    clip: float = Field(default=1.5, gt=0)
    """k of the reward smoothing: rewards are clipped to k rolling standard deviations."""
    window: int = Field(default=256, ge=2)
    """Number of latest rewards from which the smoothing takes mean and standard deviation."""
    plain_share: float = Field(default=0.5, ge=0, le=1)
    """Fraction of prompts without exemplars. They transfer what contrast teaches to plain prompts, which the stage
    tables use. The paper has none."""
    trl: Table = Field(
        default={
            "max_steps": 6,
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
            "save_steps": 3,
        }
    )
    """Settings of TRL's GRPOConfig. A generation batch holds `generation_batch_size / num_generations` tasks."""


class EvaluationSettings(Frozen):
    """Settings of the stage table."""

    samples: int = Field(default=1, ge=1)
    """Answers for each task; the fastest correct one counts."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 is greedy and requires `samples = 1`."""
    exemplars: bool = False
    """Show exemplars from the archive, as stage 3 does. Without them, all stages get the same prompts."""
    max_new_tokens: int = Field(default=320, ge=16)
    """Longest answer in tokens."""
    champions: int = Field(default=1, ge=0)
    """Number of a run's fastest programs that are measured again at its end, at `report` precision and on inputs on
    which no program was chosen. The report marks other programs as not measured again."""
    train_tasks: int | None = Field(default=6, ge=0)
    """Number of training tasks evaluated, at equal distances in the suite; None evaluates all."""
    held_out_sizes: int | None = Field(default=6, ge=0)
    """Number of held-out sizes of training tasks (a) evaluated, at equal distances; None evaluates all."""
    held_out_tasks: int | None = Field(default=3, ge=0)
    """Number of held-out tasks (b) evaluated, at equal distances; None evaluates all."""
    reuse: bool = True
    """Look up a program that this run has already judged on the same task and machine instead of measuring it again.
    Stage tables never use verdicts from before the table, because the policy was selected on them."""

    @model_validator(mode="after")
    def _greedy_is_one(self) -> Self:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"samples is {self.samples} and temperature 0, so all answers would be equal; set a temperature, or "
                "samples to 1"
            )
        return self


class Settings(Frozen):
    """All settings of a run."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the model, the order of the data, and all sampling."""
    suite: str = "starter"
    """Name of the suite for `cudal1_data.load_suite`."""
    test_suite: str | None = None
    """Suite whose tasks are held out instead of the suite's own; training tasks that overlap it are left out."""
    train_on_test: bool = False
    """Allow training on test data: on a suite without training tasks (KernelBench), and on tasks that overlap the test
    suite. All output of the run is marked `trained_on_test`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the programs and the policy; `auto` uses a GPU if there is one."""
    stages: tuple[StageName, ...] = Field(default=STAGES, min_length=1)
    """Stages to run, in this order."""
    model: str | None = None
    """Folder or hub name of a causal language model; None makes the embedded one."""
    embedded: EmbeddedModel = EmbeddedModel()
    """Shape of the embedded model: a table, or one of the names `3m` and `60m`."""
    policy: PolicySettings = PolicySettings()
    """How answers are generated."""
    peft: Table = Field(default_factory=dict)
    """Settings of peft's LoraConfig, such as `r = 16`, to train adapters that are merged at the end of each stage.
    Empty trains all weights."""
    prompt: PromptSettings = PromptSettings()
    """The prompts."""
    sft: SftSettings = SftSettings()
    """Stage 1."""
    self_train: SelfTrainSettings = SelfTrainSettings()
    """Stage 2."""
    contrast: ContrastSettings = ContrastSettings()
    """Stage 3."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """The stage table."""
    report_to: tuple[Tracker, ...] = ()
    """Trackers that receive TRL's log of each stage: any of `tensorboard` (files in the run directory's `trackers/`),
    `wandb` and `trackio` (configured by their environment variables). Each must be installed. If one fails, it is
    dropped with a message and the run continues. By default, metrics go only to `metrics.jsonl`."""
    judge: Table = Field(default_factory=dict)
    """Settings of `cudal1_env.judge.JudgeSettings`."""
    judge_url: str = ""
    """Address of a judge service (`cudal1-env serve`) to use instead of this machine; the environment variable
    CUDAL1_TOKEN holds its token. The table `judge` must then be empty."""

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
