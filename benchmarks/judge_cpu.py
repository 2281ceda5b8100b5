"""How good is the CPU judge? `python benchmarks/judge_cpu.py OUT.jsonl [--tasks 20] [--repeats 10]`.

A against A: starter references, submitted as candidates, at `report` precision; the true speedup is 1. One JSON line
for the machine, one for each evaluation, then one with the summary, which is also printed. judge_seconds.py measures
the duration of evaluations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from cudal1_data import load_suite
from cudal1_env.campaigns.parts import part_of
from cudal1_env.doctor import as_candidate
from cudal1_env.judge import Judge
from cudal1_env.records import Evaluation
from parts import add_options, fresh, machine_line


def main() -> None:
    """Measure, record and summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    add_options(parser)
    options = parser.parse_args()
    suite = load_suite("starter")
    tasks = list(suite)[:: max(1, len(suite) // options.tasks)][: options.tasks]
    file = fresh(options.out, join=options.join)
    if not options.join:
        file.add(machine_line())
        with Judge() as judge:
            for task in part_of([task for task in tasks for _ in range(options.repeats)], options.part):
                one = judge.evaluate(task, as_candidate(task), precision="report")
                file.add(record("a-against-a", one))
                print(f"{task.id}: {one.message} [{one.seconds.total_s:.1f} s]", file=sys.stderr, flush=True)
    summary = file.add({"kind": "summary", **summarise(file.lines)})
    print(json.dumps(summary, indent=1))


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return bias and false alarms of A against A, over the lines of one or several files."""
    itself = [line for line in lines if line["kind"] == "a-against-a"]
    speedups = [line["speedup"] for line in itself if line["speedup"] is not None]
    return {
        "evaluations": len(itself),
        "correct": sum(line["status"] == "CORRECT" for line in itself),
        "not_correct": [(line["task"], line["status"]) for line in itself if line["status"] != "CORRECT"],
        "median_point": statistics.median(one["point"] for one in speedups),
        "median_distance_from_one": statistics.median(abs(one["point"] - 1) for one in speedups),
        "excluding_one": sum(one["low"] > 1 or one["high"] < 1 for one in speedups),
        "called_faster": sum(one["low"] > 1 for one in speedups),
        "median_half_width": statistics.median((one["high"] - one["low"]) / 2 for one in speedups),
        "median_total_s": statistics.median(line["seconds"]["total_s"] for line in itself),
    }


def record(kind: str, one: Evaluation) -> dict[str, Any]:
    """Return a record without programs, which are in the repository, and without their output, which has file names."""
    return {"kind": kind, **one.model_dump(mode="json", exclude={"source", "task_source", "stderr"})}


if __name__ == "__main__":
    main()
