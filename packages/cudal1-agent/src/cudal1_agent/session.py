"""What every phase of a run works with: settings, tasks, verdicts, prompts, the run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal1_data import Device, Suite, Task
from cudal1_env.exemplars import Exemplar

from cudal1_agent.errors import CorpusError
from cudal1_agent.model import is_embedded
from cudal1_agent.progress import Progress
from cudal1_agent.prompts import Style, fit_prompt
from cudal1_agent.rundir import RunFolder
from cudal1_agent.settings import EvaluationSettings, PromptSettings, Settings
from cudal1_agent.verdicts import Verdicts

TRAIN, HELD_OUT_SIZES, HELD_OUT_TASKS = "train", "held_out_sizes", "held_out_tasks"

GROUPS = {
    TRAIN: "training tasks",
    HELD_OUT_SIZES: "held-out sizes (a)",
    HELD_OUT_TASKS: "held-out tasks (b)",
}
"""Groups of tasks of the stage table, and what they are called."""


@dataclass(frozen=True)
class TaskSets:
    """The tasks of a run."""

    train: tuple[Task, ...]
    """What is trained on."""
    groups: dict[str, tuple[Task, ...]]
    """What is evaluated, by group."""


def choose_tasks(suite: Suite, device: Device, evaluation: EvaluationSettings) -> TaskSets:
    """Sort the tasks of a suite into training and evaluation.

    Tasks tagged `random` are left out: they have no right answer. A suite that marks nothing for training
    (KernelBench does not) is trained on as a whole, as in the paper, and nothing of it is held out.

    Raises:
        CorpusError: No task is left.
    """
    usable = suite.where(lambda task: "random" not in task.tags)
    train, test = tuple(usable.train), tuple(usable.test)
    if not train:
        train, test = test, ()
    if not train:
        raise CorpusError(
            f"expected tasks with a right answer in the suite {suite.name!r}, found none among its {len(suite)}"
        )
    by_size = [task.held_out(device) for task in train]
    most = max((len(sizes) for sizes in by_size), default=0)
    sizes = tuple(found[index] for index in range(most) for found in by_size if index < len(found))
    return TaskSets(
        train=train,
        groups={
            TRAIN: train[: evaluation.train_tasks],
            HELD_OUT_SIZES: sizes[: evaluation.held_out_sizes],
            HELD_OUT_TASKS: test[: evaluation.held_out_tasks],
        },
    )


@dataclass(frozen=True)
class PromptBuilder:
    """Makes the prompts of one policy."""

    style: Style
    """How many words it uses."""
    device: Device
    """Where programs run."""
    count: Callable[[str], int]
    """Number of tokens in a text."""
    limit: int
    """Most tokens of a prompt."""

    def __call__(self, task: Task, exemplars: Sequence[Exemplar] = ()) -> str:
        """Return the prompt for a task that shows as many of the exemplars as fit."""
        return fit_prompt(
            task.source, exemplars, style=self.style, device=self.device, count=self.count, limit=self.limit
        )


def prompt_builder(model: str | Path, settings: PromptSettings, device: Device) -> PromptBuilder:
    """Return what makes the prompts for a model, counting with its own tokenizer."""
    from cudal1_agent.policies.transformers import load_tokenizer

    tokenizer = load_tokenizer(model)
    style: Style = ("compact" if is_embedded(model) else "full") if settings.style == "auto" else settings.style
    return PromptBuilder(style, device, lambda text: len(tokenizer.tokenize(text)), settings.max_tokens)


@dataclass
class Session:
    """A run in this process."""

    settings: Settings
    folder: RunFolder
    device: Device
    """Where programs run."""
    use_cpu: bool
    """Whether the policy stays on the CPU."""
    tasks: TaskSets
    verdicts: Verdicts
    progress: Progress

    def prompts(self, model: str | Path) -> PromptBuilder:
        """Return what makes the prompts for a model of this run."""
        return prompt_builder(model, self.settings.prompt, self.device)
