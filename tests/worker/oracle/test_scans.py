"""Running sums and products are held to float32, though torch carries them in float64 on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cudal1_data import Task
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Status
from cudal1_worker.oracle.faults import Injection
from cudal1_worker.oracle.steps import RUNNING, Call
from hypothesis import given
from hypothesis import strategies as st

TASK = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1)
def get_inputs():
    return [torch.randn(16, 4096)]
def get_init_inputs():
    return []
"""
HEAD = "import torch\nimport torch.nn as nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
PROGRAMS = {
    "        y = x.T.contiguous()\n        for k in range(1, 4096):\n            y[k] += y[k - 1]\n"
    "        return y.T.contiguous()\n": Status.CORRECT,
    "        return torch.cumsum(x.half().float(), 1)\n": Status.WRONG_OUTPUT,
    "        return torch.cumsum(x.bfloat16().float(), 1)\n": Status.WRONG_OUTPUT,
    "        y = torch.cumsum(x, 1)\n        y[:, 64:] -= x[:, :1] * 1e-3\n        return y\n": Status.WRONG_OUTPUT,
}


def doubled(call: Call) -> Any:
    return call.by_doubling()


@given(st.sampled_from(sorted(RUNNING)), st.integers(2, 70), st.integers(0, 1))
def test_doubling_gives_running_sums_and_products(name: str, terms: int, dim: int) -> None:
    x = 1.0 + 0.1 * torch.randn((terms, 5) if dim == 0 else (5, terms), dtype=torch.float64)
    with Injection(None, doubled):
        found = getattr(torch, name)(x, dim)
    assert torch.allclose(found, getattr(torch, name)(x, dim), rtol=1e-12)


@pytest.mark.parametrize("body", PROGRAMS)
def test_programs_may_add_in_float32_and_in_nothing_less(body: str) -> None:
    task = Task(id="file/own", source=TASK, name="own", level=1, origin="file")
    with Judge(JudgeSettings(device="cpu")) as judge:
        assert judge.evaluate(task, HEAD + body, precision="correct").status is PROGRAMS[body]
