"""How long do extensions take to build? `python benchmarks/builds.py OUT.jsonl [--at-once 16] [--repeats 2]`.

First `load_inline` with torch's compilers ("stock") and with the judge's ("ours"), alternating: one build alone, and
`--at-once` builds in parallel. Each build has a fresh process with torch already imported, and a unique source. "Ours"
has the precompiled headers, as from a judge's third extension on; their making has a line of its own. Then
verdicts: a program with the extension, cold, again, and by another judge (both from the store); on a GPU also the same
kernel through NVRTC. Without a GPU, a C++ extension replaces the CUDA one. One JSON line each, then one with the
summary (medians), which is also printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cudal1_data import Task
from cudal1_env.hardware import resolve_device
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Device
from cudal1_worker import compilers
from parts import fresh, machine_line

CPP = """
torch::Tensor twice(torch::Tensor x) {{
    auto y = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * {factor};
    return y;
}}
"""
CUDA = """
__global__ void twice_kernel(const float* from, float* to, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] * {factor};
}}

torch::Tensor twice(torch::Tensor x) {{
    auto y = torch::empty_like(x);
    int n = x.numel();
    twice_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}}
"""
CALL = {
    "cpu": "load_inline(name='twice', cpp_sources={text!r}, functions=['twice'])",
    "cuda": "load_inline(name='twice', cpp_sources='torch::Tensor twice(torch::Tensor x);', cuda_sources={text!r}, "
    "functions=['twice'])",
}
CHILD = """
import sys, time
from torch.utils.cpp_extension import load_inline
print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
{call}
print(time.perf_counter() - began, flush=True)
"""
EXTENSION = """import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

# {number}
module = {call}


class ModelNew(nn.Module):
    def forward(self, x):
        return module.twice(x)
"""
NVRTC = """import torch
import torch.nn as nn

# {number}
TEXT = '''extern "C" __global__ void twice(const float* from, float* to, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] * 2.0f;
}}'''
kernel = torch.cuda._compile_kernel(TEXT, "twice")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        kernel(grid=((n + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, y, n])
        return y
"""
REFERENCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn({size})]


def get_init_inputs():
    return []
"""
SIZE = {"cpu": 1 << 20, "cuda": 1 << 26}


def call(device: Device, factor: float) -> str:
    """Return the call that builds an extension; `factor` makes its source unique."""
    text = (CUDA if device == "cuda" else CPP).format(factor=f"{factor}f")
    return CALL[device].format(text=text)


def builds_s(device: Device, headers: str | None, count: int, first: int) -> tuple[list[float], float]:
    """Build extensions in parallel.

    Args:
        device: For a GPU, or for the CPU.
        headers: Folder of precompiled headers for the judge's compilers; None for torch's.
        count: Number of extensions.
        first: Number of the first source.

    Returns:
        Seconds of each build, and of all together.
    """
    with tempfile.TemporaryDirectory() as root:
        children: list[subprocess.Popen[str]] = []
        for number in range(first, first + count):
            folder = Path(root, str(number))
            environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder), "TORCH_NO_COMPILER_WRAPPER": "1"}
            environment |= architecture(device)
            if headers is not None:
                environment |= {**compilers.settings(os.environ, str(folder)), "CUDAL1_HEADERS": headers}
            command = [sys.executable, "-c", CHILD.format(call=call(device, 2.0 + number / 1000))]
            pipe = subprocess.PIPE
            children.append(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True))
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise SystemExit("a process for building an extension did not start; see its error above")
        began = time.perf_counter()
        for child in children:  # all begin before any is waited for
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        told = [child.communicate()[0] for child in children]
        return [float(text) for text in told], time.perf_counter() - began


def architecture(device: Device) -> dict[str, str]:
    """Return the setting of the only architecture to compile for."""
    if device == "cpu":
        return {}
    import torch

    major, minor = torch.cuda.get_device_capability()
    return {"TORCH_CUDA_ARCH_LIST": f"{major}.{minor}+PTX"}


def verdicts(device: Device) -> list[dict[str, Any]]:
    """Judge the extension cold, again and by another judge; then the same kernel through NVRTC, twice."""
    task = Task(id="file/twice", source=REFERENCE.format(size=SIZE[device]), name="twice", level=1, origin="file")
    number = int.from_bytes(os.urandom(4), "little")  # makes the source unknown to every store
    extension = EXTENSION.format(number=number, call=call(device, 2.0))
    lines: list[dict[str, Any]] = []

    def judged(judge: Judge, name: str, source: str) -> None:
        one = judge.evaluate(task, source)
        lines.append({"kind": "verdict", "name": name, "status": one.status, "seconds": one.seconds.model_dump()})
        print(f"{name}: {one.message} {one.seconds}", file=sys.stderr, flush=True)

    with Judge(JudgeSettings(device=device)) as judge:
        judge.evaluate(task, REFERENCE.format(size=SIZE[device]).split("def get")[0].replace("Model(", "ModelNew("))
        judged(judge, "extension, cold", extension)
        judged(judge, "extension, again", extension)
        if device == "cuda":
            judged(judge, "NVRTC, cold", NVRTC.format(number=number))
            judged(judge, "NVRTC, again", NVRTC.format(number=number))
    with Judge(JudgeSettings(device=device)) as judge:
        judged(judge, "extension, another judge", extension)
    return lines


def main() -> None:
    """Measure, record and summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    device = resolve_device("auto")
    file = fresh(options.out)
    file.add(machine_line())
    alone: dict[str, list[float]] = {"stock": [], "ours": []}
    together: dict[str, float] = {}
    number = 0
    with tempfile.TemporaryDirectory() as headers:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-m", "cudal1_worker.compilers.headers", headers], check=True)
        file.add({"kind": "headers", "seconds": time.perf_counter() - began})
        for count, repeats in ((1, options.repeats), (options.at_once, 1)):
            for repeat in range(repeats):
                for way in ("stock", "ours"):
                    seconds, all_s = builds_s(device, headers if way == "ours" else None, count, number)
                    number += count
                    line = {"way": way, "at_once": count, "repeat": repeat, "seconds": seconds, "all_s": all_s}
                    file.add({"kind": "build", **line})
                    print(json.dumps(line), file=sys.stderr, flush=True)
                    if count == 1:
                        alone[way] += seconds
                    together[way] = all_s
    judged = verdicts(device)
    for line in judged:
        file.add(line)
    summary = {
        "kind": "summary",
        "alone_s": {way: statistics.median(seconds) for way, seconds in alone.items()},
        "at_once": options.at_once,
        "all_s": together,
        "verdicts": {
            line["name"]: {part: line["seconds"][part] for part in ("total_s", "build_s", "lease_s")} for line in judged
        },
    }
    file.add(summary)
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
