"""The session: what every phase of a run works with (settings, tasks, verdicts, prompts, run directory)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cudal1_data import Device

from cudal1_agent.data.selection import CorpusSelection
from cudal1_agent.data.tasks import TaskSets
from cudal1_agent.policies.prompting import PromptBuilder, prompt_builder
from cudal1_agent.progress import Progress
from cudal1_agent.run.folder import TRAINED_ON_TEST, RunFolder
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import Settings


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
    selection: CorpusSelection | None = None
    """The corpus that stage 1 learns from; None if it learns the suite's variants or is finished."""

    def __post_init__(self) -> None:
        """Mark what the run writes from now on, where it trains on test data."""
        marked = self.tasks.trained_on_test
        self.folder.metrics.marks = {"trained_on_test": True} if marked else {}
        self.folder.archive.marks = TRAINED_ON_TEST if marked else ()

    def prompts(self, model: str | Path) -> PromptBuilder:
        """Return what makes the prompts for a model of this run."""
        return prompt_builder(model, self.settings.prompt, self.device)
