"""verifiers (v1): the taskset of a suite. Needs `verifiers` 0.4, which conflicts with vLLM in one environment.

verifiers finds a taskset by the name of a top-level module, such as `examples/cudal1_taskset.py`:

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
    """A task in a trace."""

    reference: str = ""
    """The reference program."""


class CudaTaskConfig(vf.TaskConfig):
    """Choice of the judge."""

    url: str = ""
    """URL of a service (`cudal1-env serve`); empty for this machine's judge."""
    suite: str = ""
    """Suite whose audit the judge uses."""


class CudaTask(vf.Task[CudaData, vf.State, CudaTaskConfig]):
    """One task: the reward of an answer is its measured speed."""

    @vf.reward(weight=1.0)
    async def speed(self, trace: vf.Trace) -> float:
        """Judge the last reply and return its reward: 0 if it is not correct; a machine failure is an error."""
        return reward_of(await self._judged(trace.last_reply))

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Return whether the reference, as `ModelNew`, is judged correct."""
        return (await self._judged(f"{self.data.reference}\n\nModelNew = Model\n")).correct

    async def _judged(self, answer: str) -> Evaluation:
        name = self.data.id or ""
        task = Task(id=name, source=self.data.reference, name=name, level=1, origin="verifiers")
        evaluator = shared_evaluator(self.config.url, self.config.suite)
        return (await asyncio.to_thread(evaluate_answers, evaluator, [(task, answer)]))[0]


class CudaConfig(vf.TasksetConfig):
    """Choice of the tasks and the judge."""

    suite: str = "starter"
    """Name, folder or file, as for `cudal1_data.load_suite`."""
    split: str = "train"
    """Split of the tasks; empty for all."""
    max_tasks: int = 0
    """Maximum number of tasks; 0 for all."""
    url: str = ""
    """URL of a service; empty for this machine's judge."""
    task: CudaTaskConfig = CudaTaskConfig()


class CudaTaskset(vf.Taskset[CudaTask, CudaConfig]):
    """The tasks of a suite, at the sizes of the device that judges."""

    def load(self) -> list[CudaTask]:
        """Return the tasks, without those whose answer is random."""
        config = self.config
        suite = load_suite(config.suite, device=shared_evaluator(config.url, config.suite).device)
        chosen = [one for one in suite if config.split in ("", one.split) and "random" not in one.tags]
        of_task = config.task.model_copy(update={"url": config.url, "suite": config.suite})

        def data_of(task: Task) -> CudaData:
            return CudaData(id=task.id, name=task.name, prompt=prompt_of(task), reference=task.source)

        return [CudaTask(data_of(one), of_task) for one in chosen[: config.max_tasks or None]]
