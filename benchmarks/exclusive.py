"""Does a kernel of the judge keep the worker's context off the GPU? And what is left between its end and an answer?

    python benchmarks/exclusive.py OUT.jsonl

Decision 008 releases inputs by a key: taking off the mask moves two bytes for each byte of input, and all of it is h.
A copy by a kernel of the judge's own context would be part of L and not of h, if nothing of the worker ran meanwhile:
work of different contexts has a GPU in turns only (CUDA C++ Best Practices Guide, "Multiple Contexts"). This asks it.

The judge's process copies into memory that a worker's process maps, for each size of inputs and each kind of worker:

- `honest`: waits for a word in host memory, launches an empty kernel, waits for it, writes a word;
- `watching`: a kernel that never ends reads the target, notes when each of 1,024 words changes, notes when it was kept
  from running, and answers as soon as it has seen the last word.

Microseconds. `arrival_us`: from the copy's launch until the host sees its end. `answer_us`: from there to the answer.
`copy_us`: the kernel's own time by the GPU's timer. `seen_us`: from its end to the first change that the watcher saw,
and to the last; a negative one was seen early. `early`: words seen before the end, of all. `kept_out`: copies during
which the watcher did not run at all, of all.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cudal1_env.judge.device.cuda.compiled import compiled
from cudal1_worker import vmm
from cudal1_worker.vmm import check, driver

KIB = 1 << 10
SIZES = [4 * KIB, 1024 * KIB, 16384 * KIB, 65536 * KIB, 262144 * KIB, 1048576 * KIB, 4194304 * KIB]
"""Bytes of inputs."""
KINDS = ("honest", "watching")
ROUNDS = 60
WATCHED = 1024
GAPS = 4096
GAP_NS = 5000
"""A watcher that does not read the timer for so long was kept from running."""
READY, GO, DONE, STOP = range(4)
"""Words of the page that both processes map."""
SOURCE = """
typedef unsigned int word;
typedef unsigned long long wide;
__device__ wide now() { wide t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }

extern "C" __global__ void fill(word* target, wide count, word value) {
    for (wide i = blockIdx.x * (wide)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (wide)blockDim.x)
        target[i] = value;
}

extern "C" __global__ void copy(const uint4* source, uint4* target, wide count, wide* times) {
    if (threadIdx.x == 0) atomicMin(times, now());
    for (wide i = blockIdx.x * (wide)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (wide)blockDim.x)
        target[i] = source[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(times + 1, now());
}

extern "C" __global__ void nothing() {}

extern "C" __global__ void watch(volatile word* target, wide step, wide* seen, wide* gaps, volatile wide* page) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    word last = target[me * step];
    wide before = now();
    int found = 0;
    if (me == 0) page[READY] = 1;
    while (!page[STOP]) {
        const wide t = now();
        if (threadIdx.x == 0 && t - before > GAP_NS && found < GAPS) {
            gaps[(blockIdx.x * GAPS + found) * 2] = before;
            gaps[(blockIdx.x * GAPS + found) * 2 + 1] = t;
            ++found;
        }
        before = now();
        const word value = target[me * step];
        if (value != last) {
            last = value;
            if (value <= ROUNDS) seen[(value - 1) * WATCHED + me] = now();
            if (me == WATCHED - 1) { __threadfence_system(); page[DONE] = value; }
        }
    }
}
"""
for name in ("READY", "STOP", "DONE", "GAP_NS", "GAPS", "ROUNDS", "WATCHED"):
    SOURCE = SOURCE.replace(name, str(globals()[name]))
BLOCKS, THREADS = 32, 32


class Gpu:
    """A context on the first GPU, with the kernels of this file."""

    def __init__(self) -> None:
        check(driver.cuInit(0))
        device = check(driver.cuDeviceGet(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
        attribute = driver.CUdevice_attribute
        major = check(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
        minor = check(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        self.processors = check(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device))
        self._module = check(driver.cuModuleLoadData(compiled(SOURCE, f"sm_{major}{minor}")))
        self.stream = check(driver.cuStreamCreate(1))

    def launch(self, name: str, blocks: int, threads: int, *values: tuple[int, Any]) -> None:
        """Start a kernel; each value comes with its ctypes type."""
        function = check(driver.cuModuleGetFunction(self._module, name.encode()))
        arguments = (tuple(one for one, _ in values), tuple(kind for _, kind in values))
        check(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, self.stream, arguments, 0))

    def wait(self) -> None:
        """Wait for the stream, spinning."""
        while driver.cuStreamQuery(self.stream)[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            pass
        check(driver.cuStreamSynchronize(self.stream))

    def zeros(self, count: int) -> int:
        """Return the address of words of 64 bits."""
        address = int(check(driver.cuMemAlloc(8 * count)))
        check(driver.cuMemsetD8(address, 0, 8 * count))
        return address

    def read(self, address: int, count: int) -> np.ndarray[Any, Any]:
        """Copy words of 64 bits to the host."""
        values = np.zeros(count, dtype=np.uint64)
        check(driver.cuMemcpyDtoH(values.ctypes.data, address, 8 * count))
        return values


def worker(kind: str, fd: int, page_fd: int, size_bytes: int, out: str) -> None:
    """Be the worker until the page says stop."""
    gpu = Gpu()
    page_map = mmap.mmap(page_fd, mmap.PAGESIZE)
    page = np.frombuffer(page_map, dtype=np.uint64)
    target = vmm.Mapping.take(fd, size_bytes, 0)
    if kind == "honest":
        gpu.launch("nothing", 1, 32)
        gpu.wait()
        page[READY] = 1
        done = 0
        while not page[STOP]:
            if (turn := int(page[GO])) != done:
                gpu.launch("nothing", 1, 32)
                gpu.wait()
                page[DONE] = done = turn
        return
    at = page.ctypes.data
    check(driver.cuMemHostRegister(at, mmap.PAGESIZE, driver.CU_MEMHOSTREGISTER_DEVICEMAP))
    on_gpu = int(check(driver.cuMemHostGetDevicePointer(at, 0)))
    seen, gaps = gpu.zeros(ROUNDS * WATCHED), gpu.zeros(BLOCKS * GAPS * 2)
    step = size_bytes // 4 // WATCHED
    wide, pointer = ctypes.c_uint64, ctypes.c_void_p
    gpu.launch(
        "watch",
        BLOCKS,
        THREADS,
        (target.address, pointer),
        (step, wide),
        (seen, pointer),
        (gaps, pointer),
        (on_gpu, pointer),
    )
    check(driver.cuStreamSynchronize(gpu.stream))
    np.savez(out, seen=gpu.read(seen, ROUNDS * WATCHED), gaps=gpu.read(gaps, BLOCKS * GAPS * 2))


def measured(gpu: Gpu, kind: str, size_bytes: int) -> dict[str, Any]:
    """Copy ROUNDS times beside a worker."""
    source, target = vmm.Mapping.create(size_bytes, 0), vmm.Mapping.create(size_bytes, 0)
    fd, page_fd = target.export(), os.memfd_create("page")
    os.ftruncate(page_fd, mmap.PAGESIZE)
    page_map = mmap.mmap(page_fd, mmap.PAGESIZE)
    page = np.frombuffer(page_map, dtype=np.uint64)
    wide, pointer, word = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32
    wave = 8 * gpu.processors
    rounds: list[tuple[float, float]] = []
    kernels: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "seen.npz")
        command = [sys.executable, __file__, "--worker", kind, str(fd), str(page_fd), str(size_bytes), out]
        with subprocess.Popen(command, pass_fds=[fd, page_fd]) as process:
            while not page[READY]:
                if process.poll() is not None:
                    raise SystemExit(f"the {kind} worker ended with {process.returncode}")
                time.sleep(0.01)
            times = gpu.zeros(2 * ROUNDS)
            check(
                driver.cuMemcpyHtoD(times, np.array([2**63 - 1, 0] * ROUNDS, dtype=np.uint64).ctypes.data, 16 * ROUNDS)
            )
            for number in range(1, ROUNDS + 1):
                gpu.launch("fill", wave, 256, (source.address, pointer), (size_bytes // 4, wide), (number, word))
                gpu.wait()
                time.sleep(0.004)
                began = time.perf_counter_ns()
                gpu.launch(
                    "copy",
                    wave,
                    256,
                    (source.address, pointer),
                    (target.address, pointer),
                    (size_bytes // 16, wide),
                    (times + 16 * (number - 1), pointer),
                )
                gpu.wait()
                ended = time.perf_counter_ns()
                page[GO] = number
                while page[DONE] != number:
                    if process.poll() is not None or time.perf_counter_ns() - ended > 5e9:
                        raise SystemExit(f"the {kind} worker does not answer")
                answered = time.perf_counter_ns()
                rounds.append((1e-3 * (ended - began), 1e-3 * (answered - ended)))
            page[STOP] = 1
            process.wait(60)
        flat = gpu.read(times, 2 * ROUNDS).astype(np.int64)
        kernels = [(int(flat[2 * k]), int(flat[2 * k + 1])) for k in range(ROUNDS)]
        line: dict[str, Any] = {
            "kind": kind,
            "input_bytes": size_bytes,
            "arrival_us": spread([one for one, _ in rounds]),
            "answer_us": spread([one for _, one in rounds]),
            "copy_us": spread([1e-3 * (end - start) for start, end in kernels]),
        }
        if kind == "watching":
            line |= found(kernels, np.load(out))
    os.close(fd)
    os.close(page_fd)
    source.close()
    target.close()
    return line


def found(kernels: Sequence[tuple[int, int]], logs: Any) -> dict[str, Any]:
    """What the watcher saw, beside the times of the copies."""
    seen = logs["seen"].reshape(ROUNDS, WATCHED).astype(np.int64)
    gaps = logs["gaps"].reshape(BLOCKS, GAPS, 2).astype(np.int64)
    first, last, kept_out = [], [], 0
    early = 0
    for (start, end), row in zip(kernels, seen, strict=True):
        row = row[row > 0]
        first.append(1e-3 * (row.min() - end))
        last.append(1e-3 * (row.max() - end))
        early += int((row < end).sum())
        kept_out += bool(all(((one[:, 0] <= start) & (one[:, 1] >= end)).any() for one in gaps))
    return {
        "seen_us": {"first": spread(first), "last": spread(last)},
        "early": [early, int((seen > 0).sum())],
        "kept_out": [kept_out, len(kernels)],
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Smallest, median and largest."""
    return {
        "min": round(min(values), 2),
        "median": round(statistics.median(values), 2),
        "max": round(max(values), 2),
    }


def main() -> None:
    """Measure what is not in the file yet."""
    if sys.argv[1:2] == ["--worker"]:
        kind, fd, page_fd, size, log = sys.argv[2:]
        worker(kind, int(fd), int(page_fd), int(size), log)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(one["kind"], one["input_bytes"]) for one in known}
    gpu = Gpu()
    for size_bytes in SIZES:
        for kind in KINDS:
            if (kind, size_bytes) in done:
                continue
            line = measured(gpu, kind, size_bytes)
            print(json.dumps(line), flush=True)
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
