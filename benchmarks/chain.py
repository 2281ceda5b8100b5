"""Harness overhead of a timed call by part (release, worker, read) and size of the inputs.

    python benchmarks/chain.py OUT.jsonl [--device cuda]

Each line is one size: medians in microseconds over empty and timed calls of a reference that adds one to its input, and
the judge's verdict on that reference against itself. Sizes that are already in OUT are skipped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudal1_data import Task
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure.arm import Arm

KIB = 1 << 10
SIZES = [4 * KIB, 64 * KIB, 1024 * KIB, 4096 * KIB, 16384 * KIB, 65536 * KIB, 262144 * KIB, 1048576 * KIB]
"""Bytes of the inputs."""
SOURCE = """
import torch
import torch.nn as nn

N = {count}


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""


class Parts:
    """Microseconds of each part of an arm's calls."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also records its duration."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter_ns()
            try:
                return function(*arguments, **named)
            finally:
                self.taken.setdefault(name, []).append((time.perf_counter_ns() - began) * 1e-3)

        return wrapped

    def medians(self) -> dict[str, float]:
        """Return the median of each part."""
        return {name: round(statistics.median(times), 2) for name, times in self.taken.items()}


def measured(judge: Judge, size_bytes: int) -> dict[str, Any]:
    """Judge a reference of one size against itself, and record the duration of each part of its calls."""
    source = SOURCE.format(count=size_bytes // 4)
    task = Task(id=f"file/add_{size_bytes}", name=f"add_{size_bytes}", level=1, origin="file", source=source)
    parts, plain = Parts(), (Arm.go, Arm.wait_for, Arm.read)
    memory = type(judge.device).memory

    def noted(self: Any, *arguments: Any) -> Any:
        one = memory(self, *arguments)
        one.overwrite = parts.timed("overwrite, off the clock", one.overwrite)
        return one

    Arm.go = parts.timed("release", Arm.go)
    Arm.wait_for = parts.timed("worker", Arm.wait_for)
    Arm.read = parts.timed("read", Arm.read)
    type(judge.device).memory = noted  # type: ignore[method-assign]
    try:
        record = judge.evaluate(task, f"{task.source}\n\nModelNew = Model\n")
    finally:
        Arm.go, Arm.wait_for, Arm.read = plain
        type(judge.device).memory = memory  # type: ignore[method-assign]
    return {
        "input_bytes": size_bytes,
        "parts_us": parts.medians(),
        "overhead_us": record.overhead_ms and round(1e3 * record.overhead_ms, 2),
        "stealable_us": record.stealable_ms and round(1e3 * record.stealable_ms, 2),
        "reference_us": record.reference and round(1e3 * record.reference.median_ms, 2),
        "status": record.status,
        "speedup": record.speedup and record.speedup.model_dump(),
        "rewarded_low": record.rewarded_low,
        "too_short": record.too_short,
        "seconds": record.seconds.model_dump(),
        "machine": record.machine and record.machine.model_dump(),
    }


def main() -> None:
    """Measure every size that the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {json.loads(line)["input_bytes"] for line in lines}
    with Judge(JudgeSettings(device=options.device)) as judge, options.out.open("a") as out:
        for size_bytes in SIZES:
            if size_bytes not in done:
                print(json.dumps(measured(judge, size_bytes)), file=out, flush=True)


if __name__ == "__main__":
    main()
