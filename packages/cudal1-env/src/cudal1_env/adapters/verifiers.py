"""verifiers (v1): the taskset of a suite. Needs `verifiers` 0.4, which does not fit beside vLLM in one environment.

verifiers finds a taskset by the name of a top-level module; `examples/cudal1_taskset.py` is one:

    PYTHONPATH=examples vf-validate cudal1_taskset --taskset.url http://127.0.0.1:8011 \
        --runtime.type subprocess
"""

# pyright: basic
from __future__ import annotations

import asyncio

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from cudal1_data import Task, load_suite

from cudal1_env.adapters import prompt_of, shared_evaluator
from cudal1_env.answers import evaluate_answers
from cudal1_env.records import Evaluation
from cudal1_env.reward import reward_of

__all__ = ["CudaTaskset"]


class CudaData(vf.TaskData):
    """What a trace holds of a task."""

    reference: str = ""
    """The reference program."""


class CudaTaskConfig(vf.TaskConfig):
    """Who judges."""

    url: str = ""
    """Service (`cudal1-env serve`); empty for this machine's judge."""


class CudaTask(vf.Task[CudaData, vf.State, CudaTaskConfig]):
    """One task: the reward of an answer is its measured speed."""

    @vf.reward(weight=1.0)
    async def speed(self, trace: vf.Trace) -> float:
        """Judge the last reply; an answer that is not correct is worth 0, a broken machine is an error."""
        return reward_of(await self._judged(trace.last_reply))

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Check that the reference under the name that is asked for is correct."""
        return (await self._judged(f"{self.data.reference}\n\nModelNew = Model\n")).correct

    async def _judged(self, answer: str) -> Evaluation:
        name = self.data.id or ""
        task = Task(id=name, source=self.data.reference, name=name, level=1, origin="verifiers")
        return (await asyncio.to_thread(evaluate_answers, shared_evaluator(self.config.url), [(task, answer)]))[0]


class CudaConfig(vf.TasksetConfig):
    """Which tasks."""

    suite: str = "starter"
    """What `cudal1_data.load_suite` takes."""
    split: str = "train"
    """Tasks of this split; empty for all."""
    max_tasks: int = 0
    """At most so many; 0 for all."""
    url: str = ""
    """Service that judges; empty for this machine's judge."""
    task: CudaTaskConfig = CudaTaskConfig()


class CudaTaskset(vf.Taskset[CudaTask, CudaConfig]):
    """The tasks of a suite, at the sizes of the device that judges."""

    def load(self) -> list[CudaTask]:
        """Return the tasks; those whose answer is random are left out."""
        config = self.config
        evaluator = shared_evaluator(config.url)
        suite = load_suite(config.suite, device=evaluator.device)
        chosen = [one for one in suite if config.split in ("", one.split) and "random" not in one.tags]
        of_task = config.task.model_copy(update={"url": config.url})
        return [
            CudaTask(CudaData(id=one.id, name=one.name, prompt=prompt_of(one), reference=one.source), of_task)
            for one in chosen[: config.max_tasks or None]
        ]
