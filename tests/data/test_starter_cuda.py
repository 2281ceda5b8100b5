"""The starter suite's variants for a GPU alone: that they are correct, as far as that shows without one.

Every such variant is found by what stands in the folders. Triton's interpreter and the double of tests/doubles/cuda.py
run whole programs and their references, at small sizes and with arithmetic of the CPU. NVRTC builds each CUDA text
for sm_90 and the double checks launches at the sizes of a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import check_starter
import pytest
import torch
from check_starter import namespace
from cudal1_data import Task, Variant
from cudal1_data.kernelgen.make import variants
from cudal1_data.sources.starter import STARTER_FOLDER, load_starter_task
from doubles.cuda import DoubleError, Gpu, doubled
from starter_programs import check, small_tasks, variants_for_gpu
from template_programs import imported

CUDA = variants_for_gpu(("cuda-nvrtc", "cuda-load-inline"))
TRITON = variants_for_gpu(("triton",))
NAMES = [f"{name}/{variant.name}" for name, variant in CUDA]
WRITTEN = {"triton": "triton", "nvrtc": "cuda-nvrtc", "inline": "cuda-load-inline"}
WITHOUT_HEADERS = "typedef long int64_t;\n#define INFINITY __int_as_float(0x7f800000)\n"
"""NVRTC reads no headers here; an extension's kernels may use these names of theirs."""

FAMILIES = {one.name: name for name, one in CUDA if not one.name.startswith("inline")}
CASES = [
    pytest.param(name, one, id=f"{name}/{one.name}", marks=[pytest.mark.slow] * (FAMILIES.get(one.name) != name))
    for name, one in CUDA
]
"""One program of each kind by default, none with an extension: those take long. The double's mutants need some."""
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gpu]:
    """Doubles by program: what one test has built, another needs not build again."""
    return {name: Gpu(tmp_path_factory.mktemp("builds")) for name in NAMES}


def test_every_way_is_there_and_called_by_its_name() -> None:
    for name in sorted({name for name, _ in (*CUDA, *TRITON)}):
        task = load_starter_task(STARTER_FOLDER / name).on("cuda")
        by_hand = [one for one in variants(task) if one.template.startswith("starter:")]
        ways = {one.template.removeprefix("starter:"): one.backend for one in by_hand}
        assert {"pytorch", *WRITTEN.values()} <= set(ways.values()), name
        for variant in task.variants:
            if variant.devices == ("cuda",):
                assert ways[variant.name] == WRITTEN[variant.name.partition("_")[0]], f"{name}/{variant.name}"
                needs = {"triton": ("triton",), "nvrtc": (), "inline": ("cuda",)}[variant.name.partition("_")[0]]
                assert variant.needs == needs, f"{name}/{variant.name}"


@pytest.mark.slow
def test_triton_variants_agree_with_their_references_in_the_interpreter(repository: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(repository / "tests" / "starter_triton_child.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, str] = json.loads(done.stdout)
    assert len(said) == len(TRITON)
    assert {name: text for name, text in said.items() if text} == {}


@pytest.mark.slow
def test_triton_builds_the_kernels_for_sm_90(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches with tensors of the sizes of a GPU, which hold nothing, say what to build."""
    jit = pytest.importorskip("triton.runtime.jit", reason="needs Triton")
    from starter_triton_build import caught

    built: list[str] = []

    def run(kernel: object, *args: object, **more: object) -> None:
        caught(kernel, *args, **more)  # pyright: ignore[reportArgumentType]
        built.append(where)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit.JITFunction, "run", run)
    for name, variant in TRITON:
        where = f"{name}/{variant.name}"
        task = load_starter_task(STARTER_FOLDER / name).on("cuda")
        reference, program = namespace(task.source, task.id), imported(variant.source, tmp_path)
        with torch.device("meta"), torch.no_grad():
            program.ModelNew(*reference["get_init_inputs"]())(*reference["get_inputs"]())
    assert set(built) == {f"{name}/{variant.name}" for name, variant in TRITON}


@needs_compiler
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_cuda_variant_agrees_with_its_reference_on_the_double(
    name: str, variant: Variant, gpus: dict[str, Gpu], tmp_path: Path
) -> None:
    gpu = gpus[f"{name}/{variant.name}"]
    for number, task in enumerate(small_tasks(name)):
        gpu.dry, gpu.backwards = False, number % 2 == 1
        before = gpu.launches
        with doubled(gpu):
            check(task, variant, tmp_path)
        assert gpu.launches > before


def texts_at(task: Task, variant: Variant, gpu: Gpu) -> list[tuple[str, str]]:
    """Return what a program builds at one size; its launches are checked, and nothing is computed."""
    gpu.dry = True
    del gpu.texts[:]
    with doubled(gpu), torch.device("meta"), torch.no_grad():
        reference = namespace(task.source, task.id)
        model = namespace(variant.source, variant.name)["ModelNew"](*reference["get_init_inputs"]())
        wanted = reference["Model"](*reference["get_init_inputs"]())(*reference["get_inputs"]())
        got = model(*reference["get_inputs"]())
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    return list(gpu.texts)


@needs_compiler
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_cuda_variant_builds_and_launches_at_the_sizes_of_a_gpu(
    name: str, variant: Variant, gpus: dict[str, Gpu]
) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC")
    task = load_starter_task(STARTER_FOLDER / name)
    texts = {text for sized in (task.on("cuda"), *task.held_out("cuda"))
             for text, _ in texts_at(sized, variant, gpus[f"{name}/{variant.name}"])}  # fmt: skip
    assert texts
    for text in texts:
        _, made = nvrtc.nvrtcCreateProgram((WITHOUT_HEADERS + text).encode(), b"kernel.cu", 0, [], [])
        (result,) = nvrtc.nvrtcCompileProgram(made, 1, [b"--gpu-architecture=sm_90"])
        _, size = nvrtc.nvrtcGetProgramLogSize(made)
        log = bytearray(size)  # never bytes: Python shares those of length 1
        nvrtc.nvrtcGetProgramLog(made, log)
        assert int(result) == 0, f"{log.decode()}\n{text}"
        assert "__global__" in text
        nvrtc.nvrtcDestroyProgram(made)


# --- the double ------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    ("name", "variant", "old", "new"),
    [
        ("batched_matmul", "inline_tiles", "__syncthreads();\n#pragma", "#pragma"),
        ("batched_matmul", "inline_tiles", "row < n && col < m", "row <= n && col < m"),
        ("argmax_rows", "nvrtc_block", "best = values[thread % 8]", "best = values[thread % 4]"),
        ("diag_matmul", "nvrtc_rows", "threadIdx.x * 4", "threadIdx.x * 8"),
    ],
)
def test_the_double_finds_mutants(name: str, variant: str, old: str, new: str, tmp_path: Path) -> None:
    [correct] = [one for task, one in CUDA if (task, one.name) == (name, variant)]
    assert old in correct.source
    mutant = correct.model_copy(update={"source": correct.source.replace(old, new, 1)})
    gpu = Gpu(tmp_path)
    with pytest.raises((check_starter.CheckError, DoubleError)), doubled(gpu):
        for number, task in enumerate(small_tasks(name)):
            gpu.backwards = number % 2 == 1
            check(task, mutant, tmp_path)


KERNEL = """extern "C" __global__ void kernel(float* y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (float)threadIdx.x, 1);
}"""


@needs_compiler
def test_the_double_refuses_launches_that_a_gpu_refuses(tmp_path: Path) -> None:
    kernel = Gpu(tmp_path).compile_kernel(KERNEL, "kernel")
    y = torch.zeros(32)
    kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[y, 32])
    assert y.tolist() == [float(place ^ 1) for place in range(32)]
    with pytest.raises(DoubleError, match="wait for others that never come"):
        kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[y, 31])
    with pytest.raises(DoubleError, match="takes 2 arguments, got 1"):
        kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[y])
    for grid, block in (((1, 65536, 1), (32, 1, 1)), ((1, 1, 1), (2048, 1, 1)), ((0, 1, 1), (32, 1, 1))):
        with pytest.raises(DoubleError, match=re.escape(f"a grid of {grid}")):
            kernel(grid=grid, block=block, args=[y, 32])
