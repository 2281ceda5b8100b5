"""The CPU judge on published tasks: `python benchmarks/cuda_l1_cpu.py h100.jsonl OUT.jsonl [--count 60]`.

FILE is CUDA-L1's release (deepreinforce-ai/CUDA-L1, optimized_cuda_code/h100.json). References that answer fast
enough on one core are judged against themselves; then two published programs: level 1 task 12 (an algebraic short
cut) and level 1 task 9 (a lazy tensor), the latter with M = 2048 for 16384: its float64 answer takes 2 GiB. One JSON
line for each evaluation, then one with the summary, which is also printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudal1_data import load_suite
from cudal1_env.doctor import as_candidate
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from judge_cpu import record
from parts import add_options, joined, machine_line, mine, write

PUBLISHED = {"cuda-l1/level1/12": ("", ""), "cuda-l1/level1/9": ("M = 16384\n", "M = 2048\n")}


def main() -> None:
    """Measure, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.6, help="most seconds that making a task's oracle may take")
    add_options(parser)
    options = parser.parse_args()
    with options.out.open("w") as file:
        if options.join:
            lines = [write(file, line) for line in joined(options.join)]
        else:
            lines = [write(file, line) for line in measured(options)]
        summary = write(file, {"kind": "summary", **summarise(lines)})
    print(json.dumps(summary, indent=1))


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for the machine, one for each task that fits, one for each that does not, and the published two."""
    yield machine_line()
    suite = load_suite(str(options.file))
    number, parts = (int(word) for word in options.part.split("/"))
    left = options.count // parts
    for task in mine(suite, options.part):
        if not left:
            break
        with Judge(JudgeSettings(oracle_timeout_s=4 * options.seconds)) as judge:
            try:
                seconds = judge.prepare(task)
                if seconds > options.seconds:
                    yield {"kind": "left-out", "task": task.id, "reason": f"{seconds:.1f} s"}
                    continue
                one = judge.evaluate(task, as_candidate(task))
            except TaskError as error:
                yield {"kind": "left-out", "task": task.id, "reason": str(error)[:200]}
                continue
        left -= 1
        yield record("reference", one)
        print(f"{task.id}: {one.message} [{one.seconds.total_s:.1f} s]", file=sys.stderr, flush=True)
    if number == 0:
        for name, (old, new) in PUBLISHED.items():
            task = suite[name].model_copy(update={"source": suite[name].source.replace(old, new)})
            with Judge() as judge:
                yield record("published", judge.evaluate(task, suite.programs[name]["custom_code"].replace(old, new)))


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Count over the lines of one or several files."""
    judged = [line for line in lines if line["kind"] == "reference"]
    speedups = {line["task"]: line["speedup"] for line in judged if line["speedup"]}
    return {
        "judged": len(judged),
        "correct": sum(line["status"] == "CORRECT" for line in judged),
        "not_correct": {line["task"]: line["message"] for line in judged if line["status"] != "CORRECT"},
        "intervals_without_one": {k: v for k, v in speedups.items() if not v["low"] <= 1 <= v["high"]},
        "left_out": sum(line["kind"] == "left-out" for line in lines),
        "published": {line["task"]: line["message"] for line in lines if line["kind"] == "published"},
    }


if __name__ == "__main__":
    main()
