"""Honest programs in half precision that round fewer steps than the reference are correct."""

from __future__ import annotations

import pytest
from cudal1_data import Task
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Status
from task_programs import candidate, reference

TOP = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
ATTENTION = (
    """
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(48).bfloat16())

    def forward(self, q, k, v):
        weights = {weights}
        return torch.minimum(weights @ v, self.bias)
""",
    "torch.sigmoid(1.5 * q @ k.mT / 48**0.5) / 128**0.5",
    "(torch.sigmoid(((1.5 * q.float()).bfloat16() @ k.mT).float() / 48**0.5) / 128**0.5).bfloat16()",
    "return [torch.randn(6, 128, 48).bfloat16() for _ in range(3)]",
)
GATE = (
    """
class {name}(nn.Module):
    def forward(self, x, y):
        return {weights}
""",
    "torch.maximum(F.silu(x * y), torch.tanh(y) * torch.cos(x))",
    "torch.maximum(F.silu(x.float() * y.float()), torch.tanh(y.float()) * torch.cos(x.float())).bfloat16()",
    "return [torch.randn(128, 512).bfloat16() for _ in range(2)]",
)


@pytest.mark.parametrize("case", [ATTENTION, GATE], ids=["attention", "gate"])
def test_a_program_that_fuses_steps_is_correct(case: tuple[str, str, str, str]) -> None:
    model, reference, fused, inputs = case
    task = Task(
        id="file/fused_half",
        source=TOP
        + model.format(name="Model", weights=reference)
        + f"\ndef get_inputs():\n    {inputs}\n\ndef get_init_inputs():\n    return []\n",
        name="fused_half",
        level=1,
        origin="file",
    )
    programs = [TOP + model.format(name="ModelNew", weights=fused) + f"# {number}\n" for number in range(3)]
    rough = fused.replace("1.5", "1.6").replace("torch.cos(x.float())", "(1 - x.float() ** 2 / 2)")
    programs.append(TOP + model.format(name="ModelNew", weights=rough))
    with Judge(JudgeSettings(device="cpu")) as judge:
        found = judge.evaluate_many([(task, program) for program in programs], precision="correct")
    assert [one.status for one in found] == [Status.CORRECT] * 3 + [Status.WRONG_OUTPUT], found[0].message


def test_the_steps_of_attention_that_torch_makes_one_operator_are_correct(judge: Judge) -> None:
    """In evaluation mode, torch executes `nn.MultiheadAttention` as one operator, which rounds inside."""
    layer = "self.layer = nn.MultiheadAttention(64, 4, batch_first=True).eval().bfloat16()"
    task = reference(
        "return self.layer(x[0], x[0], x[0], need_weights=False)[0]",
        "[(0.25 * torch.randn(1, 512, 64)).bfloat16()]",
        init=layer,
    )
    steps = """w = self.layer
        all = nn.functional.linear(x[0], w.in_proj_weight, w.in_proj_bias)
        q, k, v = all.view(1, -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return nn.functional.linear(y, w.out_proj.weight, w.out_proj.bias)"""
    found = judge.evaluate(task, candidate(steps, init=layer), precision="correct")
    assert found.status is Status.CORRECT, found.message
