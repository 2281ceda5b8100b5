"""Tasks small enough for an interpreter, and programs run beside their reference on the CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import ModuleType

import torch
from cudal1_data import Task, load_task

SMALL = {
    "ROWS": 12,
    "BATCH": 2,
    "B": 8,
    "H": 16,
    "W": 16,
    "HEIGHT": 16,
    "WIDTH": 16,
    "LENGTH": 24,
    "STEPS": 6,
    "T": 6,
    "TOKENS": 24,
}
_numbers = count()

SHIMS = """
extern "C" {
float expf(float);
float logf(float);
float log1pf(float);
float expm1f(float);
float sqrtf(float);
float sinf(float);
float cosf(float);
float tanhf(float);
float atanf(float);
float erff(float);
float fabsf(float);
float fmaxf(float, float);
float fminf(float, float);
}
#define __global__
#define __restrict__
#define __launch_bounds__(n)
struct Place { unsigned int x, y; };
static Place blockIdx, threadIdx;
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static float __uint_as_float(unsigned int x) { float f; __builtin_memcpy(&f, &x, 4); return f; }
static float half_to_float(unsigned short h) { _Float16 f; __builtin_memcpy(&f, &h, 2); return (float)f; }
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static float row_sum(float x) { return x; }
static float row_max(float x) { return x; }
static float row_min(float x) { return x; }
static float row_scan(float x, float& carry) { carry += x; return carry; }
"""
"""A GPU with one thread for each row. The helpers that join threads are left out: NVRTC alone sees them."""


def small_task(task_id: str) -> Task:
    """Return a task with few rows; its row lengths stay."""
    task = load_task(task_id, device="cpu")
    if "cpu" not in task.sizes:
        return task  # a file with a reference alone
    sizes = task.sizes["cpu"].default
    return task.at({name: size for name, size in SMALL.items() if sizes.get(name, 0) > size}, tag=False)


def imported(text: str, folder: Path) -> ModuleType:
    """Import a program. From a file: Triton reads its kernels' lines."""
    path = folder / f"program_{next(_numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def error_of(task: Task, program: str, folder: Path) -> float:
    """Return the largest error of a program, over the scale of the reference's answer."""
    reference, candidate = imported(task.source, folder), imported(program, folder)
    torch.manual_seed(1)
    model = reference.Model(*reference.get_init_inputs())
    new = candidate.ModelNew(*reference.get_init_inputs())
    new.load_state_dict(model.state_dict())
    inputs = reference.get_inputs()
    with torch.no_grad():
        wanted, got = model(*inputs), new(*inputs)
    if isinstance(wanted, torch.Tensor):
        wanted, got = (wanted,), (got,)
    assert [one.shape for one in wanted] == [one.shape for one in got]
    return max(
        float((one.double() - other.double()).abs().max() / one.double().abs().max())
        for one, other in zip(wanted, got, strict=True)
    )


def errors_in_interpreter(*tasks: str) -> dict[str, float]:
    """Errors of Triton programs by name, run in Triton's interpreter, which a process of its own is needed for.

    Args:
        tasks: Ids or files of references.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / "triton_child.py"), *tasks],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors: dict[str, float] = json.loads(done.stdout)
    return errors
