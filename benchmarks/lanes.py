"""Work through a plan on every GPU of a host: `python benchmarks/lanes.py PLAN OUT --limit-s 540`.

A plan has one job per line: its number of parts, then the command, in which {k} is the part, {n} the number of parts
and {out} the folder of results. Lines that begin with # are skipped.

    15 python benchmarks/judge_cuda.py {out}/judge_{k}.jsonl --part {k}/{n}
    1 cudal1-env audit starter --device cuda --out {out}/audit.cuda.json

Each GPU takes the next free part, on separate cores. At the time limit, running parts are terminated. `OUT/done` marks
the parts that exited with 0, so that the same command resumes, even on another host to which OUT was copied.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    """Read the plan and start a thread for each GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", nargs="+", help="default: those that nvidia-smi lists")
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    options = parser.parse_args()
    gpus = options.gpus or found()
    (options.out / "done").mkdir(parents=True, exist_ok=True)
    plan = Plan(parts(options.plan.read_text(), options.out), options.out / "done", time.monotonic() + options.limit_s)
    cores = sorted(os.sched_getaffinity(0))
    share = max(2, len(cores) // len(gpus))
    lanes = [
        threading.Thread(target=plan.work, args=(gpu, cores[share * number : share * (number + 1)] or cores))
        for number, gpu in enumerate(gpus)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    print(f"{len(plan.left)} parts left, {plan.failed} cut off or failed", flush=True)


def found() -> list[str]:
    """Return the numbers of the host's GPUs."""
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def parts(plan: str, out: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield name and command of each part."""
    for line in plan.splitlines():
        if line.strip() and not line.startswith("#"):
            count, command = line.split(maxsplit=1)
            for k in range(int(count)):
                name = hashlib.sha256(f"{k} {line}".encode()).hexdigest()[:16]
                yield name, shlex.split(command.format(k=k, n=count, out=out))


class Plan:
    """Remaining parts, shared by all lanes.

    Args:
        jobs: Name and command of each part.
        done: Folder with an empty file for each complete part.
        end: Time limit, by the monotonic clock.
    """

    def __init__(self, jobs: Iterator[tuple[str, list[str]]], done: Path, end: float) -> None:
        self.done, self.end = done, end
        self.left = [(name, command) for name, command in jobs if not (done / name).exists()]
        self.failed = 0
        self._lock = threading.Lock()

    def work(self, gpu: str, cores: list[int]) -> None:
        """Run parts on a GPU until none is left or the time is up."""
        while time.monotonic() < self.end:
            with self._lock:
                if not self.left:
                    return
                name, command = self.left.pop(0)
            began = time.monotonic()
            code = self._run(command, gpu, cores)
            print(f"gpu {gpu}: {code} after {time.monotonic() - began:.0f} s: {shlex.join(command)}", flush=True)
            if code == 0:
                (self.done / name).touch()
            else:
                self.failed += 1

    def _run(self, command: list[str], gpu: str, cores: list[int]) -> int:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
        process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), *command], env=environment, start_new_session=True
        )
        left_s = self.end - time.monotonic()
        try:
            return process.wait(timeout=None if left_s == float("inf") else max(left_s, 0.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                return process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait()


if __name__ == "__main__":
    main()
