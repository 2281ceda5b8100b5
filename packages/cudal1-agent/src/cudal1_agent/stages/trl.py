"""Shared use of TRL's trainers by all stages: arguments, checkpoints and log."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import torch
from cudal1_data.suggest import did_you_mean
from pydantic import TypeAdapter, ValidationError
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cudal1_agent.errors import ConfigError
from cudal1_agent.progress import Tick
from cudal1_agent.run.checkpoints import STATE, Checkpoint
from cudal1_agent.run.files import replace_folder, write_aside
from cudal1_agent.run.meter import since
from cudal1_agent.run.metrics import Record
from cudal1_agent.run.session import Session
from cudal1_agent.stages.trackers import add_trackers

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import Trainer

Config = TypeVar("Config", bound=TrainingArguments)


OURS = frozenset(
    {
        "output_dir",
        "seed",
        "data_seed",
        "num_train_epochs",
        "save_strategy",
        "save_total_limit",
        "shuffle_dataset",
        "train_sampling_strategy",
        "resume_from_checkpoint",
        "remove_unused_columns",
    }
)
"""Settings of TRL that exact resumption depends on; a config file may not set them."""

ABOVE_ZERO = frozenset(
    {
        "max_steps",
        "save_steps",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "generation_batch_size",
        "steps_per_generation",
        "num_iterations",
        "max_length",
        "max_completion_length",
        "temperature",
    }
)
"""Settings of TRL that 0 makes useless. No setting of TRL means anything below 0 here: stages end by steps."""

_UNSTABLE = re.compile(r"epoch|num_tokens|step_time|runtime|per_second|flos")
"""Names in TRL's log whose values differ in a resumed run, or repeat the step."""


def arguments(config: type[Config], table: Mapping[str, Any], *, folder: Path, seed: int, use_cpu: bool) -> Config:
    """Return TRL's arguments from a table of a config file.

    Args:
        config: TRL's class of arguments.
        table: The table.
        folder: Where checkpoints go.
        seed: Seed of the trainer.
        use_cpu: Stay on the CPU.

    Raises:
        ConfigError: TRL does not know a name or rejects a value, or cudal1 sets the name itself.
    """
    if taken := sorted(OURS & table.keys()):
        raise ConfigError(
            f"remove {', '.join(taken)} from the trl table: cudal1 sets them itself, for exact resumption"
        )
    if "report_to" in table:
        raise ConfigError("move report_to from the trl table to the top of the config file: it is for all stages")
    types = get_type_hints(config)
    known = [field.name for field in fields(config)]
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"TRL's {config.__name__} has no setting {name!r}; {did_you_mean(name, known)}")
        # TRL checks few types, and a wrong one would end a run in the middle of a stage.
        try:
            TypeAdapter[object](types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(f"{name} in a trl table is {value!r}: {error.errors()[0]['msg']}") from error
        _check_number(name, value)
    if "max_steps" not in table:
        raise ConfigError("max_steps in a trl table is missing; set 1 or more: stages end by number of steps")
    values: dict[str, Any] = {
        "report_to": "none",
        "project": "cudal1",
        "disable_tqdm": True,
        "gradient_checkpointing": not use_cpu,
        "bf16": not use_cpu and torch.cuda.is_bf16_supported(),
        "dataloader_pin_memory": not use_cpu,
        **table,
        "use_cpu": use_cpu,
        "output_dir": str(folder),
        "seed": seed,
        "save_strategy": "steps",
        # Two: the older one is kept until the newer one has its mark.
        "save_total_limit": 2,
    }
    try:
        made = config(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL's {config.__name__} does not take these settings: {error}") from error
    if made.use_liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigError(
            "use_liger_kernel in a trl table needs the extra cudal1-agent[liger]; install it with: "
            "pip install 'liger-kernel>=0.8,<0.9'"
        )
    if made.save_steps % made.logging_steps:
        raise ConfigError(
            f"save_steps ({made.save_steps}) must be a multiple of logging_steps ({made.logging_steps}) in a trl "
            "table; otherwise a resumed run would lose what was logged between them"
        )
    return made


def _check_number(name: str, value: object) -> None:
    """Check the range of a number, which TRL does not check before the stage begins.

    Raises:
        ConfigError: It is not finite, or too small.
    """
    if not isinstance(value, int | float):
        return
    least = "above 0" if name in ABOVE_ZERO else "of 0 or more"
    if not (math.isfinite(value) and value >= 0) or (value == 0 and name in ABOVE_ZERO):
        raise ConfigError(f"{name} in a trl table is {value}; set a finite number {least}")


class Keeper(TrainerCallback):
    """Trainer callback: writes TRL's log into the metrics, and positions of metrics and archive into checkpoints."""

    def __init__(
        self, session: Session, stage: str, tick: Tick, extra: Callable[[], Record] = dict, *, every: int = 1
    ) -> None:
        """Keep the log and the checkpoints of a stage.

        Args:
            session: The run.
            stage: Name of the stage in the metrics.
            tick: Receives the step and the number of steps.
            extra: State of the stage that a resume from a checkpoint needs.
            every: Checkpoints are possible only at multiples of this many steps.
        """
        self._folder = session.folder
        self._deadline = session.deadline
        self._every = every
        self._meter = session.meter
        self._reading = self._meter.reading()
        self._tokens = 0.0
        self._stage = stage
        self._tick = tick
        self._extra = extra

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count, move the bar, and request a checkpoint if the time limit is reached."""
        self._meter.count("updates", 1)
        self._meter.count("examples", args.per_device_train_batch_size * args.gradient_accumulation_steps)
        self._tick(state.global_step, state.max_steps)
        if self._deadline.passed and state.global_step % self._every == state.global_step % args.logging_steps == 0:
            control.should_save = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the metrics of a step; TRL's summary at the end is left out."""
        logs: Mapping[str, Any] = kwargs["logs"]
        if "loss" not in logs:
            return
        values = {
            name: float(value) if math.isfinite(value) else None
            for name, value in logs.items()
            if isinstance(value, int | float) and not _UNSTABLE.search(name)
        }
        place = {"stage": self._stage, "step": state.global_step}
        self._folder.metrics.append({"event": "step", **place, **values})
        # TRL counts tokens from the beginning of the stage, or from where it was resumed.
        tokens = float(logs.get("num_tokens", self._tokens))
        self._meter.count("trained_tokens", round(max(tokens - self._tokens, 0.0)))
        self._tokens = tokens
        reading = self._meter.reading()
        self._folder.metrics.append({"event": "time", **place, **since(self._reading, reading)})
        self._reading = reading

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Complete a checkpoint, and stop if the time limit is reached."""
        assert args.output_dir is not None
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_aside(checkpoint / STATE, self._folder.position_now(self._extra()).model_dump_json())
        self._deadline.safe_point()


@contextlib.contextmanager
def unchanged_module(model: Any) -> Generator[None]:
    """Restore the module that defines a model's class after the block.

    Liger replaces layers in that module, so every model that is loaded later in the process would have them, also
    those that write answers.
    """
    names = vars(sys.modules[type(model).__module__])
    before = dict(names)
    try:
        yield
    finally:
        names.update(before)


def finish(session: Session, trainer: Trainer, checkpoint: Checkpoint | None, model: Path, stage: str) -> None:
    """Train to the end, from a checkpoint if there is one, and save the model.

    Args:
        session: The run.
        trainer: The trainer.
        checkpoint: Where to resume.
        model: Folder for the trained model.
        stage: Name of the stage; for trackers, the name of the model's parent folder is appended if it differs.
    """
    home = model.parent.name
    label = stage if home == stage else f"{stage}.{home}"
    add_trackers(trainer, session.settings.report_to, session.folder.path, label, session.progress.line)
    # It prints the log to standard output, which is for results.
    trainer.remove_callback(PrinterCallback)
    with session.meter.part("learning"):
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint is not None else None)
    aside = model.with_name(model.name + ".aside")
    if aside.exists():
        shutil.rmtree(aside)
    trained: Any = trainer.model
    if session.settings.peft:
        trained = trained.merge_and_unload()
    trained.save_pretrained(aside)
    assert trainer.processing_class is not None
    trainer.processing_class.save_pretrained(aside)
    replace_folder(aside, model)


def lora_of(peft: Mapping[str, Any]) -> LoraConfig | None:
    """Return the adapters that a run trains, None if it trains all weights.

    Raises:
        ConfigError: peft rejects the table.
    """
    from peft import LoraConfig

    if not peft:
        return None
    rank = peft.get("r", 8)
    if not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"r in the table [peft] is {rank!r}; set a whole number of 1 or more")
    try:
        return LoraConfig(**{"task_type": "CAUSAL_LM", **peft})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"peft's LoraConfig does not take the table [peft]: {error}") from error
