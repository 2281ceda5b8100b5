"""References in canonical form: the same function and parameters, without their author's names and settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cudal1_agent.data.canonical import canonical, is_copied
from cudal1_agent.data.plain import plain
from cudal1_agent.data.prompts import build_prompt
from cudal1_agent.data.respelled import respelled
from cudal1_agent.data.stream import make_stream
from cudal1_data import Task, load_suite
from cudal1_data.corpus.build import render
from doubles.references import outputs

WRITTEN = '''\
import math
import torch
import torch.nn as nn

class Model(nn.Module):
    """Convolves and scales."""

    def __init__(self, in_channels: int, out_channels: int, kernel: tuple, stride: tuple = (1, 1),
                 groups: int = 1, bias: bool = False, scale=None):
        super(Model, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, groups=groups, bias=bias)
        self.pool = torch.nn.AvgPool2d(kernel_size=2, stride=2)
        self.shift = nn.Parameter(torch.zeros((out_channels, 1, 1)))
        self.dim = -1
        self.factor = scale
        self.width = out_channels // 2

    def forward(self, inputs, add):
        x = torch.nn.functional.relu(self.pool(self.conv(inputs))) * self.width
        return x.sum(dim=self.dim) + self.shift[0] + add

batch = 2
in_channels = 3
out_channels = 16 * 2
kernel = (3, 5)
shape = (12, 14)
unused = 99

def get_inputs():
    return [torch.rand(batch, in_channels, *shape), torch.rand(out_channels, 5)]

def get_init_inputs():
    return [in_channels, out_channels, kernel]
'''

EXPECTED = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
D0 = 2
D1 = 3
D2 = 12
D3 = 14
D4 = 32
D5 = 5

class Model(nn.Module):

    def __init__(self, *args):
        super().__init__()
        self.conv = nn.Conv2d(D1, D4, (3, 5), bias=False)
        self.pool = nn.AvgPool2d(2)
        self.shift = nn.Parameter(torch.zeros(D4, 1, 1))

    def forward(self, x, y):
        x_2 = F.relu(self.pool(self.conv(x))) * (D4 // 2)
        return x_2.sum(dim=-1) + self.shift[0] + y

def get_inputs():
    x = torch.rand(D0, D1, D2, D3)
    y = torch.rand(D4, D5)
    return [x, y]

def get_init_inputs():
    return []
"""


def suite_tasks() -> list[Task]:
    suites = ("generated?n=34&seed=4", "generated:layers?n=20&seed=4", "generated:short?n=40&seed=4")
    suites += ("generated?n=8&seed=4&backward=1", "starter")
    return [task for suite in suites for task in load_suite(suite)]


def texts(task: Task) -> list[str]:
    if task.origin == "starter":
        return [task.source]
    return [task.source, respelled(task.source, np.random.default_rng(0))]


def test_names_and_settings_of_the_author_are_gone() -> None:
    assert canonical(WRITTEN) == EXPECTED


@pytest.mark.parametrize("task", suite_tasks(), ids=lambda task: task.id)
def test_a_canonical_reference_computes_the_same(task: Task) -> None:
    for source in texts(task):
        wanted, shapes = outputs(source)
        found, its_shapes = outputs(canonical(source))
        assert shapes == its_shapes
        for one, two in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5, equal_nan=True)


def test_a_program_for_the_canonical_form_is_one_for_the_reference() -> None:
    judged = 0
    for task in (one for one in suite_tasks() if one.origin != "starter" and not one.id.endswith("backward")):
        if "float16" in task.source or ".half()" in task.source:
            continue  # other orders of operations round differently
        read = task.model_copy(update={"source": canonical(task.source)})
        pair = next((one for one in render(read, backends=("pytorch",)) if not one.needs_gpu), None)
        if pair is None:
            continue
        names, program = dict[str, Any](), dict[str, Any]()
        torch.manual_seed(0)
        exec(task.source, names)
        exec(pair.source, program)
        given, inputs = names["get_init_inputs"](), names["get_inputs"]()
        model, new = names["Model"](*given), program["ModelNew"](*given)
        new.load_state_dict(model.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-3, atol=1e-4, equal_nan=True)
        judged += 1
    assert judged > 20


def test_a_canonical_form_is_its_own() -> None:
    for task in suite_tasks():
        found = canonical(task.source)
        assert canonical(found) == found or found == plain(task.source)


def test_generated_references_have_a_canonical_form() -> None:
    generated = [task for task in suite_tasks() if task.origin != "starter"]
    assert [task.id for task in generated if "def __init__(self, *args):" not in canonical(task.source)] == []


def test_templates_write_kernels_for_canonical_references() -> None:
    for task in (one for one in suite_tasks() if not one.id.endswith("backward") and one.origin != "starter"):
        task = task.on("cuda")
        other = task.model_copy(update={"source": canonical(task.source)})
        kernels = [sum(pair.backend == "triton" for pair in render(one, backends=("triton",))) for one in (task, other)]
        assert kernels[0] == kernels[1]


@pytest.mark.parametrize(
    "changed",
    [
        "def get_init_inputs():\n    shape = [3]\n    return shape\n",
        "def get_init_inputs():\n    return [torch.ones(3), 32, (3, 5)]\n",
        "table = torch.arange(batch)\n\ndef get_init_inputs():\n    return [in_channels, out_channels, kernel]\n",
    ],
)
def test_unusual_references_stay_as_they_are(changed: str) -> None:
    source = WRITTEN.partition("def get_init_inputs")[0] + changed
    assert canonical(source) == plain(source)


@pytest.mark.parametrize("source", ["", "class Model", "x = 1\n", "def get_inputs(): pass\n"])
def test_texts_that_are_no_references_do_not_fail(source: str) -> None:
    assert canonical(source) == plain(source)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("self.count = 1\n        self.count += kernel_size", "self.count"),  # changed later
        ("self.count = kernel_size if kernel_size else 2", "self.count"),  # computed
        ("kernel_size = kernel_size + 1\n        self.count = kernel_size", None),  # an argument that is assigned
        ("pair = (3,)\n        self.count = pair[0]", None),  # a constant's name
        ("self.count = pair", "(8, 9)"),
        ("self.count = kernel_size", "7"),
        ("self.count = kernel_size // 2", "3"),
        ("self.count = (kernel_size, -1)", "(7, -1)"),
        ("self.count = [kernel_size]", "self.count"),  # a list may change
        ("self.count = kernel_size * 1e308 * 1e308", "(7 * 1e+308 * 1e+308)"),
    ],
)
def test_only_numbers_that_stay_are_filled_in(line: str, shown: str | None) -> None:
    source = f"""\
import torch
import torch.nn as nn
pair = (8, 9)
class Model(nn.Module):
    def __init__(self, kernel_size):
        super().__init__()
        {line}
    def forward(self, x):
        return x * self.count
def get_inputs():
    return [torch.rand(3)]
def get_init_inputs():
    return [7]
"""
    found = canonical(source)
    assert (f"return x * {shown}" in found) if shown else found == plain(source)


def test_a_stream_shows_and_teaches_canonical_references() -> None:
    def made(style: str) -> list[str]:
        stream = make_stream(
            "generated:short?seed=1",
            device="cuda",
            style=style,  # pyright: ignore[reportArgumentType]
            contexts=[0],
            per_task=1,
            have={"triton"},
            respelled=0.5,
        )
        return [one.prompt + one.answer for number in range(6) for (one, *_) in stream.pairs(number)]

    assert all("D0 = " in one and "def __init__(self, *args)" in one for one in made("canonical"))
    assert not any("D0 = " in one for one in made("compact"))


def test_a_prompt_has_the_canonical_reference() -> None:
    assert EXPECTED.strip() in build_prompt(WRITTEN, [], style="canonical")
    assert plain(WRITTEN) in build_prompt(WRITTEN, [], style="compact")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ("return torch.softmax(x, dim=1)", "torch.softmax(x, dim=-2)"),
        ("return (x * 2).sum(dim=(0, 2), keepdim=True)", "sum(dim=(-3, -1), keepdim=True)"),
        (
            "h = torch.relu(y)\n        return h.flip(0) + torch.cumsum(h, dim=1)",
            "h.flip(-2) + torch.cumsum(h, dim=-1)",
        ),
        ("x = x.mean(dim=0)\n        return torch.softmax(x, dim=1)", "torch.softmax(x, dim=1)"),  # two dimensions now
        ("x = x @ y\n        return torch.softmax(x, dim=1)", "torch.softmax(x, dim=1)"),  # not read
        ("for _ in range(2):\n            x = torch.sum(x, dim=1)\n        return x", "torch.sum(x, dim=1)"),
        ("f = lambda x: x.sum(dim=0)\n        return f(y)", "x.sum(dim=0)"),  # another x
        ("return torch.stack((x, x), dim=1)", "torch.stack((x, x), dim=1)"),  # has one more
        ("return torch.sum(x, dim=-1)", "torch.sum(x, dim=-1)"),
    ],
)
def test_dimensions_of_tensors_that_are_known_count_from_the_end(lines: str, shown: str) -> None:
    source = f"""\
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x, y):
        {lines}
def get_inputs():
    return [torch.rand(4, 5, 6), torch.rand(6, 7).half()]
def get_init_inputs():
    return []
"""
    assert shown in canonical(source)


def test_a_constructor_of_numbers_alone_stays_python() -> None:
    source = "class Model:\n    def __init__(self, n):\n        self.n = n\n"
    source += "    def forward(self, x):\n        return x * self.n\n"
    source += "def get_inputs():\n    return [3]\ndef get_init_inputs():\n    return [2]\n"
    assert "return x * 2" in canonical(source)
    compile(canonical(source), "reference", "exec")


def test_copies_are_found_in_both_forms() -> None:
    for source in (WRITTEN, EXPECTED):
        program = source.replace("class Model(", "class ModelNew(").replace("super(Model, self)", "super()")
        assert is_copied(program, WRITTEN)
        assert not is_copied(program.replace("sum(", "mean("), WRITTEN)
