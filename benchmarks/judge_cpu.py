"""How good is the CPU judge? `python benchmarks/judge_cpu.py OUT.jsonl [--tasks 20] [--repeats 10]`.

A against A: starter references, submitted as candidates, at `report` precision; the truth is a speedup of 1. Then
`training` evaluations of one variant for each task, for the time that each phase takes. One JSON line for each
evaluation, then one with the summary, which is also printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from cudal1_data import load_suite, usable_variants
from cudal1_env.doctor import as_candidate, available_needs, examine
from cudal1_env.judge import Judge
from cudal1_env.records import Evaluation


def main() -> None:
    """Measure, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    suite = load_suite("starter")
    step = max(1, len(suite) // options.tasks)
    tasks = list(suite)[::step][: options.tasks]
    itself: list[Evaluation] = []
    training: list[Evaluation] = []
    with options.out.open("w") as file, Judge() as judge:
        file.write(json.dumps({"kind": "machine", "findings": examine().model_dump(mode="json")}) + "\n")
        for repeat in range(options.repeats):
            for task in tasks:
                began = time.perf_counter()
                one = judge.evaluate(task, as_candidate(task), precision="report")
                itself.append(one)
                write(file, "a-against-a", one)
                say(f"{repeat} {task.id}: {one.message} [{time.perf_counter() - began:.1f} s]")
        for task in tasks:
            variants = usable_variants(task, "cpu", available_needs())
            judge.evaluate(task, variants[-1].source)  # the next shares its pool, as in training
            one = judge.evaluate(task, variants[-1].source)
            training.append(one)
            write(file, "training", one)
        summary = {"kind": "summary", **summarise(itself), "training": phases(training)}
        file.write(json.dumps(summary) + "\n")
    print(json.dumps(summary, indent=1))


def summarise(itself: list[Evaluation]) -> dict[str, Any]:
    """Bias and false alarms of A against A."""
    speedups = [one.speedup for one in itself if one.speedup is not None]
    widths = [(one.high - one.low) / 2 for one in speedups]
    return {
        "evaluations": len(itself),
        "correct": sum(one.correct for one in itself),
        "median_point": statistics.median(one.point for one in speedups),
        "median_abs_bias": statistics.median(abs(one.point - 1) for one in speedups),
        "excluding_one": sum(one.low > 1 or one.high < 1 for one in speedups),
        "median_half_width": statistics.median(widths),
        "median_total_s": statistics.median(one.seconds.total_s for one in itself),
    }


def phases(training: list[Evaluation]) -> dict[str, float]:
    """Median seconds of each phase."""
    result = {
        name: statistics.median(getattr(one.seconds, name) for one in training)
        for name in ("total_s", "start_s", "build_s", "wait_s", "oracle_s", "warmup_s", "measure_s")
    }
    result["total_without_build_s"] = statistics.median(one.seconds.total_s - one.seconds.build_s for one in training)
    return result


def write(file: Any, kind: str, one: Evaluation) -> None:
    """Write a record without the programs, which are in the repository."""
    record = one.model_dump(mode="json", exclude={"source", "task_source"})
    file.write(json.dumps({"kind": kind, **record}) + "\n")
    file.flush()


def say(text: str) -> None:
    """Tell about progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
