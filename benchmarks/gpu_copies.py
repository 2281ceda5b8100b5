"""What puts another process's context on the GPU? `python benchmarks/gpu_copies.py OUT.jsonl [--rounds 200]`.

Kernels of two processes take turns on a GPU, and changing from one to the other takes time. Here one process runs the
smallest kernel whenever it is told to, and says how long that took. Before each time the other process does one of
several things, in random order: nothing, copies of its own between host and GPU or within the GPU by several calls of
the driver, or a kernel. One JSON line for the machine, one for each thing with the milliseconds of all rounds, then the
summary: medians, and the median distance from them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cudal1_env.judge.device.cuda.copies import CopyEngine
from cudal1_worker import vmm
from parts import machine_line, write

MIB = 1 << 20
SIZES = (1, 64, 512)
"""Sizes of copies, in MiB."""
GO, DONE, ELAPSED_NS, PAGE = 0, 1, 2, 4096

CHILD = """
import mmap, sys, time, torch
words = memoryview(mmap.mmap(int(sys.argv[1]), 4096)).cast("Q")
x = torch.zeros(1, device="cuda")
x.add_(1)
torch.cuda.synchronize()
words[1] = last = 1
while True:
    turn = words[0]
    if turn in (0, last):
        continue
    last = turn
    began = time.perf_counter_ns()
    x.add_(1)
    torch.cuda.synchronize()
    words[2] = time.perf_counter_ns() - began
    words[1] = turn
"""


def main() -> None:
    """Measure, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), PAGE)
        words = memoryview(mmap.mmap(file.fileno(), PAGE)).cast("Q")
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(file.fileno())], pass_fds=[file.fileno()])
        try:
            wait(words, 1, child)
            found = measured(words, child, options.rounds)
        finally:
            child.kill()
            child.wait()
    with options.out.open("w") as out:
        write(out, machine_line())
        summary: dict[str, Any] = {"kind": "summary"}
        for name, times in found.items():
            write(out, {"kind": "after", "name": name, "ms": times})
            middle = statistics.median(times)
            spread = statistics.median(abs(one - middle) for one in times)
            summary[name] = {"median_ms": round(middle, 4), "median_distance_ms": round(spread, 4)}
        write(out, summary)
    print(json.dumps(summary, indent=1))


def measured(words: memoryview, child: subprocess.Popen[bytes], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of the child's kernel, by what was done before."""
    found: dict[str, list[float]] = {}
    jobs = [job for job in things().items() for _ in range(rounds)]
    random.shuffle(jobs)
    turn = 1
    for name, act in jobs:
        for timed in (False, True):  # the first brings the child's context onto the GPU
            if timed:
                act()
            turn += 1
            words[GO] = turn
            wait(words, turn, child)
        found.setdefault(name, []).append(words[ELAPSED_NS] * 1e-6)
    return dict(sorted(found.items()))


def things() -> dict[str, Callable[[], None]]:
    """What may be done before; each has ended on the GPU when it returns."""
    most = max(SIZES) * MIB
    source, target = (torch.zeros(most, dtype=torch.uint8, device="cuda") for _ in range(2))
    host = torch.zeros(most, dtype=torch.uint8, pin_memory=True)
    engine, driver = CopyEngine(), vmm.driver
    stream = vmm.check(driver.cuStreamCreate(1))
    context = vmm.check(driver.cuCtxGetCurrent())

    def waited(result: tuple[Any, ...]) -> None:
        vmm.check(result)
        vmm.check(driver.cuStreamSynchronize(stream))

    def kernel() -> None:
        target[:1024].add_(1)
        torch.cuda.synchronize()

    here, there = source.data_ptr(), target.data_ptr()
    found: dict[str, Callable[[], None]] = {"nothing": lambda: None, "a kernel": kernel}
    for size in SIZES:
        count = size * MIB
        found |= {
            f"host to GPU, {size} MiB": lambda n=count: engine.copy_one(there, host.data_ptr(), n),
            f"GPU to host, {size} MiB": lambda n=count: engine.copy_one(host.data_ptr(), here, n),
            f"within, cuMemcpyBatchAsync, {size} MiB": lambda n=count: engine.copy_one(there, here, n),
            f"within, cuMemcpyDtoDAsync, {size} MiB": lambda n=count: waited(
                driver.cuMemcpyDtoDAsync(there, here, n, stream)
            ),
            f"within, cuMemcpyPeerAsync, {size} MiB": lambda n=count: waited(
                driver.cuMemcpyPeerAsync(there, context, here, context, n, stream)
            ),
        }
    for act in found.values():
        act()
    return found


def wait(words: memoryview, turn: int, child: subprocess.Popen[bytes]) -> None:
    """Wait until the child has done its turn."""
    limit = time.monotonic() + 60
    while words[DONE] != turn:
        if time.monotonic() > limit or child.poll() is not None:
            raise RuntimeError("expected the other process to answer within a minute, it did not")


if __name__ == "__main__":
    main()
