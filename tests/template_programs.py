"""Tasks small enough for an interpreter, and comparisons of programs with their reference on the CPU."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from cudal1_data import Task
from cudal1_data.kernelgen.codegen.cuda.elements import pointwise_kernel
from cudal1_data.kernelgen.codegen.cuda.rows import row_kernel
from cudal1_data.kernelgen.codegen.cuda.text import CudaKernel
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, plan
from cudal1_data.kernelgen.ir import walk
from cudal1_data.kernelgen.sizes import Size
from first_stream import stored_task

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
SMALL_OF = {
    "starter/swish_chain": {"N": 4},
    "starter/softplus_mish": {"N": 4},
    "starter/instance_norm_scale": {"B": 2, "C": 3},
    "starter/conv_batchnorm_eval": {"OUT_CH": 8},
    "generated/structured-3-10": {"SIZE": 24},
    "generated/matmul_shapes-3-1": {"INNER": 75, "MIDDLE": 56, "COLS": 100},
}
"""Sizes that count rows only in these tasks; in other tasks the same name is a row's length."""
PRODUCTS = (
    "starter/matmul_bias_gelu",
    "starter/linear_scale_residual",
    "starter/mixer_block",
    "starter/gru_like_cell",
    "generated/matmul_epilogue-3-0",
    "generated/matmul_epilogue-3-1",
    "generated/matmul_shapes-3-1",
    "generated/recurrent-3-0",
    "generated/short-1-14",
)
"""Tasks with a product that a kernel computes."""
CHAINS = (
    "generated/attention-0-1",
    "generated/attention-0-5",
    "generated/attention-0-0",
    "generated/attention-0-2",
    "starter/causal_attention_mask",
    "starter/attention_naive",
)
"""Tasks with scores between two products."""
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
static long long wrapped(long long place, long long size) { return place < 0 ? place + size : place; }
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct ushort2 { unsigned short x, y; };
struct ushort4 { unsigned short x, y, z, w; };
static unsigned short to_float16(float f) {
    _Float16 h = (_Float16)f;
    unsigned short u;
    __builtin_memcpy(&u, &h, 2);
    return u;
}
static float join_sum(float x) { return x; }
static float join_max(float x) { return x; }
static float join_min(float x) { return x; }
static float join_scan(float x, float& carry) { carry += x; return carry; }
static float join_parts(float x, float& carry) { float before = carry; carry += x; return before; }
static float join_scan_product(float x, float& carry) { carry *= x; return carry; }
static float join_parts_product(float x, float& carry) { float before = carry; carry *= x; return before; }
"""
"""Emulates a GPU with one thread per row, with trivial versions of the helpers that join threads."""


def small_task(task_id: str) -> Task:
    """Return a task with few rows but the same row lengths."""
    task = stored_task(task_id)
    if "cpu" not in task.sizes:
        return task  # a file with only a reference
    sizes = task.sizes["cpu"].default
    small = SMALL | SMALL_OF.get(task_id, {})
    return task.at({name: size for name, size in small.items() if sizes.get(name, 0) > size}, tag=False)


def reference_of(
    forward: str,
    *,
    inputs: str,
    names: str = "x",
    init: str = "",
    parameters: str = "self",
    given: str = "",
    head: str = "",
    methods: str = "",
    tail: str = "",
) -> str:
    """Return a reference's text.

    Args:
        forward: Statements of `forward`, one a line, whose parameters are `names`.
        inputs: What `get_inputs` returns.
        init: Statements of the constructor, one a line, whose parameters are `parameters`.
        given: What `get_init_inputs` returns.
        head: Statements before the model.
        methods: Further lines of the class.
        tail: Statements at the end.
    """
    made = "".join(f"        {line}\n" for line in ["super().__init__()", *init.splitlines()])
    body = "".join(f"        {line}\n" for line in forward.splitlines())
    return (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n{head}\n\n"
        f"class Model(nn.Module):\n    def __init__({parameters}):\n{made}\n"
        f"    def forward(self, {names}):\n{body}{methods}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return [{given}]\n\n\n{tail}"
    )


def imported(text: str, folder: Path) -> ModuleType:
    """Import a program from a file, because Triton reads kernels from their file."""
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


def error_over_own(task: Task, program: str, folder: Path) -> float:
    """Return a program's largest error over the reference error, both relative to the float64 reference."""
    reference, candidate = imported(task.source, folder), imported(program, folder)
    torch.manual_seed(1)
    inputs = reference.get_inputs()
    model, new = reference.Model(*reference.get_init_inputs()), candidate.ModelNew(*reference.get_init_inputs())
    new.load_state_dict(model.state_dict())
    with torch.no_grad():
        own, got = model(*inputs), new(*inputs)
        exact = model.double()(*(one.double() for one in inputs))
    assert (got.shape, got.dtype) == (own.shape, own.dtype)
    return float((got.double() - exact).abs().max() / (own.double() - exact).abs().max())


def error_on_one_thread(task: Task, folder: Path, *, vector: int = 1) -> float:
    """Return the largest error of a reference's only kernel, run as C++, over the scale of the reference's answer."""
    reference = read(task.source)
    (kernel,) = (step for step in plan(reference.roots) if isinstance(step, Kernel))
    module = imported(task.source, folder)
    torch.manual_seed(2)
    model = module.Model(*module.get_init_inputs())
    inputs = module.get_inputs()
    known = dict(zip(reference.methods, inputs, strict=True))
    leaves = [
        model.get_parameter(leaf.text.removeprefix("self.")).detach()
        if leaf.kind == "parameter"
        else known[leaf.text if leaf.kind == "input" else leaf.operands[0].text].reshape(leaf.dims)
        for leaf in kernel.leaves
    ]
    (got,) = on_one_thread(kernel, folder, leaves, vector=vector)
    with torch.no_grad():
        wanted = model(*inputs)
    return float((got - wanted).abs().max() / wanted.abs().max())


def on_one_thread(kernel: Kernel, folder: Path, inputs: list[torch.Tensor], *, vector: int = 1) -> list[torch.Tensor]:
    """Run a kernel's text as C++, block after block; `vector` is the number of elements per step of a row."""
    made = (
        row_kernel(kernel, "fused", threads=32, per_block=1, unroll=1, vector=vector)
        if kernel.trailing
        else pointwise_kernel(kernel, "fused", threads=32, vector=2 if kernel.size % 2 == 0 else 1)
    )
    body = made.definition[made.definition.index("__global__") :].removesuffix("}\n")
    if kernel.trailing:  # one thread processes the whole row
        body = body.replace(f"start += {32 * vector}u", f"start += {vector}u")
    body = sizes_of(kernel, made) + body
    pointers = ", ".join(f"({kind})p[{place}]" for place, kind in enumerate(made.parameters))
    threads = 1 if kernel.trailing else 32
    body += (
        f'extern "C" void run(void** p) {{ for (unsigned int b = 0; b < {made.blocks}u; ++b) '
        f"for (unsigned int t = 0; t < {threads}u; ++t) {{ blockIdx.x = b; threadIdx.x = t; fused({pointers}); }} }}\n"
    )
    library = compiled(body, folder)
    outputs = [torch.full(node.dims, float("nan")) for node in kernel.outputs]
    held = [one.contiguous() for one in inputs] + outputs
    table = (ctypes.c_void_p * len(held))(*(one.data_ptr() for one in held))
    library.run(table)
    return outputs


def sizes_of(kernel: Kernel, made: CudaKernel) -> str:
    """Return C++ definitions of the sizes that a kernel names."""
    table = {name: int(eval(host, {}, constants_of(kernel))) for name, host in made.constants.items()}
    return "".join(f"constexpr unsigned int {name} = {size};\n" for name, size in table.items())


def constants_of(kernel: Kernel) -> dict[str, int]:
    """Return those constants of a reference that occur in a kernel's shapes."""
    sizes = [*kernel.domain, *(size for node in walk(*kernel.outputs) for size in node.dims)]
    return {one.host: int(one) for one in sizes if isinstance(one, Size) and one.host.isidentifier()}


def compiled(body: str, folder: Path) -> ctypes.CDLL:
    """Build a kernel's text and its caller as C++."""
    path = folder / f"kernel_{next(_numbers)}.cpp"
    path.write_text(SHIMS + body)
    library = path.with_suffix(".so")
    done = subprocess.run(
        ["g++", "-O1", "-w", "-fpermissive", "-shared", "-fPIC", str(path), "-o", str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + body
    return ctypes.CDLL(str(library))


def errors_in_interpreter(*tasks: str) -> dict[str, float]:
    """Return errors of Triton programs by name, run in Triton's interpreter, which needs a separate process.

    Args:
        tasks: Ids or files of references.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / "triton_child.py"), *tasks],
        capture_output=True,
        text=True,
        timeout=860,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors: dict[str, float] = json.loads(done.stdout)
    return errors


def errors_of_forms(forms: Mapping[str, str], folder: Path) -> dict[str, float]:
    """Return errors of the Triton programs of each reference, run in Triton's interpreter.

    The errors have the reference's name, and after a comma the kind of program if it is a particular one.
    """
    names = {str(folder / f"form{place}.py"): name for place, name in enumerate(forms)}
    for path, name in names.items():
        Path(path).write_text(forms[name])
    errors: dict[str, float] = {}
    left = set(forms)
    for told, error in errors_in_interpreter(*names).items():
        path, comma, kind = told.partition(",")
        errors[names[path] + comma + kind] = error
        left.discard(names[path])
    assert not left, "none of their programs ran"
    return errors


def built_for_sm_90(*pairs: Path) -> dict[str, object]:
    """Build the Triton kernels of programs for sm_90, in a process without Triton's interpreter.

    Args:
        pairs: JSON files with `reference` and `source`.
    """
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "triton_build.py"), *map(str, pairs)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, object] = json.loads(done.stdout)
    return told


def nvrtc_log(text: str) -> str:
    """Build a CUDA text for sm_90; return NVRTC's log if the build fails, else an empty text."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    _, made = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
    (result,) = nvrtc.nvrtcCompileProgram(made, 1, [b"--gpu-architecture=sm_90"])
    _, size = nvrtc.nvrtcGetProgramLogSize(made)
    log = bytearray(size)  # never bytes: Python shares those of length 1
    nvrtc.nvrtcGetProgramLog(made, log)
    nvrtc.nvrtcDestroyProgram(made)
    return log.decode() if int(result) else ""
