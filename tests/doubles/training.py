"""Doubles of tests/agent: a small suite and session, a deterministic evaluator, and a policy that follows a script."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cudal1_agent.data.tasks import choose_tasks
from cudal1_agent.policies.embedded import make_embedded
from cudal1_agent.progress import Progress
from cudal1_agent.run.folder import RunFolder
from cudal1_agent.run.session import Session
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import EmbeddedModel, Settings
from cudal1_data import SizeFamily, Split, Suite, Task, Variant
from cudal1_env import MachineError, TaskError
from cudal1_env.evaluator import ByEach
from cudal1_env.records import Evaluation, Latency, Precision, Speedup, Status

REFERENCE = """\
import torch
import torch.nn as nn

N = 64


class Model(nn.Module):
    def forward(self, x):
        return {expression}


def get_inputs():
    return [torch.rand(N)]


def get_init_inputs():
    return []
"""

PROGRAM = """\
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return {expression}
"""


def variant(name: str, expression: str, technique: str = "rewrite") -> Variant:
    return Variant(name=name, source=PROGRAM.format(expression=expression), techniques=(technique,))


def task(name: str, expression: str, others: Sequence[str], split: Split = "train") -> Task:
    return Task(
        id=f"toy/{name}",
        source=REFERENCE.format(expression=expression),
        name=name,
        level=1,
        origin="file",
        split=split,
        sizes={"cpu": SizeFamily(default={"N": 64}, held_out=({"N": 48}, {"N": 96}))},
        variants=tuple(variant(f"v{number}", other) for number, other in enumerate(others)),
    )


def suite() -> Suite:
    """Three tasks to train on, one held out."""
    return Suite(
        "toy",
        [
            task("double", "x * 2", ["x + x", "torch.add(x, x)", "x.mul(2)"]),
            task("square", "x ** 2", ["x * x", "x.square()", "torch.mul(x, x)"]),
            task("half", "x / 2", ["x * 0.5", "x.div(2)", "torch.div(x, 2)"]),
            task("negative", "-x", ["x.neg()"], split="test"),
        ],
    )


class HashEvaluator(ByEach):
    """Judges by the hash of task and text alone: the same program always gets the same verdict.

    Three of four programs are correct, at speedups from 0.5 to 4.
    """

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str]] = []

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        for index, (task, source) in enumerate(jobs):
            try:
                outcome: Evaluation | TaskError = self._limited_by_audits(self._judge(task, source, precision))
            except TaskError as error:
                outcome = error
            done(index, outcome)

    def close(self) -> None:
        pass

    def _judge(self, task: Task, source: str, precision: Precision) -> Evaluation:
        self.jobs.append((task.id, source))
        digest = hashlib.sha256(f"{task.id}{source}".encode()).digest()
        correct = digest[0] % 4 != 0
        return evaluation(task, source, 0.5 * 8 ** (digest[1] / 255) if correct else None, precision)


class BreakingEvaluator(HashEvaluator):
    """The same, until the machine breaks after some programs."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self._after = after

    def _judge(self, task: Task, source: str, precision: Precision) -> Evaluation:
        if len(self.jobs) == self._after:
            raise MachineError("the double breaks here")
        return super()._judge(task, source, precision)


class RefusingEvaluator(HashEvaluator):
    """The same, but it cannot judge some tasks."""

    def __init__(self, refused: Collection[str]) -> None:
        super().__init__()
        self._refused = refused
        self.asked = 0

    def _judge(self, task: Task, source: str, precision: Precision) -> Evaluation:
        if task.id in self._refused:
            self.asked += 1
            raise TaskError(f"{task.id}: the double refuses it")
        return super()._judge(task, source, precision)


def judged(verdicts: Sequence[Evaluation | None]) -> list[Evaluation]:
    """The verdicts, none of which may be missing."""
    found = [one for one in verdicts if one is not None]
    assert len(found) == len(verdicts)
    return found


def evaluation(
    task: Task, source: str, speedup: float | None, precision: Precision = "training", identity: str | None = None
) -> Evaluation:
    """The record of a program; without a speedup it is incorrect."""
    status = Status.CORRECT if speedup is not None else Status.WRONG_OUTPUT
    if precision == "correct":
        speedup = None
    latency = Latency(median_ms=2.0, low_ms=1.9, high_ms=2.1, samples=8) if speedup is not None else None
    return Evaluation(
        id=identity or hashlib.sha256(f"{task.id}\n{source}\n{precision}".encode()).hexdigest(),
        created_at="2026-11-21T12:00:00+00:00",
        task=task.id,
        task_sha256=hashlib.sha256(task.source.encode()).hexdigest(),
        task_source=task.source,
        source=source,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        status=status,
        message="the double says so",
        speedup=Speedup(low=speedup * 0.98, point=speedup, high=speedup * 1.02) if speedup is not None else None,
        reference=latency,
        candidate=latency,
        precision=precision,
    )


class ScriptedPolicy:
    """Answers each prompt with the next programs of a script, and records how it was asked."""

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self.answers = [list(given) for given in answers]
        self.prompts: list[str] = []
        self.samplings: list[dict[str, float]] = []
        self.closed = False

    def sample(
        self, prompts: Sequence[str], n: int, *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[list[str]]:
        assert len(prompts) == len(self.answers)
        self.prompts.extend(prompts)
        self.samplings.append({"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed})
        return [given[:n] for given in self.answers]

    def close(self) -> None:
        self.closed = True


SMALL_MODEL = EmbeddedModel(vocabulary=400, hidden=32, layers=1, heads=2, intermediate=64, context=512)


@contextmanager
def session(run_dir: Path, settings: Settings) -> Iterator[Session]:
    """A run on the small suite, with a small embedded model in it, judged by the hash of programs."""
    tasks = choose_tasks(suite(), "cpu", settings.evaluation)
    with RunFolder.begin(run_dir, settings) as folder:
        make_embedded(run_dir / "model", tasks.train, settings.embedded, seed=settings.seed)
        verdicts = Verdicts(HashEvaluator(), folder.archive)
        yield Session(settings, folder, "cpu", True, tasks, verdicts, Progress())
