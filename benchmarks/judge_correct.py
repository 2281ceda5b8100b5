"""How many verdicts a minute? `python benchmarks/judge_correct.py OUT.jsonl [--device cpu] [--lanes 1 2]`.

Correct programs of the starter suite, several per task, in one `evaluate_many`: at `correct` precision with each
number of lanes, then at `training` precision. The oracles of the tasks are already running. Finally, another thread
repeatedly leases the arms' core (and the GPU) exclusively during verdicts without a clock: how long does it wait? One
JSON line for the machine and one for each figure; an interrupted run resumes after the figures in OUT.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal1_data import Task, load_suite, usable_variants
from cudal1_env.hardware import available_needs
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.workers.lease import core_name, lease
from cudal1_env.records import Device, Precision
from parts import machine_line, results

_PAUSE_S = 2.0
"""Pause between two exclusive leases."""

Job = tuple[Task, str]


def main() -> None:
    """Measure the figures that OUT lacks, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--programs", type=int, default=64)
    options = parser.parse_args()
    file = results(options.out)
    jobs = jobs_of(options.device, options.tasks, options.programs)
    if not file.lines:
        file.add(machine_line())
    wanted: list[tuple[Precision, int]] = [("correct", lanes) for lanes in options.lanes]
    for precision, lanes in [*wanted, ("training", 1)]:
        if not any(line.get("precision") == precision and line.get("lanes") == lanes for line in file.lines):
            file.add(verdicts(options.device, jobs, precision, lanes))
    if not any(line["kind"] == "waits" for line in file.lines):
        file.add(waits(options.device, jobs, max(options.lanes)))
    for line in file.lines[1:]:
        print(line, flush=True)


def jobs_of(device: Device, tasks: int, programs: int) -> list[Job]:
    """Return programs of a few tasks that need no compiler: their variants in order, each with a unique source."""
    needs = available_needs()
    found: list[list[Job]] = []
    for task in load_suite("starter", device=device):
        sources = [one.source for one in usable_variants(task, device, needs) if not one.needs]
        if sources and len(found) < tasks:
            found.append([(task, source) for source in sources])
    each = [found[number % len(found)] for number in range(programs)]
    chosen = [of_task[number // len(found) % len(of_task)] for number, of_task in enumerate(each)]
    return [(task, f"{source}\n# {number}\n") for number, (task, source) in enumerate(chosen)]


def verdicts(device: Device, jobs: Sequence[Job], precision: Precision, lanes: int) -> dict[str, Any]:
    """Judge all jobs with a new judge whose oracles are running."""
    with Judge(JudgeSettings(device=device, lanes=lanes)) as judge:
        judge.evaluate_many(list({task.id: (task, source) for task, source in jobs}.values()), precision=precision)
        began = time.perf_counter()
        found = judge.evaluate_many(jobs, precision=precision)
        seconds = time.perf_counter() - began
    return {
        "kind": "verdicts",
        "precision": precision,
        "lanes": lanes,
        "verdicts": len(found),
        "seconds": seconds,
        "verdicts_a_minute": 60.0 * len(found) / seconds,
        "statuses": Counter(one.status.value for one in found),
    }


def waits(device: Device, jobs: Sequence[Job], lanes: int) -> dict[str, Any]:
    """Lease the arms' core and the device exclusively, again and again, during verdicts without a clock."""
    waited_s: list[float] = []
    done = threading.Event()
    with Judge(JudgeSettings(device=device, lanes=lanes)) as judge:

        def ask() -> None:
            while not done.wait(_PAUSE_S):
                with lease(core_name(judge.core), *judge.device.locks) as waited:
                    waited_s.append(waited)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            found = judge.evaluate_many(jobs, precision="correct")
        finally:
            done.set()
            asking.join()
    return {
        "kind": "waits",
        "lanes": lanes,
        "waits": len(waited_s),
        "largest_wait_s": max(waited_s, default=None),
        "statuses": Counter(one.status.value for one in found),
    }


if __name__ == "__main__":
    main()
