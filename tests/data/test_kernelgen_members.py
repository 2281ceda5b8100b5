"""Members of a reference: classes of its file, lists of layers, embeddings, members assigned together, attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cudal1_data import Task, load_task
from cudal1_data.kernelgen.codegen.attention import Rows, attention_program
from cudal1_data.kernelgen.codegen.programs import Choice, torch_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from template_programs import error_of, errors_of_forms, imported, reference_of

NORM = """class RMSNorm(nn.Module):
    # Scales rows to a root mean square of 1.
    def __init__(self, dim, eps=1e-6):
        super(RMSNorm, self).__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.eps = eps

    def _scale(self, x):
        return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return x * self._scale(x) * self.weight
"""
GATED = """class Gated(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        assert inner > dim
        self.up, self.gate = nn.Linear(dim, inner, bias=False), nn.Linear(dim, inner, bias=False)
        self.down = nn.Linear(inner, dim)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))
"""
BLOCK = """class Block(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.norm = RMSNorm(dim, eps=1e-5)
        self.inner = Gated(dim, inner)

    def forward(self, x):
        return x + self.inner(self.norm(x))
"""
AROUND = """class Residual(nn.Module):
    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, x):
        return x + self.of(x)
"""
TREES = "self.layers = nn.ModuleList([Block(dim, 2 * dim) for _ in range(2)])"

ATTENTION = """class Attention(nn.Module):
    def __init__(self, dim, heads, causal=True):
        super().__init__()
        assert dim % heads == 0
        self.heads, self.wide, self.causal = heads, dim // heads, causal
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (one.view(b, t, self.heads, self.wide).transpose(1, 2) for one in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).contiguous().view(b, t, c))
"""


def source_of(
    init: str, forward: str, *, head: str = "", given: str = "dim", inputs: str = "torch.randn(rows, dim)"
) -> str:
    """Return a reference with these lines in its constructor and in `forward(self, x)`."""
    head = f"import math\n\nrows, dim = 6, 8\n\n\n{head}"
    return reference_of(forward, init=init, parameters="self, dim", given=given, inputs=inputs, head=head)


IDS = "torch.randint(0, 12, (3, 5))"
FORMS = {
    "a class": source_of("self.norm = RMSNorm(dim)", "return torch.tanh(self.norm(x)) + self.norm.eps", head=NORM),
    "a class by keyword": source_of(
        "self.norm = RMSNorm(eps=0.1, dim=dim)", "return self.norm(x=x) * self.norm.weight", head=NORM
    ),
    "a class with the name of a layer": source_of(
        "self.own = RMSNorm(dim, 0.5)\nself.norm = nn.Sequential(nn.RMSNorm(dim, 0.1))",
        "return self.own(x) - self.norm(x) * self.norm[0].weight",
        head=NORM,
    ),
    "a method of a member": source_of("self.norm = RMSNorm(dim)", "return x * self.norm._scale(x)", head=NORM),
    "a class of two classes": source_of(
        "self.block = Block(dim, 2 * dim)",
        "return self.block(x) * self.block.norm.weight",
        head="\n\n".join((NORM, GATED, BLOCK)),
    ),
    "blocks in a list": source_of(
        f"{TREES}\nself.norm = nn.LayerNorm(dim)",
        "for layer in self.layers:\n    x = layer(x)\nreturn torch.relu(self.norm(x))",
        head="\n\n".join((NORM, GATED, BLOCK)),
    ),
    "a class that gets a layer": source_of(
        "first = nn.Sequential(RMSNorm(dim), nn.Dropout(0.0), nn.GELU())\n"
        "self.net = nn.Sequential(Residual(first), Residual(nn.Linear(dim, dim)))",
        "return torch.tanh(self.net(x))",
        head=f"{NORM}\n\n{AROUND}",
    ),
    "a class without a constructor": source_of(
        "self.squared = Squared()",
        "return self.squared(x) * 2.0",
        head="class Squared(nn.Module):\n    def forward(self, x):\n        return torch.relu(x) ** 2\n",
    ),
    "buffers": source_of(
        "rates = torch.arange(dim) * 0.1\nself.register_buffer('cos', rates.cos())\n"
        "self.register_buffer('later', torch.ones(rows, dim).triu(1).bool(), persistent=False)",
        "return torch.tanh(x * self.cos).masked_fill(self.later, 0.5)",
    ),
    "a buffer that no call uses": source_of(
        "self.register_buffer('seen', None)\nself.register_buffer('rank', torch.linalg.matrix_rank(torch.eye(dim)))",
        "return torch.tanh(x)",
    ),
    "a function": source_of(
        "self.scale = 0.5",
        "y = 3.0\nreturn gated(x, by=self.scale) + gated(x * y)",
        head="def halves(x):\n    y = x.shape[-1] // 2\n    return x[..., :y], x[..., y:]\n\n\n"
        "def gated(x, by=2.0):\n    first, second = halves(x)\n    return torch.sigmoid(first) * second * by\n",
    ),
    "a sequence": source_of(
        "self.net = nn.Sequential(nn.Linear(dim, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, dim))",
        "return torch.sigmoid(self.net(x)) * x",
    ),
    "parts of a sequence": source_of(
        "self.net = nn.Sequential(nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, dim), nn.Tanh()), nn.SiLU())",
        "h = self.net[1](self.net[0](x))\nfor part in self.net[1:]:\n    h = part(h)\n"
        "return h * self.net[0].weight + self.net[-1](x) * len(self.net)",
    ),
    "a sequence of a list": source_of(
        "parts = [nn.Linear(dim, dim), nn.ReLU()]\nparts.append(nn.LayerNorm(dim))\n"
        "for _ in range(2):\n    parts.append(nn.Linear(dim, dim))\n    parts.append(nn.Hardtanh(-1.0, 2.0))\n"
        "self.net = nn.Sequential(*parts)",
        "return self.net(x) * 2.0",
    ),
    "maps in a sequence": source_of(
        "self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())",
        "return torch.tanh(self.net(x))",
        inputs="torch.randn(2, 1, rows, dim)",
    ),
    "places of a list": source_of(
        "self.layers = nn.ModuleList([nn.Linear(dim, dim), nn.Linear(dim, dim)])\n"
        "self.scales = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))",
        "for i in range(2):\n    x = torch.tanh(self.scales[i](self.layers[i](x)))\nreturn x + self.layers[-1].bias",
    ),
    "lists side by side": source_of(
        "self.layers = nn.ModuleList()\nself.norms = nn.ModuleList([])\n"
        "for wide in (dim, 2 * dim):\n    self.layers.append(nn.Linear(wide, 2 * dim))\n"
        "    self.norms.append(nn.LayerNorm(2 * dim))",
        "for n, (layer, norm) in enumerate(zip(self.layers, self.norms)):\n"
        "    x = torch.tanh(norm(layer(x))) * (n + 1)\n"
        "return x",
    ),
    "attention": source_of(
        "self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2)])\n"
        "self.inner = nn.ModuleList([Attention(dim, 2), Attention(dim, 4, causal=False)])",
        "for norm, inner in zip(self.norms, self.inner):\n    x = x + inner(norm(x))\nreturn x",
        head=ATTENTION,
        inputs="torch.randn(2, rows, dim)",
    ),
    "attention at a scale": source_of(
        "self.key = nn.Linear(dim, dim)",
        "k = self.key(x)\nreturn F.scaled_dot_product_attention(x[:, :, :4], k, x, None, 0.0, True, scale=0.3) * 2.0",
        inputs="torch.randn(2, 3, rows, dim)",
    ),
    "members together": source_of(
        "self.a, self.b = nn.Linear(dim, dim), nn.LayerNorm(dim)\n(self.h, self.w), n = (2, 3), dim\nm, n = n, 4\n"
        "self.gain, self.n = nn.Parameter(torch.randn(m)), n",
        "return torch.relu(self.b(self.a(x))) * self.gain * self.h + self.w * self.n",
    ),
    "an embedding": source_of(
        "self.words = nn.Embedding(12, dim)\nself.places = nn.Embedding(5, embedding_dim=dim)",
        "return torch.tanh(self.words(x) + self.places.weight)",
        inputs=IDS,
    ),
    "an embedding alone": source_of(
        "self.words = nn.Embedding(12, dim, padding_idx=0)\nself.head = nn.Linear(dim, 12, bias=False)",
        "return torch.softmax(self.head(self.words(x)), dim=-1)",
        inputs=IDS,
    ),
    "a small model": source_of(
        f"self.words = nn.Embedding(12, dim)\n{TREES}\nself.norm = RMSNorm(dim)",
        "x = self.words(x)\nfor layer in self.layers:\n    x = layer(x)\n"
        "return F.linear(self.norm(x), self.words.weight) * 0.5",
        head="\n\n".join((NORM, GATED, BLOCK)),
        inputs=IDS,
    ),
}


def task_of(source: str) -> Task:
    return load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})


@pytest.mark.parametrize("name", FORMS)
def test_members_compute_what_the_reference_does(name: str, tmp_path: Path) -> None:
    reference = read(FORMS[name])
    steps = plan(reference.roots)
    program = torch_program(reference, steps)
    assert error_of(task_of(FORMS[name]), program, tmp_path) < 1e-6
    assert "@triton.jit" in triton_program(reference, steps, Choice())
    module = imported(FORMS[name], tmp_path)
    with torch.no_grad():
        wanted = module.Model(*module.get_init_inputs())(*module.get_inputs())
    assert [root.dims for root in reference.roots] == [wanted.shape]


def test_classes_and_the_constructor_are_copied_as_they_are() -> None:
    unused = NORM.replace("RMSNorm", "Other")
    source = source_of(TREES, "return self.layers[0](x)", head="\n\n".join((NORM, unused, GATED, BLOCK)))
    reference = read(source)
    program = triton_program(reference, plan(reference.roots), Choice())
    for part in (NORM, GATED, BLOCK, TREES):
        assert part.strip() in program
    assert "class Other" not in program
    forward = program.partition("class ModelNew")[2].partition("def forward")[2]
    assert "self.layers[0].inner.up.weight" in forward
    assert "self.layers[0].norm.weight" in forward


def test_attention_as_a_function_is_one_pass_over_the_keys() -> None:
    reference = read(FORMS["attention at a scale"])
    program = attention_program(reference, plan(reference.roots), Rows(rows=16, keys=16, warps=4))
    assert "for first in range(0, end, BLOCK_N):" in program
    assert "@ " not in program.partition("def forward(self, x)")[2]


REFUSED = {
    "a list that is no member": ("self.layers = [nn.Linear(dim, dim)]", "return self.layers[0](x)", "", "ModuleList"),
    "a call of a list": ("self.net = nn.ModuleList([nn.ReLU()])", "return self.net(x)", "", "ModuleList is unknown"),
    "layers by name": (
        "self.net = nn.Sequential(dict(a=nn.ReLU()))",
        "return self.net(x)",
        "",
        "is called",
    ),
    "a number among layers": ("self.net = nn.Sequential(nn.ReLU(), 3)", "return self.net(x)", "", "layers only"),
    "a layer of one call": ("self.n = dim", "act = nn.ReLU()\nreturn act(x)", "", "ReLU"),
    "dropout": ("self.net = nn.Sequential(nn.Dropout(0.1))", "return self.net(x)", "", "nn.Dropout is unknown"),
    "a renormed table": ("self.t = nn.Embedding(8, 4, max_norm=1.0)", "return self.t(x.long())", "", "padding_idx"),
    "places that are floats": ("self.t = nn.Embedding(8, 4)", "return self.t(x)", "", "int64"),
    "a member that is unknown": ("self.norm = RMSNorm(dim)", "return self.norm.scale * x", NORM, "self.norm.scale is"),
    "a method that is unknown": ("self.norm = RMSNorm(dim)", "return self.norm.scaled(x)", NORM, "self.norm.scaled is"),
    "too many arguments": ("self.norm = RMSNorm(dim, 1e-5, 3)", "return self.norm(x)", NORM, "3 arguments"),
    "a function in a class": (
        "self.norm = RMSNorm(dim)",
        "return self.norm(x)",
        NORM.replace("x.pow(2)", "squared(x)") + "\n\ndef squared(x):\n    return x * x\n",
        "defines squared outside",
    ),
    "a function with a decorator": (
        "self.n = dim",
        "return squared(x)",
        "@torch.jit.script\ndef squared(x):\n    return x * x\n",
        "plain ones",
    ),
    "a function in itself": ("self.n = dim", "return again(x)", "def again(x):\n    return again(x)\n", "followed"),
    "a function in a constructor": (
        "self.n = twice(dim)",
        "return x * self.n",
        "def twice(n):\n    return 2 * n\n",
        "twice",
    ),
    "a buffer that is drawn in a way that is not known": (
        "self.register_buffer('w', torch.linalg.qr(torch.randn(dim, dim))[0])",
        "return x @ self.w",
        "",
        "self.w is",
    ),
    "a class of another base": (
        "self.act = Act()",
        "return self.act(x)",
        "class Act(nn.ReLU):\n    pass\n",
        "defines Act outside",
    ),
    "a class that is called its own way": (
        "self.act = Act()",
        "return self.act(x)",
        "class Act(nn.Module):\n    def __call__(self, x):\n        return torch.relu(x)\n",
        "method __call__",
    ),
    "a class that changes its members": (
        "self.act = Act()",
        "return self.act(x)",
        "class Act(nn.Module):\n    def forward(self, x):\n        self.seen = x\n        return torch.relu(x)\n",
        "self.seen",
    ),
    "a class with a name of programs": (
        "self.act = fused0()",
        "return self.act(x)",
        "class fused0(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n",
        "has the name fused0",
    ),
    "a class in itself": (
        "self.act = Act()",
        "return self.act(x)",
        "class Act(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.act = Act()\n\n"
        "    def forward(self, x):\n        return x\n",
        "cannot be followed",
    ),
    "a sequence that changes its input": (
        "self.net = nn.Sequential(nn.ReLU(True), nn.Linear(dim, dim))",
        "return x + self.net(x)",
        "",
        "in place",
    ),
    "attention with dropout": (
        "self.n = dim",
        "return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.1)",
        "",
        "dropout",
    ),
    "attention with a mask": (
        "self.n = dim",
        "return F.scaled_dot_product_attention(x[None], x[None], x[None], x > 0)",
        "",
        "not with a mask",
    ),
    "attention with shared heads": (
        "self.n = dim",
        "return F.scaled_dot_product_attention(x[None], x[None, :1], x[None])",
        "",
        "same heads",
    ),
    "unequal parts": ("self.n = dim", "a, b = x.split((3, 5), dim=-1)\nreturn torch.tanh(a)", "", "equal parts"),
    "a loop with another end": (
        "self.net = nn.ModuleList([nn.ReLU()])",
        "for one in self.net:\n    x = one(x)\nelse:\n    x = x + 1.0\nreturn x",
        "",
        "over a range",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_members_that_are_not_read_are_refused_by_name(name: str) -> None:
    init, forward, head, said = REFUSED[name]
    with pytest.raises(UnsuitableError, match=said):
        read(source_of(init, forward, head=head))


@pytest.mark.slow
def test_triton_programs_with_members_are_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    assert max(errors_of_forms(FORMS, tmp_path).values()) < 2e-5
