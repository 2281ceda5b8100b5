"""Generated references in other styles: the same function, parameters and templates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cudal1_agent.data.respelled import respelled
from cudal1_data import Task, load_suite
from cudal1_data.corpus.build import render
from doubles.references import outputs

LONG = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
CHANNELS = 4
LENGTH = 16


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.grow = nn.ConvTranspose1d(channels, channels, 3, stride=3, groups=4, bias=False)
        self.slope = nn.Parameter(torch.randn(channels, 1))

    def forward(self, x, y):
        h = self.grow(F.gelu(x, approximate="tanh"))
        u = torch.square(0.7 * (h * y) - self.slope)
        v = F.max_pool1d(F.leaky_relu(u, 0.1), 2)
        return torch.exp(-torch.relu(torch.clamp(v, min=-0.5) * torch.amax(v, dim=-1, keepdim=True)))


def get_inputs():
    x = torch.randn(BATCH, CHANNELS, LENGTH)
    y = torch.randn(BATCH, CHANNELS, 3 * LENGTH)
    return [x, y]


def get_init_inputs():
    return [CHANNELS]
"""


def suite_tasks() -> list[Task]:
    suites = ("generated?n=34&seed=3", "generated:layers?n=20&seed=3", "generated:short?n=20&seed=3")
    suites += ("generated?n=8&seed=3&backward=1",)
    return [task for suite in suites for task in load_suite(suite)]


@pytest.mark.parametrize("task", suite_tasks(), ids=lambda task: task.id)
def test_a_respelled_reference_computes_the_same(task: Task) -> None:
    wanted, shapes = outputs(task.source)
    for seed in range(3):
        found, its_shapes = outputs(respelled(task.source, np.random.default_rng(seed)))
        assert shapes == its_shapes
        for one, two in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5, equal_nan=True)


def test_the_same_draw_gives_the_same_text_and_others_give_many() -> None:
    texts = [respelled(LONG, np.random.default_rng(seed)) for seed in range(40)]
    assert texts == [respelled(LONG, np.random.default_rng(seed)) for seed in range(40)]
    assert len(set(texts)) > 30


@pytest.mark.parametrize(
    "part",
    [
        "self.conv_transpose = nn.ConvTranspose1d(",
        "self.gelu = nn.GELU(approximate='tanh')",
        "x = self.conv_transpose(",
        "self.leaky_relu = nn.LeakyReLU(0.1)",
        "self.max_pool = nn.MaxPool1d(2)",
        "self.bias = nn.Parameter(torch.randn(channels, 1))",
        "torch.max(x, dim=-1, keepdim=True)[0]",
        "    x = torch.exp(",
        " ** 2",
    ],
)
def test_some_references_look_as_other_people_write_them(part: str) -> None:
    assert part not in LONG
    assert any(part in respelled(LONG, np.random.default_rng(seed)) for seed in range(400))


def test_templates_write_kernels_for_respelled_references() -> None:
    for task in (one for one in suite_tasks() if not one.id.endswith("backward")):
        task = task.on("cuda")
        other = task.model_copy(update={"source": respelled(task.source, np.random.default_rng(0))})
        kernels = [sum(pair.backend == "triton" for pair in render(one, backends=("triton",))) for one in (task, other)]
        assert (kernels[0] > 0) == (kernels[1] > 0)
