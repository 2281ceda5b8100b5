"""How long does the CPU judge take? `python benchmarks/judge_seconds.py OUT.jsonl [--tasks 20] [--forks 40]`.

For each task one `training` evaluation of its fastest variant, after another evaluation has made the task's pool, as in
training; then the time from the fork of a worker until it is ready. One JSON line for the machine, one for each
evaluation, one for the forks, then one with the summary (medians), which is also printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from cudal1_data import load_suite, usable_variants
from cudal1_env.hardware import available_needs
from cudal1_env.judge import Judge
from cudal1_env.judge.workers.zygote import Zygote
from cudal1_env.records import Evaluation
from cudal1_env.sandbox import default_spec
from judge_cpu import record
from parts import fresh, machine_line

PHASES = ("total_s", "start_s", "build_s", "wait_s", "oracle_s", "warmup_s", "measure_s")


def main() -> None:
    """Measure, record and summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--forks", type=int, default=40)
    options = parser.parse_args()
    suite = load_suite("starter")
    tasks = list(suite)[:: max(1, len(suite) // options.tasks)][: options.tasks]
    pools: list[float] = []
    training: list[Evaluation] = []
    file = fresh(options.out)
    file.add(machine_line())
    with Judge() as judge:
        for task in tasks:
            source = usable_variants(task, "cpu", available_needs())[-1].source
            pools.append(judge.evaluate(task, source).seconds.oracle_s)
            one = judge.evaluate(task, source)
            training.append(one)
            file.add({**record("training", one), "pool_s": pools[-1]})
            print(f"{task.id}: {one.message} [{one.seconds.total_s:.2f} s]", file=sys.stderr, flush=True)
        forks = forks_s(options.forks)
        file.add({"kind": "forks", "seconds": forks})
        summary = {
            "kind": "summary",
            "training": {name: statistics.median(getattr(one.seconds, name) for one in training) for name in PHASES},
            "training_without_build_s": statistics.median(s.total_s - s.build_s for s in (t.seconds for t in training)),
            "pool_s": statistics.median(pools),
            "fork_to_ready_s": {"median": statistics.median(forks), "largest": max(forks)},
        }
        file.add(summary)
    print(json.dumps(summary, indent=1))


def forks_s(count: int) -> list[float]:
    """Return the seconds from each fork request until the worker reports that it has entered its sandbox."""
    zygote = Zygote()
    zygote.start()
    seconds: list[float] = []
    try:
        for _ in range(count):
            began = time.perf_counter()
            worker = zygote.fork("arm", default_spec("cpu"))
            seconds.append(time.perf_counter() - began)
            worker.close()
    finally:
        zygote.close()
    return seconds


if __name__ == "__main__":
    main()
