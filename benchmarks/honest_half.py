"""How many honest half-precision programs are rejected? `python benchmarks/honest_half.py OUT.jsonl [--suite SUITE]`.

For each task with half-precision outputs, the program runs the reference and keeps the results of some elementwise
operators in float32, drawn at random by their order, as a program does that fuses them. So it rounds less often than
the reference. All are judged at `correct` precision; one JSON line each. An interrupted run resumes after OUT's lines.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from cudal1_data import load_suite
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from parts import machine_line, results

FUSED = """

import random

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

HALVES = (torch.float16, torch.bfloat16)


class Fused(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.draw, self.kept = random.Random(SEED), WeakIdKeyDictionary()

    def wide(self, value):
        half = isinstance(value, torch.Tensor) and value.dtype in HALVES
        return self.kept.get(value, value).float() if half else value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            self.kept.clear()
        elif torch.Tag.pointwise in func.tags and isinstance(result, torch.Tensor) and result.dtype in HALVES:
            wide = func(*tree_map(self.wide, args), **tree_map(self.wide, kwargs))
            if wide.dtype is torch.float32:
                result = wide.to(result.dtype)
                if self.draw.random() < 0.5:
                    self.kept[result] = wide
        return result


class ModelNew(Model):
    def forward(self, *inputs):
        with Fused():
            return super().forward(*inputs)
"""


def main() -> None:
    """Judge, record and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", default="generated?n=160&seed=18")
    parser.add_argument("--programs", type=int, default=2, help="of each task")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    file = results(given.out)
    if not file.lines:
        file.add(machine_line())
    known = {line["task"] for line in file.lines if line["kind"] == "verdict"}
    tasks = [
        task
        for task in load_suite(given.suite, device=given.device)
        if "half()" in task.source or "bfloat16()" in task.source
    ]
    with Judge(JudgeSettings(device=given.device)) as judge:
        for task in tasks:
            if task.id in known:
                continue
            programs = [task.source + FUSED.replace("SEED", str(seed)) for seed in range(given.programs)]
            try:
                found = judge.evaluate_many([(task, program) for program in programs], precision="correct")
                verdicts = [(one.status.value, one.message) for one in found]
            except TaskError as error:
                verdicts = [("refused", str(error))]
            for status, message in verdicts:
                file.add({"kind": "verdict", "task": task.id, "status": status, "message": message})
    print(dict(Counter(line["status"] for line in file.lines if line["kind"] == "verdict")))


if __name__ == "__main__":
    main()
