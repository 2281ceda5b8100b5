"""Verdicts per minute, compared with KernelBench's evaluator. Needs a GPU for the comparison.

    python benchmarks/throughput.py OUT --table h100.jsonl --kernelbench CHECKOUT --budget-s 480

Three sets of programs: `plain`, published ones without an extension; `inline`, published ones with `load_inline`; `rl`,
new Triton and NVRTC programs of a few generated tasks. They are sampled with `SEED`. The two sides judge each set in
blocks, alternately; each block cold (nothing is built) and then warm (the same programs again).

- `cudal1`: `precompile`, then `evaluate_many` of one judge at `training` precision. The judge is started for the cold
  phase and judges the warm one, too, as a service does. GPU-seconds are the leases'.
- `kernelbench`: all cores build, then each program is evaluated in a separate process, one at a time, with 5 trials for
  correctness and 100 for time. GPU-seconds are those of these processes. The checkout's package is imported.

The same command measures the blocks that `OUT/blocks.jsonl` lacks; `OUT/summary.json` has the summary. With `--sides
cudal1 --device cpu` cudal1 runs without a GPU, which shows only that the command works.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

from cudal1_data import Task, load_suite
from cudal1_data.corpus.build import render
from cudal1_env import Evaluation, TaskError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import PROTOCOL_VERSION, Device, Status
from parts import machine_line

SEED = 20261125
SETS = ("plain", "inline", "rl")
SIDES = ("cudal1", "kernelbench")
PROGRAMS = 24
RL_TASKS = 4
BLOCK = 6
"""Programs that a side judges before the sides alternate."""
IMPORT = """
import importlib.util, os, sys
from unittest.mock import MagicMock
sys.path.insert(0, os.path.join(sys.argv[1], "src"))
for name in ("dotenv", "litellm", "openai"):  # clients of language models, which its evaluator never calls
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = MagicMock()
from kernelbench.eval import build_compile_cache, eval_kernel_against_ref
"""
KERNELBENCH = (
    IMPORT
    + """
import json
mode, folder = sys.argv[2:4]
given = json.load(sys.stdin)
if mode == "build":
    build_compile_cache(given["program"], build_dir=folder)
else:
    backend = "triton" if "import triton" in given["program"] else "cuda"
    found = eval_kernel_against_ref(
        given["reference"], given["program"], num_correct_trials=5, num_perf_trials=100, measure_performance=True,
        build_dir=folder, backend=backend,
    )
    print("RESULT", json.dumps({"compiled": found.compiled, "correct": found.correctness} if found else {}))
"""
)
"""A process of KernelBench's evaluator."""


@dataclass(frozen=True)
class Job:
    """A program of a set, with its task."""

    task: Task
    program: str


@dataclass
class Counts:
    """Results of a side in one block."""

    seconds: float
    gpu_seconds: float
    statuses: list[str]
    half_widths: list[float]
    """Half the width of each speedup interval, over its point."""


def published(table: Path, *, inline: bool, count: int) -> list[Job]:
    """Sample published programs with or without an extension."""
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows = [row for row in rows if row["custom_code"] and ("load_inline" in row["custom_code"]) is inline]
    jobs: list[Job] = []
    for row in random.Random(SEED).sample(rows, min(count, len(rows))):
        name = f"level{row['level_id']}/{row['task_id']}"
        task = Task(id=f"file/{name}", source=row["ref_code"], name=name, level=row["level_id"], origin="file")
        jobs.append(Job(task, row["custom_code"]))
    return jobs


def new_programs(device: Device, count: int) -> list[Job]:
    """Render programs for a few generated tasks, one task after another, as a policy in training sends them."""
    tasks = list(load_suite(f"generated?n=64&seed={SEED}", device=device))
    random.Random(SEED).shuffle(tasks)
    backends = ("triton", "cuda-nvrtc") if device == "cuda" else ("pytorch",)
    jobs: list[Job] = []
    found = 0
    for task in tasks:
        usable = (pair for pair in render(task, SEED, backends=backends) if device == "cuda" or not pair.needs_gpu)
        pairs = list(islice(usable, count // RL_TASKS))
        if len(pairs) == count // RL_TASKS or device == "cpu":
            jobs += [Job(task, pair.source) for pair in pairs]
            found += 1
        if found == RL_TASKS:
            break
    return jobs


def jobs_of(name: str, table: Path, device: Device, count: int) -> list[Job]:
    """Return the programs of a set."""
    return new_programs(device, count) if name == "rl" else published(table, inline=name == "inline", count=count)


def judged(judge: Judge, jobs: Sequence[Job], began: float | None) -> Counts:
    """Judge programs with cudal1; count from `began` on, when the judge was started, or from now on.

    A task that the judge refuses costs its seconds and gives no verdict.
    """
    pairs = [(job.task, job.program) for job in jobs]
    began = time.perf_counter() if began is None else began
    outcomes: dict[int, Evaluation | TaskError] = {}
    judge.evaluate_each(pairs, outcomes.__setitem__, precision="training")
    seconds = time.perf_counter() - began
    found = [one for _, one in sorted(outcomes.items()) if isinstance(one, Evaluation)]
    ratios = [one.speedup for one in found if one.status is Status.CORRECT and one.speedup is not None]
    return Counts(
        seconds,
        sum(one.seconds.lease_s for one in found),
        [one.status.value for one in found],
        [(one.high - one.low) / 2 / one.point for one in ratios],
    )


def import_problem(checkout: Path) -> str:
    """Return why KernelBench's evaluator cannot be imported; empty if it can."""
    done = subprocess.run([sys.executable, "-c", IMPORT, str(checkout)], capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1] if done.returncode else ""


def kernelbench(checkout: Path, builds: Path, jobs: Sequence[Job]) -> Counts:
    """Judge programs with KernelBench's evaluator."""

    def run(mode: str, job: Job, place: int) -> str:
        given = json.dumps({"reference": job.task.source, "program": job.program})
        command = [sys.executable, "-c", KERNELBENCH, str(checkout), mode, str(builds / str(place))]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return "timeout"
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            return "no result" if mode == "evaluate" else ""
        result = json.loads(lines[-1].removeprefix("RESULT "))
        return "CORRECT" if result.get("correct") else "incorrect" if result.get("compiled") else "not built"

    began = time.perf_counter()
    inline = [place for place, job in enumerate(jobs) if "load_inline" in job.program]
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as executor:
        list(executor.map(lambda place: run("build", jobs[place], place), inline))
    gpu = time.perf_counter()
    statuses = [run("evaluate", job, place) for place, job in enumerate(jobs)]
    end = time.perf_counter()
    return Counts(end - began, end - gpu, statuses, [])


@contextmanager
def watched(device: Device) -> Iterator[Callable[[], float | None]]:
    """Sample the GPU's utilization ten times per second; yield a function that returns its mean."""
    if device == "cpu":
        yield lambda: None
        return
    import pynvml  # pyright: ignore[reportMissingTypeStubs]

    pynvml.nvmlInit()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    handle = pynvml.nvmlDeviceGetHandleByIndex(int(first))
    samples: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            samples.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: statistics.fmean(samples) if samples else None
    finally:
        ended.set()
        thread.join()


def block(side: str, jobs: Sequence[Job], given: argparse.Namespace, scratch: Path) -> Iterator[dict[str, Any]]:
    """Judge a block cold and warm with one side; yield a line for each."""
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")  # without builds of earlier blocks
    began = time.perf_counter()
    with Judge(JudgeSettings(device=given.device)) if side == "cudal1" else nullcontext() as judge:
        for phase in ("cold", "warm"):
            with watched(given.device) as busy:
                if judge is not None:
                    counts = judged(judge, jobs, began)
                else:
                    counts = kernelbench(given.kernelbench, scratch / "builds", jobs)
                share = busy()
            yield {"side": side, "phase": phase, "programs": len(counts.statuses), "busy_share": share, **vars(counts)}
            began = None


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return verdicts per minute, GPU-seconds and half-widths by set, phase and side.

    >>> line = {"set": "rl", "phase": "warm", "side": "cudal1", "programs": 6, "seconds": 12.0, "gpu_seconds": 9.0,
    ...         "statuses": ["CORRECT"], "half_widths": [0.02], "busy_share": None}
    >>> summary([line, line])[0]["verdicts_per_minute"]
    30.0
    """
    rows: list[dict[str, Any]] = []
    for key in sorted({(line["set"], line["phase"], line["side"]) for line in lines}):
        mine = [line for line in lines if (line["set"], line["phase"], line["side"]) == key]
        programs, seconds = sum(line["programs"] for line in mine), sum(line["seconds"] for line in mine)
        widths = [one for line in mine for one in line["half_widths"]]
        busy = [line["busy_share"] for line in mine if line["busy_share"] is not None]
        statuses = [status for line in mine for status in line["statuses"]]
        rows.append(
            {
                "set": key[0],
                "phase": key[1],
                "side": key[2],
                "blocks": len(mine),
                "verdicts_per_minute": round(60 * programs / seconds, 2),
                "per_minute_by_block": [round(60 * line["programs"] / line["seconds"], 2) for line in mine],
                "gpu_seconds_per_verdict": round(sum(line["gpu_seconds"] for line in mine) / programs, 3),
                "busy_share": round(statistics.fmean(busy), 3) if busy else None,
                "median_half_width": round(statistics.median(widths), 4) if widths else None,
                "statuses": {name: statuses.count(name) for name in sorted(set(statuses))},
            }
        )
    return rows


def main() -> None:
    """Measure the missing blocks, then summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", type=Path, required=True, help="published programs: CUDA-L1's h100.jsonl")
    parser.add_argument("--kernelbench", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="of each set")
    parser.add_argument("--budget-s", type=float, default=480.0, help="no block begins later")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    if "kernelbench" in given.sides and given.kernelbench is None:
        parser.error("name a checkout of KernelBench by --kernelbench, or leave its side out: --sides cudal1")
    if "kernelbench" in given.sides and (problem := import_problem(given.kernelbench)):
        parser.error(f"KernelBench's evaluator does not start, so it would seem to be fast: {problem}")
    end = time.monotonic() + given.budget_s
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "blocks.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(line["set"], line["block"], line["side"], line["phase"]) for line in lines}
    (given.out / "machine.json").write_text(json.dumps(machine_line(), indent=1))
    jobs = {name: jobs_of(name, given.table, given.device, given.programs) for name in given.sets}
    # One block of each set at a time, so that a short budget covers every set.
    for start in range(0, given.programs, BLOCK):
        number = start // BLOCK
        order = given.sides if number % 2 == 0 else given.sides[::-1]
        for name, side in product(given.sets, order):
            part = jobs[name][start : start + BLOCK]
            if not part or (name, number, side, "warm") in known or time.monotonic() > end:
                continue
            scratch = Path(tempfile.mkdtemp(prefix="throughput-"))
            try:
                found = list(block(side, part, given, scratch))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            with path.open("a") as file:
                for line in found:
                    line = {"set": name, "block": number, "protocol": PROTOCOL_VERSION, **line}
                    lines.append(line)
                    file.write(json.dumps(line) + "\n")
                    print(json.dumps(line), file=sys.stderr, flush=True)
    rows = summary(lines)
    (given.out / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
