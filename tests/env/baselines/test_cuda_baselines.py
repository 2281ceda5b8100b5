"""Baselines, graphs and profiles on a GPU.

What needs none is in `test_baselines.py`, `judge/add_ons/test_profile.py` and `worker/program/test_pools.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cudal1_data import Task, load_task
from cudal1_env.baselines import BaselineName, program
from cudal1_env.doctor import as_candidate
from cudal1_env.hardware import has_gpu
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Evaluation, Status

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")]

SHORT = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.first(x))), 1) + x


def get_inputs():
    return [torch.randn(256, 256)]


def get_init_inputs():
    return [256]
"""
"""Calls of some 30 us, so several are made in one go; intermediate results are as large as the output."""

CONVOLUTION = SHORT.replace("nn.Linear(width, width)", "nn.Conv2d(16, 16, 3, padding=1)").replace(
    "torch.randn(256, 256)", "torch.randn(16, 16, 64, 64)"
)


def small(source: str) -> Task:
    return Task(id="file/small", source=source, name="small", level=1, origin="file")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def judge(cache: Path) -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cuda", profile="always")) as one:
        yield one


@pytest.fixture(scope="module")
def comparing(cache: Path) -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cuda", baselines=("all",))) as one:
        yield one


def judged(judge: Judge, task: Task, source: str) -> Evaluation:
    one = judge.evaluate(task, source)
    assert one.status is Status.CORRECT, one.message + one.stderr
    return one


@pytest.mark.parametrize("name", ["cuda-graph", "compile-reduce-overhead"])
def test_graphs_of_short_calls_are_correct(judge: Judge, name: BaselineName) -> None:
    """What a graph keeps in memory must not be handed out to anybody else, and its outputs need no copy."""
    one = judged(judge, small(SHORT), program(name, SHORT))
    assert one.weights == "loaded"


def test_every_baseline_is_measured_and_kept(comparing: Judge) -> None:
    one = judged(comparing, small(SHORT), as_candidate(small(SHORT)))
    assert one.baselines_failed == {}
    assert set(one.speedups) == {"compile", "compile-reduce-overhead", "cuda-graph", "cudnn-flags"}
    assert one.strongest is not None
    assert one.strongest.speedup.point <= 1.05
    assert one.speedups["cuda-graph"].point < 0.95, "five kernels in one launch are faster than one by one"
    again = judged(comparing, small(SHORT), as_candidate(small(SHORT)))
    assert again.seconds.baselines_s == 0.0


def test_convolutions_are_compiled_and_captured_too(comparing: Judge) -> None:
    one = judged(comparing, small(CONVOLUTION), as_candidate(small(CONVOLUTION)))
    assert one.baselines_failed == {}


def test_a_convolution_is_cudnns(judge: Judge) -> None:
    one = judged(judge, small(CONVOLUTION), as_candidate(small(CONVOLUTION)))
    assert one.profile is not None, one.profile_note
    assert "cudnn" in {kernel.origin for kernel in one.profile.kernels}, one.profile


def test_kernels_are_reported_with_their_origin(judge: Judge) -> None:
    task = load_task("starter/matmul_bias_gelu", device="cuda")
    one = judged(judge, task, as_candidate(task))
    assert one.profile is not None, one.profile_note
    assert one.profile.kind == "kernels"
    origins = {kernel.origin for kernel in one.profile.kernels}
    assert "cublas" in origins
    assert one.candidate is not None
    assert one.profile.call_us < 1.2e3 * one.candidate.median_ms


OWN = """\
import torch
import torch.nn as nn

SOURCE = \"\"\"
extern "C" __global__ void plus_one(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + 1.0f;
}
\"\"\"


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = None

    def forward(self, x):
        if self.kernel is None:
            self.kernel = torch.cuda._compile_kernel(SOURCE, "plus_one")
        out = torch.empty_like(x)
        self.kernel(grid=(-(-x.numel() // 256), 1, 1), block=(256, 1, 1), args=[x, out, x.numel()])
        return out
"""
PLUS_ONE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return []
"""
TRITON = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def plus_one_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        plus_one_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out
"""


@pytest.mark.parametrize(
    ("source", "name", "origin"),
    [
        (OWN, "plus_one", "own"),
        (TRITON, "plus_one_kernel", "triton"),
        (program("compile", PLUS_ONE), "triton_poi_fused_add_0", "inductor"),
        (as_candidate(small(PLUS_ONE)), "at::native::vectorized_elementwise_kernel", "aten"),
    ],
)
def test_a_programs_own_kernel_is_its_own(judge: Judge, source: str, name: str, origin: str) -> None:
    one = judged(judge, small(PLUS_ONE), source)
    assert one.profile is not None, one.profile_note
    first = one.profile.kernels[0]
    assert (first.origin, first.launches) == (origin, 1.0)
    assert name in first.name
    assert first.share > 0.95
