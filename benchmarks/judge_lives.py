"""Does chance favour an arm for as long as a judge lives? `python benchmarks/judge_lives.py OUT.jsonl`.

A against A of one short program, by several judges, several evaluations each, at `training` precision. If nothing
favours an arm, the means of the judges differ by no more than their evaluations make them: F, the variance of these
means over what chance gives them, is about 1. One JSON line for the machine, one for each judge, then the summary.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from cudal1_data import Task
from cudal1_env.doctor import as_candidate
from cudal1_env.judge import Judge
from parts import machine_line, write
from scipy.stats import f

SOURCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return torch.relu(x + self.shift) * 0.5 + x

def get_inputs():
    return [torch.randn(128, 1024)]

def get_init_inputs():
    return [1024]
"""
TASK = Task(id="file/shift_relu", source=SOURCE, name="shift_relu", level=1, origin="file")


def main() -> None:
    """Measure, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--judges", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=15)
    options = parser.parse_args()
    with options.out.open("w") as file:
        write(file, machine_line())
        lives: list[list[float]] = []
        for number in range(options.judges):
            with Judge() as judge:
                records = [judge.evaluate(TASK, as_candidate(TASK)) for _ in range(options.evaluations)]
            speedups = [one.speedup for one in records if one.speedup is not None]
            lives.append([math.log(one.point) for one in speedups])
            write(file, {"kind": "judge", "number": number, "speedups": [one.model_dump() for one in speedups]})
            print(f"judge {number}: {math.exp(statistics.mean(lives[-1])):.4f}", file=sys.stderr, flush=True)
        summary = write(file, {"kind": "summary", **summarise(lives)})
    print(json.dumps(summary, indent=1))


def summarise(lives: list[list[float]]) -> dict[str, Any]:
    """One-way analysis of variance of log speedups, by judge."""
    count, size = len(lives), min(len(one) for one in lives)
    lives = [one[:size] for one in lives]
    means = [statistics.mean(one) for one in lives]
    within = statistics.mean(statistics.variance(one) for one in lives)
    ratio = size * statistics.variance(means) / within
    return {
        "judges": count,
        "evaluations_each": size,
        "median_speedup": math.exp(statistics.median(value for one in lives for value in one)),
        "smallest_mean_of_a_judge": math.exp(min(means)),
        "largest_mean_of_a_judge": math.exp(max(means)),
        "f": ratio,
        "chance_of_such_an_f": float(f.sf(ratio, count - 1, count * (size - 1))),
    }


if __name__ == "__main__":
    main()
