"""Verdicts a minute of a service with one GPU and with more: `python benchmarks/gpus.py OUT.jsonl --gpus 1 2`.

One service for each number of GPUs runs the whole time, and the services take turns: 1 2 2 1, and so on. In each turn a
service judges the same programs at `training` precision: the set `rl` of throughput.py, new Triton and NVRTC programs
for four generated tasks. Each service first judges them once, which is not counted; so what they build and the oracles
of their tasks are there. An interrupted run starts over. One JSON line for the machine and for each turn, then a
summary: the median of each service, and the ratio of the largest to the smallest with the range over pairs of turns.
With `--device cpu` each service has one judge, so that the ratio is near 1: it shows that the command works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cudal1_env.remote import RemoteEvaluator
from parts import fresh, machine_line
from service_process import started
from throughput import Job, new_programs


def main() -> None:
    """Start the services, let them take turns, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="numbers of GPUs, smallest first")
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--turns", type=int, default=2, help="of each service")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    file = fresh(options.out)
    file.add(machine_line())
    jobs = new_programs(options.device, options.programs)
    turns: list[dict[str, Any]] = []
    with ExitStack() as stack:
        evaluators: dict[int, RemoteEvaluator] = {}
        for count in options.gpus:
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count)))} if options.device == "cuda" else {}
            service = stack.enter_context(started(options.device, visible))
            evaluators[count] = stack.enter_context(RemoteEvaluator(service.url))
            print(json.dumps(turn(count, evaluators[count], jobs)), flush=True)
        for number in range(options.turns):
            for count in options.gpus[:: 1 if number % 2 == 0 else -1]:
                turns.append(turn(count, evaluators[count], jobs))
                file.add(turns[-1])
                print(json.dumps(turns[-1]), flush=True)
    file.add(summary(turns))
    print(json.dumps(summary(turns)))


def turn(count: int, evaluator: RemoteEvaluator, jobs: Sequence[Job]) -> dict[str, Any]:
    """Judge the programs by the service with `count` GPUs and return the line."""
    began = time.perf_counter()
    found = evaluator.evaluate_many([(job.task, job.program) for job in jobs], precision="training")
    seconds = time.perf_counter() - began
    return {
        "kind": "turn",
        "gpus": count,
        "verdicts": len(found),
        "seconds": seconds,
        "verdicts_a_minute": 60 * len(found) / seconds,
        "lease_s": sum(one.seconds.lease_s for one in found),
        "statuses": Counter(one.status.value for one in found),
    }


def summary(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median verdicts a minute by number of GPUs, and the ratio of the most to the fewest.

    >>> rates = [(1, 10.0), (2, 19.0), (2, 18.0), (1, 10.0)]
    >>> found = summary([{"gpus": gpus, "verdicts_a_minute": rate} for gpus, rate in rates])
    >>> found["ratio"], found["ratio_range"]
    (1.85, [1.8, 1.9])
    """
    rates: dict[int, list[float]] = {}
    for one in turns:
        rates.setdefault(one["gpus"], []).append(one["verdicts_a_minute"])
    few, many = rates[min(rates)], rates[max(rates)]
    pairs = [high / low for low, high in zip(few, many, strict=True)]
    return {
        "kind": "summary",
        "verdicts_a_minute": {count: statistics.median(values) for count, values in sorted(rates.items())},
        "ratio": statistics.median(many) / statistics.median(few),
        "ratio_range": [min(pairs), max(pairs)],
    }


if __name__ == "__main__":
    main()
