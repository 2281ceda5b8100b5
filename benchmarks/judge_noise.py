"""Noise of paired samples: `python benchmarks/judge_noise.py OUT.jsonl [--judges 5] [--evaluations 4]`.

A against A of four starter tasks at `training` precision on the CPU, by several judges. One JSON line for the machine,
one for each evaluation with its samples, then the summary: the spread of a pair's log ratio, the half-width of
intervals, the mean, and how many intervals exclude 1. To compare two versions, run it with each one's packages in
PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from cudal1_data import load_task
from cudal1_env.doctor import as_candidate
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Evaluation
from parts import fresh, machine_line

TASKS = ("softplus_mish", "rms_norm", "matmul_bias_gelu", "cumulative_max_range")


def main() -> None:
    """Measure, record and summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--judges", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=4)
    options = parser.parse_args()
    tasks = [load_task(f"starter/{name}", device="cpu") for name in TASKS]
    found: list[Evaluation] = []
    file = fresh(options.out)
    file.add(machine_line())
    for _ in range(options.judges):
        with Judge(JudgeSettings(device="cpu")) as judge:
            for task in tasks * options.evaluations:
                found.append(judge.evaluate(task, as_candidate(task), precision="training"))
                keys = {"task", "status", "speedup", "samples_ms", "seconds"}
                file.add({"kind": "evaluation", **found[-1].model_dump(mode="json", include=keys)})
    summary = file.add({"kind": "summary", **summarise(found)})
    print(json.dumps(summary, indent=1))


def summarise(found: list[Evaluation]) -> dict[str, Any]:
    """Return the spread of pairs within trials, and the width and errors of intervals."""
    speedups = [one.speedup for one in found if one.speedup is not None]
    logs = [math.log(one.point) for one in speedups]
    spreads = [
        statistics.stdev(math.log(mine / other) for mine, other in zip(*trial, strict=True))
        for one in found
        for trial in one.samples_ms
    ]
    return {
        "evaluations": len(found),
        "correct": len(speedups),
        "median_spread_of_a_pair": statistics.median(spreads),
        "median_half_width": statistics.median(math.log(one.high / one.low) / 2 for one in speedups),
        "mean_log_speedup": statistics.mean(logs),
        "its_standard_error": statistics.stdev(logs) / math.sqrt(len(logs)),
        "excluding_one": sum(one.low > 1 or one.high < 1 for one in speedups),
        "median_measure_s": statistics.median(one.seconds.measure_s for one in found),
    }


if __name__ == "__main__":
    main()
