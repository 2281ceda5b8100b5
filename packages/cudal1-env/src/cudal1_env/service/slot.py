"""A slot holds one judge of a service: what it is at, and who may begin a new judge in it."""

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
"""Tasks whose oracle a judge keeps (`JudgeSettings.max_pools`)."""

TaskKey = tuple[str, str]
"""Id and reference of a task."""
State = Literal["starting", "idle", "judging", "out", "stopped"]


@dataclass(frozen=True)
class JudgeFacts:
    """What a service must know of a judge."""

    device: Device
    """Kind of device."""
    model: str
    """Of CPU or GPU."""


class SlotJudge(EachEvaluator, Protocol):
    """A judge as a slot holds it."""

    @property
    def facts(self) -> JudgeFacts:
        """What it judges on."""
        ...

    def take_disclosed(self) -> dict[str, str]:
        """Return the seeds (hex) that it will never use again, since the last call, by their commitments."""
        ...

    def close(self) -> None:
        """Stop it."""
        ...


class SlotStatus(BaseModel):
    """What a slot is at."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its GPU, or `cpu`."""
    state: State
    """`judging`: it holds the lease that `tasks` and `age_s` describe; `out`: out of service, `message` says why."""
    age_s: float
    """Seconds since it has been in this state."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks that it is judging programs of."""
    jobs: int = 0
    """Jobs of its lease without a verdict."""
    verdicts: int = 0
    """Verdicts that it made."""
    message: str = ""
    """Last fault."""


@dataclass
class Slot:
    """One place for a judge.

    Args:
        name: Its GPU, or `cpu`.
        begin: Starts a judge there; raises `MachineError` where that fails.
    """

    name: str
    begin: Callable[[], SlotJudge]
    state: State = "starting"
    since: float = field(default_factory=time.monotonic)
    message: str = ""
    faults: int = 0
    """In a row, without a verdict between them; those by programs that broke it before do not count."""
    blamed: set[str] = field(default_factory=set[str])
    """Draws of the jobs that it had when it broke, since its last verdict."""
    verdicts: int = 0
    facts: JudgeFacts | None = None
    """Of its first judge; None before that has begun."""
    tasks: tuple[str, ...] = ()
    jobs: int = 0
    recent: OrderedDict[TaskKey, None] = field(default_factory=OrderedDict[TaskKey, None])
    """Tasks whose oracle its judge keeps."""

    def enter(self, state: State) -> None:
        """Change the state."""
        self.state, self.since = state, time.monotonic()

    def lease(self, tasks: list[Task]) -> None:
        """Begin to judge a program of each of these tasks."""
        self.tasks, self.jobs = tuple(dict.fromkeys(task.id for task in tasks)), len(tasks)
        for task in tasks:
            self.recent[task.id, task.source] = None
            self.recent.move_to_end((task.id, task.source))
        while len(self.recent) > _RECENT:
            self.recent.popitem(last=False)
        self.enter("judging")

    @property
    def serving(self) -> bool:
        """Whether it takes jobs, now or when its judge has started."""
        return self.state in ("starting", "idle", "judging")

    def status(self) -> SlotStatus:
        """Return what it is at."""
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
