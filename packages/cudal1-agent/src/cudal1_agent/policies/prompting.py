"""Prompts for one policy: in its style, with as many exemplars as its token limit allows."""

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
    """Builder of the prompts of one policy."""

    style: Style
    """Style of the prompts."""
    device: Device
    """Where programs run."""
    count: Callable[[str], int]
    """Number of tokens in a text."""
    limit: int
    """Maximum number of tokens in a prompt with exemplars."""

    def fitting(self, task: Task, exemplars: Sequence[Exemplar]) -> list[Exemplar]:
        """Return the exemplars that fit into the prompt for a task, dropping the slowest first."""
        return fitting(task.source, exemplars, style=self.style, device=self.device, count=self.count, limit=self.limit)

    def __call__(self, task: Task, exemplars: Sequence[Exemplar] = ()) -> str:
        """Return the prompt for a task with the exemplars that fit; without any, its length is not limited."""
        return build_prompt(task.source, self.fitting(task, exemplars), style=self.style, device=self.device)


def prompt_builder(model: str | Path, settings: PromptSettings, device: Device) -> PromptBuilder:
    """Return the prompt builder for a model, which counts tokens with the model's tokenizer."""
    tokenizer = load_tokenizer(model)
    style: Style = ("compact" if is_embedded(model) else "full") if settings.style == "auto" else settings.style
    return PromptBuilder(style, device, lambda text: len(tokenizer.tokenize(text)), settings.max_tokens)
