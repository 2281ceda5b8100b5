"""The judge on a GPU. Needs one; the CPU's tests hold everything that both devices share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cudal1_data import load_task
from cudal1_env.doctor import as_candidate
from cudal1_env.hardware import has_gpu
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Status

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")]

HEAD = "import torch\nimport torch.nn as nn\n"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cuda")) as one:
        yield one


def free_for_others() -> int:
    """Return the GPU memory that this process leaves to others and they do not use."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


def forward(body: str, *, top: str = "", init: str = "pass", arguments: str = "x") -> str:
    return (
        f"{HEAD}{top}\n\nclass ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n\n    def forward(self, {arguments}):\n        {body}\n"
    )


@pytest.mark.parametrize("name", ["softplus_mish", "matmul_bias_gelu", "rms_norm", "kron_matvec", "tall_skinny_matmul"])
def test_a_reference_is_as_fast_as_itself(judge: Judge, name: str) -> None:
    task = load_task(f"starter/{name}", device="cuda")
    one = judge.evaluate(task, as_candidate(task))
    assert one.status is Status.CORRECT, one.message
    assert one.speedup is not None
    assert 0.8 < one.speedup.point < 1.25
    assert one.machine is not None
    assert one.machine.device == "cuda"
    assert one.machine.driver is not None
    assert one.gpu_states[0][0].sm_mhz > 0
    assert one.foreign_gpu_processes == 0


def test_an_algebraic_short_cut_is_faster(judge: Judge) -> None:
    task = load_task("starter/diag_matmul", device="cuda")
    one = judge.evaluate(task, forward("return a[:, None] * b", arguments="a, b"))
    assert one.status is Status.CORRECT, one.message
    assert one.speedup is not None
    assert one.speedup.low > 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return x.clone()", {Status.WRONG_OUTPUT}),
        ("return torch.zeros_like(x)", {Status.WRONG_OUTPUT}),
        ("return x", {Status.WRONG_OUTPUT, Status.WRONG_CONTRACT}),
        ("return x.cpu()", {Status.WRONG_CONTRACT}),
        ("return x[:-1]", {Status.WRONG_CONTRACT}),
        ("return x.half()", {Status.WRONG_CONTRACT}),
        ("x.add_(1); return x.clone()", {Status.WRONG_CONTRACT}),
        ("return torch.empty(1 << 50, device='cuda')", {Status.OUT_OF_MEMORY}),
        ("import os; os._exit(0)", {Status.CRASH}),
        ("torch._assert_async(torch.zeros((), device='cuda')); return x.clone()", {Status.RUNTIME_ERROR, Status.CRASH}),
    ],
)
def test_bad_programs_get_their_status_and_leave_others_alone(judge: Judge, body: str, status: set[Status]) -> None:
    task = load_task("starter/softplus_mish", device="cuda")
    one = judge.evaluate(task, forward(body))
    assert one.status in status, one.message
    again = judge.evaluate(task, as_candidate(task))
    assert again.status is Status.CORRECT, again.message


MISH = """import torch.nn.functional as F

def work(x):
    soft = F.softplus(x)
    return soft + x * torch.tanh(soft)
"""


def test_an_own_stream_is_waited_for(judge: Judge) -> None:
    task = load_task("starter/softplus_mish", device="cuda")
    body = (
        "self.side.wait_stream(torch.cuda.current_stream())\n"
        "        with torch.cuda.stream(self.side):\n            out = work(x)\n        return out"
    )
    one = judge.evaluate(task, forward(body, top=MISH, init="self.side = torch.cuda.Stream()"))
    assert one.status is Status.CORRECT, one.message
    assert one.speedup is not None
    assert one.speedup.point < 20


def test_a_reused_output_buffer_is_fine(judge: Judge) -> None:
    task = load_task("starter/softplus_mish", device="cuda")
    body = (
        "if self.out is None: self.out = torch.empty_like(x)\n"
        "        return torch.add(F.softplus(x), x * torch.tanh(F.softplus(x)), out=self.out)"
    )
    one = judge.evaluate(task, forward(body, top=MISH, init="self.out = None"))
    assert one.status is Status.CORRECT, one.message


def test_a_captured_graph_is_judged_correct(judge: Judge) -> None:
    task = load_task("starter/matmul_bias_gelu", device="cuda")
    source = task.source + (
        "\n\nclass ModelNew(Model):\n    graph = None\n\n    def forward(self, *inputs):\n"
        "        if self.graph is None:\n"
        "            self.static = [x.clone() for x in inputs]\n"
        "            stream = torch.cuda.Stream()\n"
        "            with torch.cuda.stream(stream):\n"
        "                for _ in range(2):\n                    super().forward(*self.static)\n"
        "            torch.cuda.synchronize()\n"
        "            self.graph = torch.cuda.CUDAGraph()\n"
        "            with torch.cuda.graph(self.graph):\n                self.out = super().forward(*self.static)\n"
        "        for mine, x in zip(self.static, inputs):\n            mine.copy_(x)\n"
        "        self.graph.replay()\n        return self.out\n"
    )
    one = judge.evaluate(task, source)
    assert one.status is Status.CORRECT, one.message + one.stderr


def test_a_dead_worker_gives_its_memory_back(judge: Judge) -> None:
    task = load_task("starter/softplus_mish", device="cuda")
    judge.evaluate(task, as_candidate(task))
    before, hog = free_for_others(), "self.hog = torch.empty(8 << 30, dtype=torch.uint8, device='cuda')"
    judge.evaluate(task, forward(f"{hog}; return x.clone()"))
    assert before - free_for_others() < 256 << 20
