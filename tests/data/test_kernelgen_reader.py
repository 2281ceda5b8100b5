"""Forms that references of others come in: each is read rightly, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from cudal1_data import Task, load_task
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from cudal1_data.kernelgen.make import variants
from doubles.cuda import Gpu, doubled
from template_programs import error_of, errors_in_interpreter, imported

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
def test_a_triton_program_for_kernelbench_s_form_is_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    path = tmp_path / "bench.py"
    path.write_text(BENCH)
    errors = errors_in_interpreter(str(path))
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
        (
            {"init": f"{ONES}\nself.register_buffer('b', made())", "head": "def made():\n    return 1"},
            "defines made outside",
        ),
        ({"init": f"{ONES}\nself.kind = Model"}, "defines Model outside"),
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
    assert {one.template for one in variants(task_of(source), ("pytorch",))} == {"plain", "captured"}


@pytest.mark.parametrize("count", [700, 1600])
def test_a_chain_that_is_too_long_keeps_the_others_pairs(count: int) -> None:
    steps = "        x = torch.sin(x)\n" * count
    source = source_of("x * 2").replace("        return x * 2\n", f"{steps}        return x * 2\n")
    assert {one.template for one in variants(task_of(source))} == {"plain", "compile", "captured"}


# --- what is read rightly, and what is refused -----------------------------------------------------------------

LAYERS = "self.up = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1, dilation=2)"
MAPS = "torch.randn(2, 4, 5, 5)"
HALF = "torch.randn(6, 8, dtype=torch.bfloat16)"
WHOLE = "torch.randn(2, 3, 4, 8)"
RIGHT: dict[str, dict[str, str]] = {
    "a dilated transposed convolution": {"forward": "torch.tanh(self.up(x))", "init": LAYERS, "inputs": MAPS},
    "a biased variance by position": {"forward": "torch.tanh(x.var(-1, False))"},
    "an unbiased deviation by position": {"forward": "torch.tanh(x.std(-1, True))"},
    "a variance with another correction": {"forward": "torch.tanh(x.var(-1, correction=2))"},
    "a variance over columns by position": {"forward": "torch.tanh(x.var(0, False, True))"},
    "a mean over columns that keeps its axis": {"forward": "torch.tanh(x.mean(0, True))"},
    "a norm without weights by position": {
        "forward": "torch.relu(self.norm(x)) + x",
        "init": "self.norm = nn.LayerNorm(8, 1e-5, False)",
    },
    "a norm without bias by position": {
        "forward": "torch.relu(self.norm(x)) + x",
        "init": "self.norm = nn.LayerNorm(8, 1e-5, True, False)",
    },
    "a transposed parameter": {
        "forward": "torch.relu(x * self.gain) + x",
        "init": "self.gain = nn.Parameter(torch.randn(8, 6).t())",
    },
    "a parameter in half precision": {
        "forward": "torch.tanh(x.float() * self.gain.float()) + x.float()",
        "init": "self.gain = nn.Parameter(torch.randn(8).bfloat16())",
        "inputs": HALF,
    },
    "a cast to what the inputs are": {"forward": "(torch.abs(x.float()) * 2.0).to(x.dtype)", "inputs": HALF},
    "half precision negated": {"forward": "torch.abs(x.float()), -x", "inputs": HALF},
    "a product in half precision": {"forward": "torch.tanh((x @ x.T).float())", "inputs": HALF},
    "integers times a number": {"forward": "torch.tanh(x), torch.arange(8) * 0.5"},
    "integers over integers": {"forward": "torch.tanh(x), torch.arange(8) / 4"},
    "a flattened middle": {"forward": "torch.tanh(torch.flatten(x, 1, 2)) * 2.0", "inputs": WHOLE},
    "a flattened end by name": {"forward": "torch.tanh(x.flatten(start_dim=2)) * 2.0", "inputs": WHOLE},
    "an angle with an edge": {"forward": "torch.exp(F.cosine_similarity(x, x * 0.5, -1, 4.0))"},
    "a mask times a number": {"forward": "torch.tanh(x) * ((x > 0) * 0.5 + 0.5)"},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_form_is_read_as_pytorch_computes_it(name: str, tmp_path: Path) -> None:
    source = source_of(**RIGHT[name])
    assert is_right(source, tmp_path)
    module = imported(source, tmp_path)
    with torch.no_grad():
        outputs = module.Model()(*module.get_inputs())
    found = [(one.shape, one.dtype) for one in (outputs if isinstance(outputs, tuple) else (outputs,))]
    assert [(root.dims, getattr(torch, root.dtype)) for root in read(source).roots] == found


@pytest.mark.parametrize(
    "changes",
    [
        {"forward": "((x > 0) + (x < 1)) * x"},
        {"forward": "(x > 0) * 2 + x"},
        {"forward": "torch.tanh((x > 0).sum(-1, keepdim=True) + x)"},
        {"forward": "torch.where(x > 0, 1, 0) + x"},
        {"forward": "torch.relu(x)", "inputs": "torch.randn(6, 8, dtype=torch.float64)"},
        {"forward": "torch.relu(x.to(torch.float64))"},
        {"forward": "torch.relu(y) * x.to(x.device)", "inputs": "torch.randint(0, 9, (6, 8)), torch.randn(6, 8)"},
        {"forward": "torch.tanh(x.sum(axis=0) + x)"},
        {"forward": "torch.tanh(x.sum(-1, dtype=torch.float64))"},
        {"forward": "torch.tanh(x.var(False) + x)"},
        {"forward": "torch.lerp(x, x * 2, weight=0.5)"},
        {"forward": "F.leaky_relu(x, inplace=True) + x"},
        {"forward": "torch.diag(torch.tanh(x).sum(-1), 1)"},
        {"forward": "self.low(x.float())", "init": "self.low = nn.Linear(8, 8, dtype=torch.bfloat16)"},
        {"forward": "torch.tanh(x + self.noise)", "init": "self.noise = torch.randn(8)"},
        {
            "forward": "torch.tanh(self.mapped(x))",
            "init": "self.mapped = nn.Conv2d(4, 4, 3)",
            "inputs": WHOLE[:-4] + ")",
        },
    ],
)
def test_a_form_that_is_not_followed_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(UnsuitableError):
        plan(read(source_of(**changes)).roots)


NAMES = """
import torch
import torch.nn as nn

t2 = 3.0


class Model(nn.Module):
    def forward(self, t0, t1):
        sums = torch.abs(t1 + torch.softmax(t0 * t2, dim=0)) * 2.0
        return sums, torch.relu(torch.cumprod(sums, 0) + t1)


def get_inputs():
    return [torch.randn(6, 8), torch.randn(6, 8)]


def get_init_inputs():
    return []
"""


def test_a_program_takes_no_name_that_the_reference_has(tmp_path: Path) -> None:
    assert is_right(NAMES, tmp_path)
    steps = plan(read(NAMES).roots)
    for program in (torch_program(read(NAMES), steps), nvrtc_program(read(NAMES), steps, Choice())):
        lines = program.partition("def forward(self, t0, t1)")[2].splitlines()
        made = [line.partition(" = ")[0].strip() for line in lines if " = " in line]
        assert made
        assert not {"t0", "t1", "t2"}.intersection(made)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["a transposed parameter", "a parameter in half precision"])
def test_parameters_in_kernels_are_read_as_they_are_stored(name: str, tmp_path: Path) -> None:
    source = source_of(**RIGHT[name])
    reference = read(source)
    with doubled(Gpu(tmp_path)):
        program = nvrtc_program(reference, plan(reference.roots), Choice(threads=32))
        assert error_of(task_of(source), program, tmp_path) < TOLERANCE


# --- places beyond 32 bits -------------------------------------------------------------------------------------

STEPS = """
class Model(nn.Module):
    def forward(self, x, state):
        states = []
        for step in range({steps}):
            state = torch.tanh(state + x)
            states.append(state)
        return torch.stack(states, dim=0)
"""


def large(body: str, inputs: str) -> Task:
    """Return a task with inputs that no `get_inputs` makes."""
    return task_of(
        f"import torch\nimport torch.nn as nn\n\n{body}\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"
    )


def forward_of(arguments: str, result: str) -> str:
    return f"class Model(nn.Module):\n    def forward(self, {arguments}):\n        return {result}\n"


LARGE = {
    "elements": (forward_of("x", "torch.relu(x * 2.0) + x"), "torch.rand({n}, 65536)"),
    "rows": (forward_of("x", "torch.softmax(x, dim=-1)"), "torch.rand({n}, 65536)"),
    "a part": (forward_of("x, y", "torch.tanh(x.sum(-1) * y)"), "torch.rand({n}, 65536), torch.rand({n})"),
    "a grown domain": (forward_of("x, y", "torch.tanh(x * y)"), "torch.rand({n}, 1), torch.rand(65536)"),
    "a product": (forward_of("x, y", "torch.tanh(x @ y)"), "torch.rand({n}, 65536), torch.rand(65536, 8)"),
    "a loop": (STEPS.replace("{steps}", "{n}"), "torch.rand(256, 256), torch.rand(256, 256)"),
}


@pytest.mark.parametrize("name", LARGE)
def test_no_kernel_counts_beyond_32_bits(name: str) -> None:
    body, inputs = LARGE[name]
    templates = [
        {one.template for one in variants(large(body.replace("{n}", str(n)), inputs.replace("{n}", str(n))))}
        for n in (32768, 16384)
    ]
    kernels = [{one for one in found if one.startswith(("triton-", "cuda-"))} for found in templates]
    assert kernels[1]
    assert kernels[0] == ({one for one in kernels[1] if "product" not in one} if name == "a product" else set())
