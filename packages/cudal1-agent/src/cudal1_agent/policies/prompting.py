"""Prompts for one policy: in its style, counted with its tokenizer, no longer than it can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal1_data import Device, Task
from cudal1_env.exemplars import Exemplar

from cudal1_agent.data.prompts import Style, build_prompt, fitting
from cudal1_agent.policies.embedded import is_embedded
from cudal1_agent.policies.transformers import load_tokenizer
from cudal1_agent.settings import PromptSettings


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

    def fitting(self, task: Task, exemplars: Sequence[Exemplar]) -> list[Exemplar]:
        """Return as many exemplars as the prompt for a task has room for, leaving out the slowest first."""
        return fitting(task.source, exemplars, style=self.style, device=self.device, count=self.count, limit=self.limit)

    def __call__(self, task: Task, exemplars: Sequence[Exemplar] = ()) -> str:
        """Return the prompt for a task that shows as many of the exemplars as fit; without any it has any length."""
        return build_prompt(task.source, self.fitting(task, exemplars), style=self.style, device=self.device)


def prompt_builder(model: str | Path, settings: PromptSettings, device: Device) -> PromptBuilder:
    """Return what makes the prompts for a model, counting with its own tokenizer."""
    tokenizer = load_tokenizer(model)
    style: Style = ("compact" if is_embedded(model) else "full") if settings.style == "auto" else settings.style
    return PromptBuilder(style, device, lambda text: len(tokenizer.tokenize(text)), settings.max_tokens)
