"""Tasks that were refused, or whose honest programs were: complex numbers, factorisations, boundaries in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cudal1_data import Task
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Status
from cudal1_worker.oracle.distributions import non_default_state
from cudal1_worker.oracle.models import as_dtype

TASKS = {
    "a complex buffer": (
        "self.register_buffer('w', torch.polar(torch.rand(64) + 0.5, torch.rand(64)))",
        "torch.view_as_real(torch.view_as_complex(x.view(64, 64, 2)) * self.w)",
        "[torch.randn(64, 128)]",
        "torch.stack([x[:, 0::2] * self.w.real - x[:, 1::2] * self.w.imag, "
        "x[:, 0::2] * self.w.imag + x[:, 1::2] * self.w.real], -1)",
    ),
    "complex weights": (
        "self.w = nn.Parameter(torch.randn(64, 64, dtype=torch.complex64))",
        "(x.to(torch.complex64) @ self.w).abs()",
        "[torch.randn(64, 64)]",
        "torch.hypot(x @ self.w.real, x @ self.w.imag)",
    ),
    "a factorisation": (
        "pass",
        "torch.linalg.cholesky(x)",
        "[(lambda m: m @ m.mT + 32 * torch.eye(32))(torch.randn(32, 32))]",
        "torch.linalg.cholesky(x[None])[0]",
    ),
    "boundaries": (
        "pass",
        "torch.searchsorted(b, x)",
        "[torch.randn(256), torch.randn(64).sort().values]",
        "(x[:, None] > b).sum(1)",
    ),
}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cpu")) as judge:
        yield judge


def program(name: str, made: str, computed: str) -> str:
    return (
        f"import torch\nimport torch.nn as nn\nclass {name}(nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        {made}\n    def forward(self, x, b=None):\n        return {computed}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_honest_programs_of_such_tasks_are_correct(name: str, judge: Judge) -> None:
    made, computed, inputs, otherwise = TASKS[name]
    source = program("Model", made, computed) + (
        f"def get_inputs():\n    return {inputs}\ndef get_init_inputs():\n    return []\n"
    )
    task = Task(id="file/own", source=source, name="own", level=1, origin="file")
    record = judge.evaluate(task, program("ModelNew", made, otherwise), precision="correct")
    assert record.status == Status.CORRECT, record.message


def test_complex_state_keeps_its_imaginary_part_and_gets_other_values() -> None:
    module = torch.nn.Module()
    module.register_parameter("w", torch.nn.Parameter(torch.randn(8, 8, dtype=torch.complex64)))
    before = module.state_dict()
    other = {"w": torch.randn(8, 8, dtype=torch.complex64)}
    moved = non_default_state(before, 1, parameters={"w"}, other=other)["w"]
    assert not torch.isclose(moved.imag, before["w"].imag).all()
    module.load_state_dict({"w": moved})
    assert torch.equal(as_dtype(module, torch.float64).w, moved.to(torch.complex128))
