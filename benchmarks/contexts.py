"""How long does a CUDA context take, beside others that start? `python benchmarks/contexts.py OUT.jsonl`.

A verdict at `correct` precision on a new task needs two contexts: of its oracle and of its candidate. Processes import
torch, wait for each other, and then make a context, use it and end, all at the same time. One JSON line for the machine
and one for each number of processes: the medians of the seconds of the first and the second use of the GPU, and the
seconds from the beginning to the end of the last process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from parts import fresh, machine_line

CHILD = """
import sys, time
import torch
print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
held = torch.zeros(1 << 20, device="cuda")
torch.cuda.synchronize()
first = time.perf_counter()
(held + 1).sum().item()
print(first - began, time.perf_counter() - first, flush=True)
"""


def main() -> None:
    """Measure each number of processes, and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 8, 16])
    options = parser.parse_args()
    file = fresh(options.out)
    file.add(machine_line())
    for count in options.at_once:
        file.add(measured(count))
    for line in file.lines[1:]:
        print(line, flush=True)


def measured(count: int) -> dict[str, Any]:
    """Start `count` processes, let them make contexts together, and return the line."""
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise SystemExit("a process could not import torch")
    began = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate()[0].split() for child in children]
    seconds = time.perf_counter() - began
    if not all(answers):
        raise SystemExit("a process could not use the GPU")
    return {
        "kind": "contexts",
        "at_once": count,
        "first_use_s": statistics.median(float(first) for first, _ in answers),
        "second_use_s": statistics.median(float(second) for _, second in answers),
        "all_s": seconds,
    }


if __name__ == "__main__":
    main()
