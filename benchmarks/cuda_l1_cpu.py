"""The CPU judge on published tasks: `python benchmarks/cuda_l1_cpu.py h100.jsonl OUT.jsonl [--count 60]`.

FILE is CUDA-L1's release (deepreinforce-ai/CUDA-L1, optimized_cuda_code/h100.json). References that answer fast
enough on one core are judged against themselves; then two published programs: level 1 task 12 (an algebraic short
cut) and level 1 task 9 (a lazy tensor). One JSON line for each evaluation, then one with the summary, which is also
printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cudal1_data import load_suite
from cudal1_env.doctor import as_candidate, examine
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Evaluation


def main() -> None:
    """Measure, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.6, help="most seconds that making a task's oracle may take")
    options = parser.parse_args()
    suite = load_suite(str(options.file))
    judged: list[Evaluation] = []
    left_out: dict[str, str] = {}
    with options.out.open("w") as file:
        write(file, {"kind": "machine", "findings": examine().model_dump(mode="json")})
        for task in suite:
            if len(judged) == options.count:
                break
            with Judge(JudgeSettings(oracle_timeout_s=4 * options.seconds)) as judge:
                try:
                    seconds = judge.prepare(task)
                    if seconds > options.seconds:
                        left_out[task.id] = f"{seconds:.1f} s"
                        continue
                    one = judge.evaluate(task, as_candidate(task))
                except TaskError as error:
                    left_out[task.id] = str(error)[:200]
                    continue
            judged.append(one)
            write(file, record("reference", one))
            say(f"{len(judged)} {task.id}: {one.message} [{one.seconds.total_s:.1f} s]")
        published = {}
        for name in ("cuda-l1/level1/12", "cuda-l1/level1/9"):
            with Judge() as judge:
                one = judge.evaluate(suite[name], suite.programs[name]["custom_code"])
            published[name] = {"status": one.status, "message": one.message}
            write(file, record("published", one))
        alarms = [one.task for one in judged if one.speedup and not one.speedup.low <= 1 <= one.speedup.high]
        summary = {
            "kind": "summary",
            "judged": len(judged),
            "correct": sum(one.correct for one in judged),
            "not_correct": {one.task: one.message for one in judged if not one.correct},
            "intervals_without_one": alarms,
            "left_out": left_out,
            "published": published,
        }
        write(file, summary)
    print(json.dumps(summary, indent=1))


def record(kind: str, one: Evaluation) -> dict[str, Any]:
    """A record without the programs: they are the release's."""
    return {"kind": kind, **one.model_dump(mode="json", exclude={"source", "task_source"})}


def write(file: Any, line: dict[str, Any]) -> None:
    """Write one JSON line."""
    file.write(json.dumps(line) + "\n")
    file.flush()


def say(text: str) -> None:
    """Tell about progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
