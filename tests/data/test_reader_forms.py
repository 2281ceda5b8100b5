"""Forms that references of others come in: each is read rightly, or refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cudal1_data import Task, load_task
from cudal1_data.templates.errors import UnsuitableError
from cudal1_data.templates.fusion import plan
from cudal1_data.templates.make import variants
from cudal1_data.templates.programs import Choice, nvrtc_program, torch_program, triton_program
from cudal1_data.templates.reader import read
from template_programs import error_of, imported

TOLERANCE = 2e-5


def task_of(source: str) -> Task:
    """Return a task with this reference."""
    return load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})


def source_of(
    forward: str,
    *,
    init: str = "",
    given: str = "",
    parameters: str = "self",
    inputs: str = "torch.randn(6, 8)",
    head: str = "",
    methods: str = "",
) -> str:
    """Return a reference whose `forward(self, x)` returns an expression."""
    constructor = "".join(f"        {line}\n" for line in ["super().__init__()", *init.splitlines()])
    others = "".join(f"    {line}\n" for line in methods.splitlines())
    names = ", ".join("xyz"[: inputs.count("torch.ra")])
    return (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n{head}\n\n"
        f"class Model(nn.Module):\n    def __init__({parameters}):\n{constructor}{others}\n"
        f"    def forward(self, {names}):\n        return {forward}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return [{given}]\n"
    )


def is_right(source: str, folder: Path) -> bool:
    """Whether the program with every operator as PyTorch's own gives the reference's answer."""
    reference = read(source)
    return error_of(task_of(source), torch_program(reference, plan(reference.roots)), folder) < TOLERANCE


# --- constructors ----------------------------------------------------------------------------------------------

BENCH = '''import torch
import torch.nn as nn


class Model(nn.Module):
    """Scales a linear layer's rows and bends them."""

    def __init__(self, features: int, scale: float, eps=1e-3):
        """Make the layer.

        Args:
            features: Length of a row.
        """
        super(Model, self).__init__()
        self.layer = nn.Linear(features, features)  # square
        self.gain = nn.Parameter(torch.randn(features))
        self.scale = scale
        self.eps = eps

    def forward(self, x: torch.Tensor, shift=0.25) -> torch.Tensor:
        x = torch.tanh(self.layer(x) * self.scale + self.eps)
        return torch.softmax(x * self.gain + shift, dim=-1)


rows = 6
features = 8


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features, 1.5]
'''


def test_a_reference_in_kernelbench_s_form_runs_as_operators(tmp_path: Path) -> None:
    assert is_right(BENCH, tmp_path)


def test_programs_of_every_way_can_be_constructed(tmp_path: Path) -> None:
    reference = read(BENCH)
    steps = plan(reference.roots)
    for program in (nvrtc_program(reference, steps, Choice()), triton_program(reference, steps, Choice())):
        assert "super(Model" not in program
        assert "def forward(self, x):" in program
        if "import triton" not in program:
            assert {*imported(program, tmp_path).ModelNew(8, 1.5).state_dict()} == {
                *imported(BENCH, tmp_path).Model(8, 1.5).state_dict()
            }


@pytest.mark.slow
def test_a_triton_program_for_kernelbench_s_form_is_right_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    path = tmp_path / "bench.py"
    path.write_text(BENCH)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parents[1] / "triton_child.py"), str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors: dict[str, float] = json.loads(done.stdout)
    assert errors
    assert max(errors.values()) < TOLERANCE


def test_defaults_and_names_of_arguments_are_bound(tmp_path: Path) -> None:
    methods = "def bend(self, x, by, *, over=2.0):\n    return torch.tanh(x * by) / over"
    source = source_of(
        "self.bend(x, by=self.scale) + self.eps + self.bend(x, 0.5, over=3.0)",
        parameters="self, scale, eps=0.125, *, more=None",
        init="self.scale = scale\nself.eps = eps",
        given="1.5",
        methods=methods,
    )
    assert is_right(source, tmp_path)


ONES = "self.gain = nn.Parameter(torch.ones(8))"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"init": f"{ONES}\nself.reset()", "methods": "def reset(self):\n    nn.init.ones_(self.gain)"}, "self.reset"),
        ({"init": "self.gain = self.made()", "methods": "def made(self):\n    return torch.ones(8)"}, "self.made"),
        ({"init": f"{ONES}\nself.half()"}, "self.half"),
        ({"init": f"{ONES}\nself.register_buffer('b', made())", "head": "def made():\n    return 1"}, "got made"),
        ({"init": f"{ONES}\nself.kind = Model"}, "got Model"),
        ({"init": ONES, "head": "F = 8"}, "got F"),
        ({"init": ONES, "parameters": "self, *sizes"}, "plain parameters"),
        ({"init": ONES, "given": "8"}, "arguments of __init__ at most"),
        ({"init": ONES, "parameters": "self, size"}, "'size'"),
    ],
)
def test_a_constructor_that_does_not_stand_on_its_own(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UnsuitableError, match=said):
        read(source_of("torch.tanh(x * self.gain)", **changes))


def test_values_that_a_constructor_fills_in_are_no_obstacle(tmp_path: Path) -> None:
    init = "self.gain = nn.Parameter(torch.empty(8))\nnn.init.uniform_(self.gain, -1.0, 1.0)\nself.gain.data.mul_(2.0)"
    assert is_right(source_of("torch.tanh(x * self.gain)", init=init), tmp_path)


@pytest.mark.parametrize(
    "forward",
    ["torch.tanh(x) * __import__('math').sqrt(-1)", "torch.tanh(x @ 2)", "torch.tanh(torch.einsum('ij,k->ij', x))"],
)
def test_a_reference_that_cannot_be_followed_keeps_the_others_pairs(forward: str) -> None:
    source = source_of(forward.replace("__import__('math')", "math"), head="import math")
    with pytest.raises(UnsuitableError):
        read(source)
    assert {one.template for one in variants(task_of(source), ("pytorch",))} == {"plain"}
