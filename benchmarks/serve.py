"""Overhead and load of the service: single calls against local ones, many clients, verdicts with hostile programs.

    python benchmarks/serve.py                      # prepared records, in this process; about 30 s
    python benchmarks/serve.py --verdicts 300       # real CPU verdicts instead, a tenth of them hostile

Prints one JSON object per line. For real verdicts, the service runs in a separate process. Its descriptors and memory
are compared early and late in the run; processes and temporary files are compared before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cudal1_data import Task, load_suite
from cudal1_env.errors import TaskError
from cudal1_env.remote import RemoteEvaluator
from cudal1_env.reward import reward_of
from cudal1_env.testing.programs import REFUSED, programs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from doubles.evaluator import program, suite
from env.services import PreparedJudge, serving
from service_process import started


def overhead(calls: int) -> dict[str, Any]:
    """Time single calls of a prepared judge, locally and through the service, alternating."""
    task, local = suite()[0], PreparedJudge()
    took: dict[str, list[float]] = {"local": [], "service": []}
    with serving() as service, RemoteEvaluator(service.url) as remote:
        remote.evaluate(task, program(2.0, "first"))
        for number in range(calls):
            for name, evaluator in (("local", local), ("service", remote)):
                began = time.perf_counter()
                evaluator.evaluate(task, program(2.0, str(number)))
                took[name].append(1e3 * (time.perf_counter() - began))
    medians = {f"{name}_ms": round(statistics.median(one), 3) for name, one in took.items()}
    p95 = round(statistics.quantiles(took["service"], n=20)[-1], 3)
    differences = [there - here for here, there in zip(took["local"], took["service"], strict=True)]
    return {
        "kind": "overhead",
        "calls": calls,
        **medians,
        "service_p95_ms": p95,
        "overhead_ms": round(statistics.median(differences), 3),
    }


def load(clients: int, verdicts: int) -> dict[str, Any]:
    """Let many clients request one verdict at a time each; count the answers."""
    tasks = list(suite())[:3]
    barrier = threading.Barrier(clients)

    def client(number: int) -> list[tuple[str, str]]:
        with RemoteEvaluator(service.url) as remote:
            barrier.wait()
            sources = [program(2.0, f"{one}") for one in range(number, verdicts, clients)]
            return [(source, remote.evaluate(tasks[number % 3], source).source) for source in sources]

    with serving(judges=2) as service, ThreadPoolExecutor(clients) as executor:
        began = time.perf_counter()
        pairs = [pair for part in executor.map(client, range(clients)) for pair in part]
        seconds = time.perf_counter() - began
        judged = Counter(source for judge in service.judges for _, source in judge.jobs)
        batches = [size for judge in service.judges for size in judge.batches]
    return {
        "kind": "load",
        "clients": clients,
        "verdicts": len(pairs),
        "lost": verdicts - len(pairs),
        "swapped": sum(sent != got for sent, got in pairs),
        "judged_twice": sum(count > 1 for count in judged.values()),
        "mean_batch": round(statistics.mean(batches), 2),
        "seconds": round(seconds, 2),
    }


def real(verdicts: int, clients: int, seconds: float) -> dict[str, Any]:
    """Request real verdicts from a CPU service, a tenth of them on attacks; then stop it and find leftovers."""
    tasks = [task for task in load_suite("starter", device="cpu") if task.split == "train"][:8]
    honest = [(task, one.source) for task in tasks for one in task.variants if "cpu" in one.devices and not one.needs]
    attacks = [(one.task("cpu"), one.source) for one in programs() if not one.honest and one.runs_on("cpu")]
    jobs: list[tuple[Task, str, bool]] = []
    for number in range(verdicts):
        hostile = number % 10 == 9
        task, source = attacks[number // 10 % len(attacks)] if hostile else honest[number % len(honest)]
        jobs.append((task, f"{source}\n# {number}\n", hostile))
    before = _left()
    ends = time.monotonic() + seconds

    def ask(job: tuple[Task, str, bool]) -> tuple[str, bool, float] | None:
        task, source, hostile = job
        if time.monotonic() > ends:
            return None
        try:
            record = remote.evaluate(task, source, precision="training")
        except TaskError:
            return REFUSED, hostile, 0.0
        return record.status.value, hostile, reward_of(record)

    began = time.perf_counter()
    with started("cpu") as service:
        with RemoteEvaluator(service.url) as remote, ThreadPoolExecutor(clients) as executor:
            # Descriptors and memory are first read after a tenth of the jobs, when lazy state exists.
            told = list(executor.map(ask, jobs[: verdicts // 10]))
            early = _of(service.process.pid)
            told += executor.map(ask, jobs[verdicts // 10 :])
            late = _of(service.process.pid)
        took = time.perf_counter() - began
    found = [one for one in told if one is not None]
    return {
        "kind": "real",
        "clients": clients,
        "verdicts": len(found),
        "not_asked": len(told) - len(found),
        "hostile": sum(hostile for _, hostile, _ in found),
        "hostile_rewarded": sum(hostile and reward > 1.0 for _, hostile, reward in found),
        "statuses": dict(Counter(status for status, _, _ in found).most_common()),
        "seconds": round(took, 1),
        "exit_code": service.process.returncode,
        "service_descriptors": [early["descriptors"], late["descriptors"]],
        "service_mib": [early["mib"], late["mib"]],
        "left_behind": sorted(_left() - before),
    }


def _of(pid: int) -> dict[str, int]:
    """Return open descriptors and resident memory (MiB) of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {"descriptors": len(os.listdir(f"/proc/{pid}/fd")), "mib": int(resident.split()[1]) // 1024}


def _left() -> set[str]:
    """Return the processes that run cudal1 modules, and its temporary files."""
    names: set[str] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if "cudal1_worker" in command or "cudal1_env.service" in command:
                names.add(f"process {folder.name}: {command[:80]}")
    return names | {f"file {path}" for path in Path(tempfile.gettempdir()).glob("cudal1*")}


def main() -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description="Measure the service.")
    parser.add_argument("--calls", type=int, default=300, help="single calls for the overhead (default 300)")
    parser.add_argument("--clients", type=int, default=64, help="clients at a time (default 64)")
    parser.add_argument("--prepared", type=int, default=2000, help="prepared verdicts under load (default 2000)")
    parser.add_argument("--verdicts", type=int, default=0, help="real verdicts on the CPU device (default none)")
    parser.add_argument("--seconds", type=float, default=480.0, help="ask for no more real verdicts after this long")
    options = parser.parse_args()
    if options.verdicts:
        print(json.dumps(real(options.verdicts, options.clients, options.seconds)), flush=True)
        return
    print(json.dumps(overhead(options.calls)), flush=True)
    print(json.dumps(load(options.clients, options.prepared)), flush=True)


if __name__ == "__main__":
    main()
