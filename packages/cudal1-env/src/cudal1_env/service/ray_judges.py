"""Judges on a Ray cluster: one actor for each GPU. Ray queues and repeats calls and restarts actors."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from cudal1_data import Task

from cudal1_env.errors import EnvError, MachineError, SettingsError, TaskError
from cudal1_env.evaluator import ByEach
from cudal1_env.gate import AuditReport
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.records import Evaluation, Precision
from cudal1_env.service.slot import JudgeFacts, Slot

_TOGETHER = 8
"""Maximum number of jobs in one call of an actor, all of one task."""
_RESTARTS = 20
"""How often Ray restarts an actor that died."""
_RETRIES = 2
"""How often Ray repeats a call during which an actor died; its jobs are judged again."""

Answers = tuple[list[Evaluation | str], dict[str, str]]
"""For each job the verdict, or why its task is refused; and the retired seeds, by commitment."""


class Actor:
    """A judge in a Ray actor. Ray gives it its own GPU (`CUDA_VISIBLE_DEVICES`)."""

    def __init__(self, settings: JudgeSettings, audits: Sequence[AuditReport]) -> None:
        from cudal1_env.judge import Judge

        self._judge = Judge(settings)
        for audit in audits:
            self._judge.learn(audit)

    def facts(self) -> JudgeFacts:
        """Return device and model."""
        return JudgeFacts(self._judge.device.name, self._judge.device.model)

    def judge(self, jobs: list[tuple[Task, str]], precision: Precision) -> Answers:
        """Judge jobs of one task."""
        found: dict[int, Evaluation | str] = {}

        def done(index: int, outcome: Evaluation | TaskError) -> None:
            found[index] = str(outcome) if isinstance(outcome, TaskError) else outcome

        try:
            self._judge.evaluate_each(jobs, done, precision=precision)
        except MachineError as error:
            raise MachineError(str(error)) from None  # without its cause, so that Ray can send it
        return [found[index] for index in range(len(jobs))], self._judge.take_disclosed()

    def close(self) -> None:
        """Stop the judge."""
        self._judge.close()


class RayJudges(ByEach):
    """An `Evaluator` whose judges are Ray actors; several threads may use it at once.

    Jobs of one task go to the actor with the fewest calls in progress; each actor's calls wait in Ray's queue.
    Ray restarts an actor that dies and repeats its call.

    Args:
        settings: Settings of each judge.
        judges: Number of actors.
        address: Address of the cluster; `auto` finds it, `local` starts one here.
        accelerator: GPU model as Ray names it (`H100`); no other GPUs are used.
        audits: Audits of the tasks.
        actor: Class that runs in an actor; tests replace it.

    Raises:
        SettingsError: Ray is not installed, or the actors have different models.
        MachineError: The cluster cannot be reached, or an actor does not start.
    """

    def __init__(
        self,
        settings: JudgeSettings,
        *,
        judges: int,
        address: str = "auto",
        accelerator: str | None = None,
        audits: Sequence[AuditReport] = (),
        actor: type[Any] = Actor,
    ) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise SettingsError("this needs the extra cudal1-env[ray]; install it with: pip install ray") from error
        self._ray = ray
        self._calls: dict[int, int] = dict.fromkeys(range(judges), 0)
        self._lock = threading.Lock()
        self._seeds: dict[str, str] = {}
        try:
            if not ray.is_initialized():
                ray.init(address=None if address == "local" else address, log_to_driver=False)
            on_gpu = settings.device != "cpu"
            remote = ray.remote(
                num_gpus=1 if on_gpu else 0,
                num_cpus=1,
                accelerator_type=accelerator,
                max_restarts=_RESTARTS,
                max_task_retries=_RETRIES,
                scheduling_strategy="DEFAULT" if on_gpu else "SPREAD",
            )(actor)
            self.actors = [remote.remote(settings, list(audits)) for _ in range(judges)]
            found = ray.get([one.facts.remote() for one in self.actors])
        except (ConnectionError, ray.exceptions.RayError) as error:
            raise MachineError(f"the Ray cluster {address!r} does not start {judges} judges: {error}") from error
        self.facts: JudgeFacts = found[0]
        if len(models := {one.model for one in found}) > 1:
            self.close()
            named = ", ".join(sorted(models))
            raise SettingsError(f"judges of one evaluator must have one GPU model, got {named}; name one accelerator")

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge many candidates and report each outcome; see `EachEvaluator`."""
        calls = {}
        for part in _by_task(jobs):
            actor = self._least_busy()
            calls[self.actors[actor].judge.remote([jobs[index] for index in part], precision)] = actor, part
        broken: EnvError | None = None
        while calls:
            (ready,), _ = self._ray.wait(list(calls), num_returns=1)
            actor, part = calls.pop(ready)
            with self._lock:
                self._calls[actor] -= 1
            try:
                outcomes, seeds = self._ray.get(ready)
            except (MachineError, self._ray.exceptions.RayError) as error:
                broken = MachineError(f"a judge on Ray broke: {error}")
                continue
            with self._lock:
                self._seeds |= seeds
            for index, outcome in zip(part, outcomes, strict=True):
                done(index, TaskError(outcome) if isinstance(outcome, str) else self._limited_by_audits(outcome))
        if broken is not None:
            raise broken

    def take_disclosed(self) -> dict[str, str]:
        """Return the seeds (hex) retired since the last call, by commitment."""
        with self._lock:
            seeds, self._seeds = self._seeds, {}
            return seeds

    def slots(self) -> list[Slot]:
        """Return a service's slots: one per actor, all of which share this evaluator."""
        return [Slot(f"ray-{number}", lambda: _Shared(self)) for number in range(len(self.actors))]

    def close(self) -> None:
        """Stop the judges; the cluster keeps running."""
        self._ray.wait(stopped := [one.close.remote() for one in self.actors], num_returns=len(self.actors), timeout=60)
        for one in self.actors:
            self._ray.kill(one)
        del stopped

    def _least_busy(self) -> int:
        with self._lock:
            actor = min(self._calls, key=self._calls.__getitem__)
            self._calls[actor] += 1
            return actor


class _Shared:
    """The evaluator for one slot of a service: closing it does not stop the judges of other slots."""

    def __init__(self, judges: RayJudges) -> None:
        self.facts = judges.facts
        self.evaluate_each = judges.evaluate_each
        self.take_disclosed = judges.take_disclosed

    def close(self) -> None:
        """Leave the actors to Ray."""


def _by_task(jobs: Sequence[tuple[Task, str]]) -> list[list[int]]:
    parts: dict[tuple[str, str], list[list[int]]] = {}
    for index, (task, _) in enumerate(jobs):
        of_task = parts.setdefault((task.id, task.source), [[]])
        if len(of_task[-1]) == _TOGETHER:
            of_task.append([])
        of_task[-1].append(index)
    return [part for of_task in parts.values() for part in of_task]
