"""A deterministic evaluator and the records it makes, for tests of everything around the judge."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from cudal1_data import Split, Suite, Task
from cudal1_data.hashes import digest
from cudal1_env.errors import MachineError, TaskError
from cudal1_env.evaluator import ByEach
from cudal1_env.records import Evaluation, Latency, OutputError, Precision, Seconds, Speedup, Status

REFERENCE = """\
import torch

N = 4


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(N)]


def get_init_inputs():
    return []
"""

_ids = itertools.count(1)


def program(speedup: float = 1.0, note: str = "") -> str:
    """A program that the double calls correct, at this speedup."""
    return f"# speedup {speedup!r} {note}\nclass ModelNew:\n    pass\n"


def evaluation(
    task: str = "toy/add",
    source: str | None = None,
    status: Status = Status.CORRECT,
    speedup: float = 1.0,
    *,
    spread: float = 0.02,
    task_source: str = REFERENCE,
    errors: tuple[OutputError, ...] = (),
    seed_commitment: str | None = None,
    identity: str | None = None,
) -> Evaluation:
    source = program(speedup) if source is None else source
    right = status is Status.CORRECT
    return Evaluation(
        id=identity or f"evaluation-{next(_ids)}",
        created_at="2026-11-21T12:00:00+00:00",
        task=task,
        task_sha256=digest(task_source),
        task_source=task_source,
        source=source,
        source_sha256=digest(source),
        status=status,
        message=f"the double says {status}",
        speedup=Speedup(low=speedup * (1 - spread), point=speedup, high=speedup * (1 + spread)) if right else None,
        reference=Latency(median_ms=6.0, low_ms=5.0, high_ms=7.0, samples=8) if right else None,
        candidate=Latency(median_ms=6.0 / speedup, low_ms=5.0 / speedup, high_ms=7.0 / speedup, samples=8)
        if right
        else None,
        errors=errors,
        precision="training",
        seconds=Seconds(total_s=0.5, build_s=0.125),
        seed_commitment=seed_commitment,
    )


class RuleEvaluator(ByEach):
    """Judges by the text alone: `# speedup 2.0` counts, `# status CRASH` too, `# broken machine` raises.

    References with `# refused` are those of tasks that cannot be judged.
    """

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str]] = []
        self.batches: list[int] = []
        self.closed = False

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        assert not self.closed
        self.batches.append(len(jobs))
        self.jobs += [(task.id, source) for task, source in jobs]
        update: dict[str, Any] = {"precision": precision}
        if precision == "correct":
            update |= {"speedup": None, "reference": None, "candidate": None}
        for index, (task, source) in enumerate(jobs):
            try:
                found = Evaluation.model_validate(self._judge(task, source).model_dump() | update)
                done(index, self._limited_by_audits(found))
            except TaskError as error:
                done(index, error)

    def close(self) -> None:
        self.closed = True

    def _judge(self, task: Task, source: str) -> Evaluation:
        if "# broken machine" in source:
            raise MachineError("the double's machine is broken, as the program asked")
        if "# refused" in task.source:
            raise TaskError(f"{task.id}: its reference is too inaccurate")
        status = Status.CORRECT
        if found := re.search(r"# status (\w+)", source):
            status = Status(found[1])
        elif "ModelNew" not in source:
            status = Status.NO_CODE
        else:
            try:
                ast.parse(source)
            except (SyntaxError, ValueError):
                status = Status.SYNTAX_ERROR
        speed = re.search(r"# speedup ([\d.]+)", source)
        return evaluation(task.id, source, status, float(speed[1]) if speed else 1.0, task_source=task.source)


def task(name: str = "add", *, level: int = 1, split: Split = "train", source: str = REFERENCE, **more: Any) -> Task:
    return Task(id=f"toy/{name}", source=source, name=name, level=level, origin="file", split=split, **more)


def suite() -> Suite:
    """Three tasks to train on, one held out."""
    return Suite("toy", [task("add"), task("scan", level=2), task("norm", level=3), task("held", split="test")])
