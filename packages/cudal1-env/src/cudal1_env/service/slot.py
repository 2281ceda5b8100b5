"""A slot of a service: its judge, its state, and how to start a new judge."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cudal1_data import Task
from pydantic import BaseModel, ConfigDict

from cudal1_env.evaluator import EachEvaluator
from cudal1_env.records import Device

_RECENT = 12
"""Number of tasks whose oracle a judge keeps (`JudgeSettings.max_pools`)."""

TaskKey = tuple[str, str]
"""Id and reference of a task."""
State = Literal["starting", "idle", "judging", "out", "stopped"]


@dataclass(frozen=True)
class JudgeFacts:
    """What a judge runs on."""

    device: Device
    """Kind of device."""
    model: str
    """CPU or GPU model."""


class SlotJudge(EachEvaluator, Protocol):
    """A judge in a slot."""

    @property
    def facts(self) -> JudgeFacts:
        """Device and model."""
        ...

    def take_disclosed(self) -> dict[str, str]:
        """Return the seeds (hex) retired since the last call, by commitment."""
        ...

    def close(self) -> None:
        """Stop the judge."""
        ...


class SlotStatus(BaseModel):
    """State of a slot."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its GPU, `cpu`, or its number on Ray."""
    state: State
    """`judging`: it holds the lease that `tasks` and `age_s` describe; `out`: out of service, `message` says why."""
    age_s: float
    """Seconds in this state."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks of its lease."""
    jobs: int = 0
    """Jobs of its lease without a verdict."""
    verdicts: int = 0
    """Number of its verdicts."""
    message: str = ""
    """Last fault."""


@dataclass
class Slot:
    """A place for one judge.

    Args:
        name: Its GPU, `cpu`, or its number on Ray.
        begin: Starts a judge there; raises `MachineError` if that fails.
    """

    name: str
    begin: Callable[[], SlotJudge]
    state: State = "starting"
    since: float = field(default_factory=time.monotonic)
    message: str = ""
    faults: int = 0
    """Consecutive faults without a verdict; those with only `blamed` programs do not count."""
    blamed: set[str] = field(default_factory=set[str])
    """Draws of the jobs that it had at faults since its last verdict."""
    verdicts: int = 0
    facts: JudgeFacts | None = None
    """Facts of its first judge; None before that has started."""
    tasks: tuple[str, ...] = ()
    jobs: int = 0
    recent: OrderedDict[TaskKey, None] = field(default_factory=OrderedDict[TaskKey, None])
    """Tasks whose oracle its judge keeps."""

    def enter(self, state: State) -> None:
        """Change the state."""
        self.state, self.since = state, time.monotonic()

    def lease(self, tasks: list[Task]) -> None:
        """Begin a lease with one job for each entry of `tasks`."""
        self.tasks, self.jobs = tuple(dict.fromkeys(task.id for task in tasks)), len(tasks)
        for task in tasks:
            self.recent[task.id, task.source] = None
            self.recent.move_to_end((task.id, task.source))
        while len(self.recent) > _RECENT:
            self.recent.popitem(last=False)
        self.enter("judging")

    @property
    def serving(self) -> bool:
        """Whether it takes jobs, now or once its judge has started."""
        return self.state in ("starting", "idle", "judging")

    def status(self) -> SlotStatus:
        """Return its state."""
        judging = self.state == "judging"
        return SlotStatus(
            name=self.name,
            state=self.state,
            age_s=round(time.monotonic() - self.since, 3),
            tasks=self.tasks if judging else (),
            jobs=self.jobs if judging else 0,
            verdicts=self.verdicts,
            message=self.message,
        )
