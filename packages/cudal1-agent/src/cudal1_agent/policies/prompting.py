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
    control: frozenset[str] = frozenset()
    """Texts that the tokenizer reads as control tokens, such as the end of a turn: an exemplar with one could go on in
    the name of the system or the user, so it is not shown."""

    def fitting(self, task: Task, exemplars: Sequence[Exemplar]) -> list[Exemplar]:
        """Return the exemplars that fit into the prompt for a task, dropping the slowest first."""
        plain = [one for one in exemplars if not any(text in one.source for text in self.control)]
        return fitting(task.source, plain, style=self.style, device=self.device, count=self.count, limit=self.limit)

    def __call__(self, task: Task, exemplars: Sequence[Exemplar] = ()) -> str:
        """Return the prompt for a task with the exemplars that fit; without any, its length is not limited."""
        return build_prompt(task.source, self.fitting(task, exemplars), style=self.style, device=self.device)


def prompt_builder(model: str | Path, settings: PromptSettings, device: Device) -> PromptBuilder:
    """Return the prompt builder for a model, which counts tokens with the model's tokenizer."""
    tokenizer = load_tokenizer(model)
    style: Style = ("compact" if is_embedded(model) else "full") if settings.style == "auto" else settings.style
    control = frozenset(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return PromptBuilder(style, device, lambda text: len(tokenizer.tokenize(text)), settings.max_tokens, control)
