"""Where does the time of verdicts on new tasks go? `python benchmarks/oracle_seconds.py OUT.jsonl [--device cuda]`.

Each task's reference is judged as a program, one verdict for each task at `correct` precision, so each verdict needs an
oracle of its own. One JSON line for the machine and one for each number of lanes: verdicts a minute, the seconds of
each request to an oracle, and the phases of the verdicts. An interrupted run resumes after the figures in OUT.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal1_data import Task, load_suite
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.oracle.client import OracleClient
from cudal1_env.records import Device
from parts import machine_line, results

PHASES = ("total_s", "start_s", "build_s", "lease_s", "oracle_s", "warmup_s")


def main() -> None:
    """Measure the figures that OUT lacks, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--suite", default="generated?n=1152&seed=0")
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    file = results(options.out)
    if not file.lines:
        file.add(machine_line())
    suite = list(load_suite(options.suite, device=options.device).test)
    tasks = suite[:: max(1, len(suite) // options.tasks)][: options.tasks]
    for lanes in options.lanes:
        if not any(line.get("lanes") == lanes for line in file.lines):
            file.add(measured(options.device, tasks, lanes))
    for line in file.lines[1:]:
        print(line, flush=True)


def measured(device: Device, tasks: list[Task], lanes: int) -> dict[str, Any]:
    """Judge the tasks and return the line."""
    requests = Requests()
    jobs = [(task, f"{task.source}\n\nclass ModelNew(Model):\n    pass\n") for task in tasks]
    with Judge(JudgeSettings(device=device, lanes=lanes)) as judge, requests:
        began = time.perf_counter()
        found = judge.evaluate_many(jobs, precision="correct")
        seconds = time.perf_counter() - began
    phases = {name: [getattr(one.seconds, name) for one in found] for name in PHASES}
    return {
        "kind": "verdicts",
        "lanes": lanes,
        "verdicts": len(found),
        "seconds": seconds,
        "verdicts_a_minute": 60 * len(found) / seconds,
        "statuses": Counter(one.status.value for one in found),
        "requests": {name: summary(values) for name, values in requests.seconds.items()},
        "phases": {name: summary(values) for name, values in phases.items()},
    }


def summary(seconds: list[float]) -> dict[str, float]:
    """Return number, sum, median and largest of some durations."""
    return {
        "count": len(seconds),
        "sum_s": sum(seconds),
        "median_s": statistics.median(seconds),
        "max_s": max(seconds),
    }


class Requests:
    """Times every request to an oracle in a `with` block, by operation."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._lock = threading.Lock()
        self._ask = OracleClient.ask

    def __enter__(self) -> Requests:
        """Replace the client's method by one that takes the time."""
        whole, lock, seconds = self._ask, self._lock, self.seconds

        def ask(self: OracleClient, op: str, kind: type[Any], fds: Sequence[int] = (), **message: Any) -> Any:
            began = time.perf_counter()
            try:
                return whole(self, op, kind, fds, **message)
            finally:
                with lock:
                    seconds[op].append(time.perf_counter() - began)

        OracleClient.ask = ask
        return self

    def __exit__(self, *_: object) -> None:
        """Put the method back."""
        OracleClient.ask = self._ask


if __name__ == "__main__":
    main()
