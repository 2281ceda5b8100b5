"""Forms that references of others come in: each is read rightly, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from cudal1_data import Task, load_task
from cudal1_data.kernelgen.codegen.products import Tiles, product_program
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, plan
from cudal1_data.kernelgen.make import variants
from doubles.cuda import Gpu, doubled
from template_programs import error_of, errors_of_forms, imported, reference_of

TOLERANCE = 2e-5


def task_of(source: str) -> Task:
    """Return a task with this reference."""
    return load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})


def source_of(forward: str, *, inputs: str = "torch.randn(6, 8)", methods: str = "", **parts: str) -> str:
    """Return a reference whose `forward(self, x)` returns an expression, from parts of `reference_of`."""
    names = ", ".join("xyz"[: inputs.count("torch.ra")])
    methods = "".join(f"\n    {line}" for line in methods.splitlines())
    return reference_of(f"return {forward}", inputs=inputs, names=names, methods=methods, **parts)


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


SHAPES = """import torch
import torch.nn as nn

rows, columns = 6, 1 << 3
height, width = columns // 2, 5
input_shape = (columns, height)


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(shape))
        self.pool = torch.nn.AvgPool2d(2)

    def forward(self, x, y):
        return torch.nn.functional.mish(self.pool(x) * self.gain), torch.relu(y) * 2


def get_inputs():
    return [torch.randn(rows, *input_shape, width), torch.randn(*input_shape)]


def get_init_inputs():
    return [(columns, 1, 1)]
"""


def test_sizes_assigned_together_and_spread_into_a_call_are_read(tmp_path: Path) -> None:
    assert is_right(SHAPES, tmp_path)
    assert [root.dims for root in read(SHAPES).roots] == [(6, 8, 2, 2), (8, 4)]


def test_a_constructor_with_local_values_is_read(tmp_path: Path) -> None:
    init = "wide = 2 * width\nself.up = nn.Linear(width, wide)\nself.scale = wide / 8\npass"
    source = source_of("torch.tanh(self.up(x)) * self.scale", init=init, given="8", parameters="self, width")
    assert is_right(source, tmp_path)


@pytest.mark.parametrize("pool", ["nn.AvgPool2d(size)", "nn.MaxPool2d(size, stride=step)"])
def test_windows_whose_size_is_a_constant_are_read(pool: str, tmp_path: Path) -> None:
    source = source_of(
        "torch.relu(self.pool(x))",
        init=f"self.pool = {pool}",
        parameters="self, size, step",
        given="size, step",
        inputs="torch.randn(2, 3, 9, 12)",
        head="size = 3\nstep = 2",
    )
    assert is_right(source, tmp_path)


EDGES = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

width = 20
conv_width = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, stride=2)
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x):
        h = torch.tanh(self.conv(x)) + self.bias
        h = self.grow(torch.sigmoid(self.pool(h)) * conv_width)
        return torch.relu(F.avg_pool2d(h, 3)) + 1.0


def get_inputs():
    return [torch.randn(2, 4, 24, width)]


def get_init_inputs():
    return []
"""


def test_edges_of_maps_are_read_from_calls_and_computed_once(tmp_path: Path) -> None:
    assert is_right(EDGES, tmp_path)
    reference = read(EDGES)
    steps = plan(reference.roots)
    triton = triton_program(reference, steps, Choice())
    assert "        conv_height = conv.shape[2]\n        conv_width_2 = conv.shape[3]\n" in triton
    assert "        grow_width = grow.shape[3]\n" in triton
    assert triton.count("pool_width = conv_width_2 // 2") == 1
    assert "(2, 4, avg_pool_height, avg_pool_width)" in triton
    nvrtc = nvrtc_program(reference, steps, Choice())
    assert ".shape[" not in nvrtc
    head = nvrtc.partition("def ")[0]
    assert "conv_height = 11\nconv_width_2 = (width - 3) // 2 + 1\npool_height = conv_height // 2\n" in head
    namespace: dict[str, int] = {}
    exec(head, namespace)
    for name, size in {"conv_width_2": 9, "pool_width": 4, "grow_width": 8, "avg_pool_width": 2}.items():
        assert namespace[name] == size


@pytest.mark.slow
def test_a_triton_program_with_edges_is_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    assert max(errors_of_forms({"edges": EDGES}, tmp_path).values()) < TOLERANCE


def test_few_long_rows_are_reduced_in_parts(tmp_path: Path) -> None:
    source = source_of("torch.tanh(x - x.mean(-1, keepdim=True)), x.amax((1, 2))", inputs="torch.randn(2, 4, 131072)")
    rows = [one.rows for one in plan(read(source).roots) if isinstance(one, Kernel) and one.trailing]
    assert rows[0] >= 8
    assert is_right(source, tmp_path)
    source = source_of("x.sum(-1), x.sum()", inputs="torch.randn(3, 131072)")
    rows = [one.rows for one in plan(read(source).roots) if isinstance(one, Kernel) and one.trailing]
    assert max(rows) == 3 * 256
    assert is_right(source, tmp_path)


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
    assert max(errors_of_forms({"bench": BENCH}, tmp_path).values()) < TOLERANCE


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
        ({"init": ONES, "head": "F = 8"}, "has the name F,"),
        ({"init": ONES, "parameters": "self, **sizes"}, "parameters like"),
        ({"init": ONES, "given": "8"}, "__init__ gets [0-9]+ arguments and has"),
        ({"init": ONES, "parameters": "self, size"}, "'size'"),
    ],
)
def test_a_constructor_that_does_not_stand_on_its_own(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UnsuitableError, match=said):
        read(source_of("torch.tanh(x * self.gain)", **changes))


def test_a_constructor_may_take_any_arguments(tmp_path: Path) -> None:
    changes = {"init": ONES, "parameters": "self, *given", "given": "8, 2"}
    assert is_right(source_of("torch.tanh(x * self.gain)", **changes), tmp_path)


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
    "functions by their whole name": {"forward": "torch.nn.functional.mish(torch.nn.functional.elu(x, alpha=0.5))"},
    "a cut-off at two numbers": {"forward": "F.hardtanh(x * 2, min_val=-1, max_val=0.5) + F.softplus(x)"},
    "a product raised to a number": {"forward": "torch.pow(x, 3.0) * x ** 4 - (x + 5.0) ** -1"},
    "an extreme against a number in a tensor": {"forward": "torch.min(x, torch.tensor(0.25)) * torch.max(x, x * 2)"},
    "a learnt number": {"forward": "torch.tanh(x - self.c)", "init": "self.c = nn.Parameter(torch.tensor(0.5))"},
    "a mean over all elements": {"forward": "torch.mean((x - 1) ** 2), x.max(), torch.tanh(x) / torch.norm(x)"},
    "a norm over rows": {"forward": "x / torch.norm(x, p=2, dim=1, keepdim=True)"},
    "losses with their means": {
        "forward": "F.mse_loss(x, y), F.smooth_l1_loss(x, y, reduction='sum'), F.l1_loss(x, y)",
        "inputs": "torch.randn(6, 8), torch.rand(6, 8)",
    },
    "a divergence": {
        "forward": "F.kl_div(torch.log(x), y, reduction='batchmean')",
        "inputs": "torch.rand(6, 8).softmax(dim=-1), torch.rand(6, 8).softmax(dim=-1)",
    },
    "a margin between two distances": {
        "forward": "self.loss(x, y, z)",
        "init": "self.loss = torch.nn.TripletMarginLoss(margin=0.5)",
        "inputs": "torch.randn(6, 8), torch.randn(6, 8), torch.randn(6, 8)",
    },
    "a triangle of what a kernel makes": {"forward": "torch.tril(torch.tanh(x @ x.T)) + torch.triu(x @ x.T * 2, 1)"},
    "a root mean square of channels": {
        "forward": "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
        "inputs": WHOLE,
    },
    "a softmax of channels": {"forward": "torch.softmax(x, dim=1) + F.log_softmax(x, dim=2)", "inputs": WHOLE},
    "extremes of a middle axis": {"forward": "torch.max(x, dim=1)[0] - x.amin((0, 2))[0]", "inputs": WHOLE},
    "a spread of two axes that are not neighbours": {"forward": "torch.tanh(x.var((1, 3)))", "inputs": WHOLE},
    "rows that are broadcast, summed along another axis": {
        "forward": "((x + y) * self.gain).sum(1, keepdim=True) + x.logsumexp(dim=1)[:, None]",
        "init": "self.gain = nn.Parameter(torch.randn(3, 1, 8))",
        "inputs": f"{WHOLE}, torch.randn(4, 1)",
    },
    "activations as layers": {
        "forward": "self.c(self.b(self.a(x)))",
        "init": "self.a = nn.Hardtanh(min_val=-1.0, max_val=1.5)\nself.b = nn.LeakyReLU(0.2)\nself.c = nn.Softmax(1)",
    },
    "a norm of groups": {
        "forward": "torch.relu(self.norm(x)) + self.plain(x)",
        "init": "self.norm = nn.GroupNorm(2, 4)\nself.plain = nn.InstanceNorm2d(4)\nnn.init.normal_(self.norm.weight)",
        "inputs": MAPS,
    },
    "a norm of groups of a row": {
        "forward": "self.norm(x) * 2",
        "init": "self.norm = nn.GroupNorm(num_groups=2, num_channels=8)",
    },
    "a norm by names": {
        "forward": "self.norm(x)",
        "init": "self.norm = nn.LayerNorm(normalized_shape=(4, 5, 5), eps=1e-3)",
        "inputs": MAPS,
    },
    "a norm of squares": {"forward": "self.norm(x)", "init": "self.norm = nn.RMSNorm(8, eps=1e-5)"},
    "norms as functions": {
        "forward": "F.layer_norm(x, (5, 5), eps=1e-3), F.group_norm(x, 2, self.w, bias=self.b) * 2, "
        "F.instance_norm(x, weight=self.w), F.rms_norm(x, x.shape[-1:], self.g, 1e-5)",
        "init": "self.w = nn.Parameter(torch.randn(4))\nself.b = nn.Parameter(torch.randn(4))\n"
        "self.g = nn.Parameter(torch.randn(5))",
        "inputs": MAPS,
    },
    "pooled maps": {
        "forward": "torch.tanh(self.pool(x)), self.all(x * 2), F.adaptive_avg_pool2d(torch.relu(x), 1)",
        "init": "self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)\nself.all = nn.AdaptiveAvgPool2d((1, 1))",
        "inputs": MAPS,
    },
    "a squeezed axis": {"forward": "torch.tanh(x.unsqueeze(1)).squeeze(1) * x.select(0, 2)"},
    "tensors behind each other": {"forward": "torch.tanh(torch.cat((x, x * 2), dim=-1)) * 2"},
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
@pytest.mark.parametrize(
    "name",
    [
        "a transposed parameter",
        "a parameter in half precision",
        "a root mean square of channels",
        "rows that are broadcast, summed along another axis",
        "a norm of groups",
    ],
)
def test_tensors_in_kernels_are_read_where_they_lie(name: str, tmp_path: Path) -> None:
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
        for n in (32769, 16384)
    ]
    kernels = [{one for one in found if one.startswith(("triton-", "cuda-"))} for found in templates]
    assert kernels[1]
    assert kernels[0] == ({one for one in kernels[1] if "product" not in one} if name == "a product" else set())


# --- rows in registers, axes in another order, half precision ----------------------------------------------------

ROWS: dict[str, dict[str, str]] = {
    "a norm": {
        "forward": "torch.tanh(self.norm(x)) + x",
        "init": "self.norm = nn.LayerNorm(8)\nnn.init.normal_(self.norm.bias)",
    },
    "a softmax with a value for each row": {
        "forward": "torch.softmax(x * y, dim=-1) * x.sum(-1, keepdim=True), x.std(-1)",
        "inputs": "torch.randn(5, 24), torch.randn(5, 1)",
    },
    "columns": {"forward": "torch.softmax(x, dim=1) + x.logsumexp((0, 1))", "inputs": WHOLE},
    "half precision in and out": {
        "forward": "torch.softmax(x * 2.0 + y, dim=-1), (x * y).float().sum(-1)",
        "inputs": "torch.randn(6, 16).bfloat16(), torch.randn(16).bfloat16()",
    },
    "elements in half precision": {
        "forward": "torch.tanh(x) * y + 1.0, x.float() * 2.0",
        "inputs": "torch.randn(6, 16).half(), torch.randn(6, 16).half()",
    },
}


CHOICES = (Choice(threads=32, vector=4, per_block=2), Choice(threads=64, vector=2), Choice(threads=32, vector=8))
ROWS_BY_CHOICE = [
    pytest.param(name, choice, id=f"{name}-{choice}", marks=[pytest.mark.slow] * (place > 0 and name != "a norm"))
    for name in ROWS
    for place, choice in enumerate(CHOICES)
]
"""Every form with one choice, and every choice with one form; the rest are slow."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("name", "choice"), ROWS_BY_CHOICE)
def test_vectors_of_rows_in_registers_are_computed_rightly(name: str, choice: Choice, tmp_path: Path) -> None:
    source = source_of(**ROWS[name])
    reference = read(source)
    with doubled(Gpu(tmp_path)):
        program = nvrtc_program(reference, plan(reference.roots), choice)
        tolerance = 1e-2 if "half" in name else TOLERANCE
        assert error_of(task_of(source), program, tmp_path) < tolerance
    if name != "columns":
        assert f"x{choice.vector}" in program


@pytest.mark.parametrize("name", [name for name in ROWS if "half" in name])
def test_half_precision_is_written_as_pytorch_stores_it(name: str, tmp_path: Path) -> None:
    source = source_of(**ROWS[name])
    module = imported(source, tmp_path)
    outputs = module.Model()(*module.get_inputs())
    assert [getattr(torch, root.dtype) for root in read(source).roots] == [one.dtype for one in outputs]
    reference = read(source)
    program = torch_program(reference, plan(reference.roots))
    assert error_of(task_of(source), program, tmp_path) < 1e-2


@pytest.mark.parametrize(
    "call", ["F.instance_norm(x)", "F.layer_norm(x, [5])", "F.rms_norm(x, (5, 5))", "F.group_norm(x, 2)"]
)
def test_norms_as_functions_are_one_kernel_in_half_precision(call: str, tmp_path: Path) -> None:
    source = source_of(f"torch.tanh({call}) * 2", inputs=f"{MAPS}.half()")
    reference = read(source)
    assert sum(isinstance(step, Kernel) for step in plan(reference.roots)) == 1
    assert error_of(task_of(source), torch_program(reference, plan(reference.roots)), tmp_path) < 2e-3


@pytest.mark.parametrize("call", ["mean", "var", "std", "logsumexp", "softmax", "log_softmax"])
def test_reductions_of_half_precision_round_their_result_only(call: str, tmp_path: Path) -> None:
    source = source_of(forward=f"x.{call}(-1)", inputs="3 + torch.randn(64, 375).bfloat16()")
    module, reference = imported(source, tmp_path), read(source)
    program = imported(torch_program(reference, plan(reference.roots)), tmp_path)
    x = module.get_inputs()[0]
    exact = module.Model()(x.double())
    errors = [float((made(x).double() - exact).abs().max()) for made in (program.ModelNew(), module.Model())]
    assert errors[0] <= 1.1 * errors[1]


PRODUCTS: dict[str, dict[str, str]] = {
    "a product alone": {"forward": "x @ y", "inputs": "torch.randn(20, 40), torch.randn(40, 24)"},
    "halves, widened": {
        "forward": "torch.tanh(x.float() @ y.float().T)",
        "inputs": "torch.randn(20, 40).half(), torch.randn(24, 40).half()",  # the interpreter cannot multiply bfloat16
    },
    "halves as they are": {
        "forward": "torch.relu(x @ y) * 2.0",
        "inputs": "torch.randn(20, 40).half(), torch.randn(40, 24).half()",
    },
}


@pytest.mark.slow
def test_triton_programs_of_these_forms_are_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    forms = {**ROWS, **PRODUCTS, "long rows": {"forward": "torch.softmax(x, -1)", "inputs": "torch.randn(3, 70)"}}
    told = errors_of_forms({name: source_of(**form) for name, form in forms.items()}, tmp_path)
    assert {f"{name}, product" for name in PRODUCTS} <= set(told)
    assert "long rows, in parts" in told
    assert {name: one for name, one in told.items() if not one < (1e-2 if "hal" in name else TOLERANCE)} == {}


def test_halves_reach_tensor_cores_as_they_are_stored() -> None:
    for name, form in PRODUCTS.items():
        reference = read(source_of(**form))
        program = product_program(reference, plan(reference.roots), Tiles(32, 32, 16, 4, 2))
        assert program.count("tl.dot(left, right, acc)") == ("hal" in name)
        assert ".float()" not in program
