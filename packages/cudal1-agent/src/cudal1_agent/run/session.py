"""The session: what every phase of a run works with (settings, tasks, verdicts, prompts, run directory)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cudal1_data import Device, Task

from cudal1_agent.data.selection import CorpusSelection
from cudal1_agent.data.tasks import TaskSets, spread
from cudal1_agent.policies import Policy
from cudal1_agent.policies.make import make_policy
from cudal1_agent.policies.prompting import PromptBuilder, prompt_builder
from cudal1_agent.progress import Progress, Tick
from cudal1_agent.run.deadline import Deadline
from cudal1_agent.run.folder import BEGINNING, TRAINED_ON_TEST, Mark, RunFolder
from cudal1_agent.run.meter import Meter
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
    """The corpus that stage 1 learns from; None if it learns from something else or is finished."""
    began: Mark = BEGINNING
    """Positions of metrics and archive when the current phase began."""
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    """When to stop."""
    renew_inputs: Callable[[], None] = lambda: None
    """Makes the judge draw new inputs for every task, so that no program is judged on inputs that it was chosen on."""

    def __post_init__(self) -> None:
        """Mark all output of the run from now on if it trains on test data."""
        marked = self.tasks.trained_on_test
        self.folder.metrics.marks = {"trained_on_test": True} if marked else {}
        self.folder.archive.marks = TRAINED_ON_TEST if marked else ()

    @property
    def meter(self) -> Meter:
        """The meter of the run."""
        return self.verdicts.meter

    @cached_property
    def contrasted(self) -> tuple[Task, ...]:
        """The training tasks of stage 3."""
        return spread(self.tasks.train, self.settings.contrast.tasks)

    def policy(self, model: str | Path, progress: Tick) -> Policy:
        """Return the policy that generates answers with a model of this run."""

        def written(tokens: int) -> None:
            self.meter.count("generated_tokens", tokens)

        return make_policy(model, self.settings.policy, use_cpu=self.use_cpu, progress=progress, written=written)

    def prompts(self, model: str | Path) -> PromptBuilder:
        """Return the prompt builder for a model of this run."""
        return prompt_builder(model, self.settings.prompt, self.device)
