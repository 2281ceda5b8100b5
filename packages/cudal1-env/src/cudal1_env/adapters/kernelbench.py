"""KernelBench: a drop-in `eval_kernel_against_ref`, and result files that its analysis reads.

    from cudal1_env.adapters.kernelbench import eval_kernel_against_ref   # instead of kernelbench.eval's

Latencies are in milliseconds. This module does not import KernelBench.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cudal1_data import Task
from cudal1_data.hashes import digest
from pydantic import BaseModel, Field

from cudal1_env.adapters import shared_evaluator
from cudal1_env.errors import SettingsError
from cudal1_env.evaluator import Evaluator
from cudal1_env.records import Evaluation, Latency, Status

URL = "CUDAL1_URL"
"""Environment variable with the URL of a service (with --allow-tasks); without it, this machine judges."""
_NOT_BUILT = (Status.NO_CODE, Status.SYNTAX_ERROR, Status.BUILD_ERROR)
_PROBLEM = re.compile(r"(?:.*/)?level(\d+)/(\d+)(?:@.*)?")


class KernelExecResult(BaseModel):
    """A verdict in the form of KernelBench's class with this name."""

    compiled: bool = False
    correctness: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    runtime: float = -1.0
    runtime_stats: dict[str, float] = Field(default_factory=dict[str, float])
    ref_runtime: float = -1.0
    ref_runtime_stats: dict[str, float] = Field(default_factory=dict[str, float])


def eval_kernel_against_ref(
    original_model_src: str,
    custom_model_src: str | None,
    *_: Any,
    measure_performance: bool = False,
    precision: Any = None,
    evaluator: Evaluator | None = None,
    **__: Any,
) -> KernelExecResult:
    """Judge a program in place of KernelBench's function; its arguments for measurement are accepted and not used.

    Args:
        original_model_src: The reference.
        custom_model_src: The program; None, which KernelBench extracts from an answer without one, is `NO_CODE`.
        measure_performance: Whether to time it.
        precision: None or torch.float32: tasks keep the dtypes that they declare.
        evaluator: The judge; None takes the service of `CUDAL1_URL`, or this machine.

    Raises:
        SettingsError: The precision is another. `MachineError` and `TaskError` are those of an `Evaluator`.
    """
    if precision is not None and str(precision).rpartition(".")[2] not in ("float32", "fp32"):
        raise SettingsError(
            f"precision={precision} is not supported: tasks keep their dtypes; write them into the reference"
        )
    name = f"file/{digest(original_model_src)[:16]}"
    task = Task(id=name, source=original_model_src, name=name, level=1, origin="file")
    judge = evaluator or shared_evaluator(os.environ.get(URL, ""))
    kind = "report" if measure_performance else "correct"
    return result_of(judge.evaluate(task, custom_model_src or "", precision=kind))


def result_of(record: Evaluation) -> KernelExecResult:
    """Return a record in KernelBench's form, with status, message, hardware and the rewarded end as metadata."""
    hardware = record.machine.name if record.machine else ""
    metadata = {"hardware": hardware, "status": record.status.value, "message": record.message}
    candidate, reference = (record.candidate, record.reference) if record.correct else (None, None)
    return KernelExecResult(
        compiled=record.status not in _NOT_BUILT,
        correctness=record.correct,
        metadata=metadata | {"rewarded_low": record.rewarded_low, "protocol": record.protocol},
        runtime=-1.0 if candidate is None else candidate.median_ms,
        runtime_stats=_stats(candidate),
        ref_runtime=-1.0 if reference is None else reference.median_ms,
        ref_runtime_stats=_stats(reference),
    )


def write_results(records: Iterable[Evaluation], level_folder: Path, run_folder: Path, baseline: Path) -> None:
    """Write `eval_results.json` and a baseline file from the same records, for `benchmark_eval_analysis.py`.

    The analysis pairs the files by position, so both list every problem in order; one without a record is a failure.

    Args:
        records: Verdicts on tasks whose ids end in `levelL/N`.
        level_folder: `KernelBench/levelL` of a checkout, which names the problems.
        run_folder: `runs/NAME` of the checkout.
        baseline: `results/timing/HARDWARE/NAME.json` of the checkout.
    """
    level = level_folder.name.removeprefix("level")
    matches = [(_PROBLEM.fullmatch(record.task), record) for record in records]
    found = {int(match[2]): record for match, record in matches if match and match[1] == level}
    problems = sorted((int(path.name.partition("_")[0]), path.name) for path in level_folder.glob("[0-9]*_*.py"))
    results = {number: result_of(found[number]) if number in found else KernelExecResult() for number, _ in problems}
    entries = {
        str(n): [{"sample_id": 0, **one.model_dump(exclude={"ref_runtime", "ref_runtime_stats"})}]
        for n, one in results.items()
    }
    means = {name: results[number].ref_runtime_stats or {"mean": math.nan} for number, name in problems}
    for path, content in ((run_folder / "eval_results.json", entries), (baseline, {level_folder.name: means})):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1))


def _stats(latency: Latency | None) -> dict[str, float]:
    return {} if latency is None else {"mean": latency.median_ms, "min": latency.low_ms, "max": latency.high_ms}
