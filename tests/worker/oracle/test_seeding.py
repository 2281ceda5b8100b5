"""Inputs come from the judge's seeds, whatever a task's program seeds by itself."""

from __future__ import annotations

import types

import pytest
import torch
from cudal1_data import Task
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure.case import Case
from cudal1_worker.oracle import inputs
from cudal1_worker.oracle.seeding import Seeds

HEADER = (
    "import random\nimport numpy as np\nimport torch\nimport torch.nn as nn\nfrom torch import manual_seed\n"
    "FIXED = torch.Generator().manual_seed(5)\nSTATE = np.random.RandomState(4)\nOTHER = random.Random(3)\n"
    "class Model(nn.Module):\n    def forward(self, *x):\n        return x[0] * 2\n"
    "def get_init_inputs():\n    return []\n"
)
SEEDING = {
    "torch.manual_seed": "torch.manual_seed(0); return [torch.randn(50)]",
    "a name imported earlier": "manual_seed(0); return [torch.randn(50)]",
    "torch.random": "torch.random.manual_seed(0); return [torch.randn(50)]",
    "torch.cuda": "torch.cuda.manual_seed_all(0); torch.cuda.manual_seed(0); return [torch.randn(50)]",
    "a generator of its own": "return [torch.randn(50, generator=torch.Generator().manual_seed(1))]",
    "a generator of the module": "return [torch.randn(50, generator=FIXED.manual_seed(1))]",
    "numpy.random.seed": "np.random.seed(0); return [torch.from_numpy(np.random.rand(50))]",
    "default_rng": "return [torch.from_numpy(np.random.default_rng(0).random(50))]",
    "RandomState": "return [torch.from_numpy(np.random.RandomState(0).rand(50))]",
    "a state of the module": "STATE.seed(1); return [torch.from_numpy(STATE.rand(50))]",
    "random.seed": "random.seed(0); return [torch.tensor([random.random() for _ in range(50)])]",
    "random.Random": "one = random.Random(0); return [torch.tensor([one.random() for _ in range(50)])]",
    "one of the module": "OTHER.seed(1); return [torch.tensor([OTHER.random() for _ in range(50)])]",
}


@pytest.mark.parametrize("kind", SEEDING)
def test_seeding_in_the_input_code_has_no_effect(kind: str) -> None:
    seeds, module = Seeds(), types.ModuleType("task")
    with seeds.only():
        exec(f"{HEADER}def get_inputs():\n    {SEEDING[kind]}\n", module.__dict__)
    before = torch.manual_seed, torch.Generator, torch.initial_seed()

    def drawn(seed: int) -> list[torch.Tensor]:
        seeds.start(seed, torch.device("cpu"))
        with seeds.only():
            return module.get_inputs()

    one, other, again = drawn(1), drawn(2), drawn(1)
    assert inputs.constant(one, [other]) == []
    assert torch.equal(one[0], again[0])
    assert before[:2] == (torch.manual_seed, torch.Generator), "outside everything is as it was"


def pool_of(get_inputs: str) -> tuple[int, ...]:
    source = f"{HEADER}def get_inputs():\n    {get_inputs}\n"
    with Judge(JudgeSettings(device="cpu")) as judge:
        task = Task(id="file/own", source=source, name="own", level=1, origin="file")
        return judge._pools.take(Case(task, "", "training", seed=b"\5" * 16)).io_spec.constant_inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "get_inputs",
    [
        "return [torch.sin(torch.arange(50.0)), torch.randint(9, (5,))]",
        "return [torch.full((9,), 0.5)]",
        "return [torch.randn(50, generator=torch.default_generator.manual_seed(0))]",
        "return [torch.arange(9)]",
    ],
)
def test_a_task_whose_draws_agree_is_refused(get_inputs: str) -> None:
    with pytest.raises(TaskError, match="differ from call to call"):
        pool_of(get_inputs)


def test_unseeded_draws_are_refused() -> None:
    with pytest.raises(TaskError, match="generators that the judge seeds"):
        pool_of("import os; return [torch.frombuffer(bytearray(os.urandom(80)), dtype=torch.uint8).float()]")


@pytest.mark.slow
def test_constant_inputs_among_others_are_reported() -> None:
    assert pool_of("return [torch.randn(50), torch.full((50,), 1e-5), torch.ones(3, dtype=torch.bool), 3]") == (1, 2)
    assert pool_of("return [torch.randn(50), torch.randn(()), 3]") == ()
    assert pool_of("return [torch.randn(9), torch.randint(2, ()), torch.ones(0)]") == ()
