"""A deterministic evaluator and a small suite, for tests of everything around the judge."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cudal1_data import SizeFamily, Split, Suite, Task, Variant
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


class HashEvaluator:
    """Judges by the hash of task and text alone: the same program always gets the same verdict.

    Three of four programs are correct, at speedups from 0.5 to 4.
    """

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str]] = []

    def evaluate(self, task: Task, source: str, *, precision: Precision = "training") -> Evaluation:
        return self.evaluate_many([(task, source)], precision=precision)[0]

    def evaluate_many(self, jobs: Sequence[tuple[Task, str]], *, precision: Precision = "training") -> list[Evaluation]:
        return [self._judge(task, source, precision) for task, source in jobs]

    def close(self) -> None:
        pass

    def _judge(self, task: Task, source: str, precision: Precision) -> Evaluation:
        self.jobs.append((task.id, source))
        digest = hashlib.sha256(f"{task.id}{source}".encode()).digest()
        right = digest[0] % 4 != 0
        return evaluation(task, source, 0.5 * 8 ** (digest[1] / 255) if right else None, precision)


def evaluation(
    task: Task, source: str, speedup: float | None, precision: Precision = "training", identity: str | None = None
) -> Evaluation:
    """The record of a program; it is wrong where it has no speedup."""
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
