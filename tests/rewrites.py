"""Programs and their rewrites, which decontamination must find, and look-alikes, which it must leave alone.

Each program is written as its forward body, with inputs `x`, `y`, `z`; the second of a pair has other sizes, and mostly
other names for its parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data import Task


@dataclass(frozen=True)
class Body:
    """A program in short."""

    forward: str
    """What `forward` does, lines parted by `;`, the last an expression."""
    inputs: str = "x = torch.randn(N, M)"
    """What `get_inputs` makes, parted by `;`."""
    members: str = ""
    """What the constructor makes, as `name = expression` parted by `;`."""


def task(name: str, body: Body, sizes: dict[str, int]) -> Task:
    """Write a program out."""
    *lines, last = [line.strip() for line in body.forward.split(";")]
    inputs = [line.strip() for line in body.inputs.split(";")]
    names = ", ".join(line.partition(" = ")[0] for line in inputs)
    members = [line.strip() for line in body.members.split(";") if line.strip()]
    text = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
    text += "".join(f"{key} = {value}\n" for key, value in sizes.items()) + "\n\nclass Model(nn.Module):\n"
    text += "    def __init__(self):\n        super().__init__()\n"
    text += "".join(f"        self.{line}\n" for line in members)
    text += f"\n    def forward(self, {names}):\n" + "".join(f"        {line}\n" for line in lines)
    text += f"        return {last}\n\n\ndef get_inputs():\n" + "".join(f"    {line}\n" for line in inputs)
    text += f"    return [{names}]\n\n\ndef get_init_inputs():\n    return []\n"
    return Task(id=f"test/{name}", source=text, name=name, level=1, origin="test")


ONE, OTHER = {"N": 96, "M": 160}, {"N": 40, "M": 224}
"""Sizes of the programs, and of their rewrites."""
_PAIR = "x = torch.randn(N, M); y = torch.randn(N, M)"
_MAPS = "x = torch.randn(N, M, N, N)"
_HEADS = "x = torch.randn(2, N, M); y = torch.randn(2, N, M); z = torch.randn(2, N, M)"
_LABELS = "x = torch.randn(N, M); y = torch.randint(4, (N,))"
_WEIGHT = "w = nn.Parameter(torch.randn(M, M))"

REWRITES: dict[str, tuple[Body, Body]] = {
    "softmax without shift": (
        Body("torch.softmax(x, dim=-1)"),
        Body("e = torch.exp(x); e / e.sum(dim=-1, keepdim=True)"),
    ),
    "log of softmax": (Body("F.log_softmax(x, dim=1)"), Body("torch.log(torch.softmax(x, dim=1))")),
    "pointwise convolution as linear": (
        Body("self.conv(x)", _MAPS, "conv = nn.Conv2d(M, M, 1)"),
        Body("self.proj(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)", _MAPS, "proj = nn.Linear(M, M)"),
    ),
    "relu by absolute value": (Body("torch.relu(x) * 2.0"), Body("x + torch.abs(x)")),
    "product by broadcasting": (
        Body("x @ y", "x = torch.randn(N, M); y = torch.randn(M, N)"),
        Body("(x[:, :, None] * y[None]).sum(dim=1)", "x = torch.randn(N, M); y = torch.randn(M, N)"),
    ),
    "diagonal product": (
        Body("torch.diag(x) @ y", "x = torch.randn(N); y = torch.randn(N, M)"),
        Body("x[:, None] * y", "x = torch.randn(N); y = torch.randn(N, M)"),
    ),
    "layer normalisation by moments": (
        Body("F.layer_norm(x, (M,), eps=1e-6)"),
        Body("m = x.mean(-1, keepdim=True); v = (x * x).mean(-1, keepdim=True) - m * m; "
             "(x - m) / torch.sqrt(v + 1e-6)"),
    ),
    "sigmoid by tanh": (Body("torch.sigmoid(x) * x"), Body("0.5 * x * (1 + torch.tanh(0.5 * x))")),
    "softplus by logarithm": (Body("F.softplus(x)"), Body("torch.log(1 + torch.exp(x))")),
    "gelu by error function": (Body("F.gelu(x)"), Body("x * 0.5 * torch.erfc(-x / 2**0.5)")),
    "mean as product": (Body("x.mean(dim=1)"), Body("x @ torch.full((M,), 1.0 / M, dtype=x.dtype)")),
    "variance by two means": (
        Body("torch.var(x, dim=1, unbiased=False)"),
        Body("(x * x).mean(dim=1) - x.mean(dim=1) ** 2"),
    ),
    "clamp by minimum and maximum": (
        Body("torch.clamp(x, -1.0, 2.0)"),
        Body("torch.where(x < -1.0, -1.0, torch.where(x > 2.0, 2.0, x))"),
    ),
    "leaky relu by maximum": (Body("F.leaky_relu(x, 0.1)"), Body("torch.maximum(x, 0.1 * x)")),
    "squared distance expanded": (
        Body("torch.cdist(x, y) ** 2", _PAIR),
        Body("(x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.t()", _PAIR),
    ),
    "trace of a product": (Body("torch.trace(x @ y.t())[None] * x[0]", _PAIR), Body("(x * y).sum() * x[0]", _PAIR)),
    "attention by the library": (
        Body("F.scaled_dot_product_attention(x, y, z)", _HEADS),
        Body("s = x @ y.transpose(1, 2) / M**0.5; e = torch.exp(s - s.amax(-1, keepdim=True)); "
             "(e @ z) / e.sum(-1, keepdim=True)", _HEADS),
    ),
    "weight kept transposed": (
        Body("F.linear(x, self.w)", members=_WEIGHT),
        Body("x @ self.mix", members="mix = nn.Parameter(torch.randn(M, M))"),
    ),
    "cosine similarity by lengths": (
        Body("F.cosine_similarity(x, y, dim=1)", _PAIR),
        Body("(x * y).sum(1) / torch.sqrt((x * x).sum(1) * (y * y).sum(1))", _PAIR),
    ),
    "prefix sum as product": (
        Body("torch.cumsum(x, dim=1)"),
        Body("x @ torch.triu(torch.ones(M, M, dtype=x.dtype))"),
    ),
    "logsumexp by softmax": (Body("torch.logsumexp(x, dim=1)"), Body("x[:, 0] - F.log_softmax(x, dim=1)[:, 0]")),
    "hardswish by relu6": (Body("F.hardswish(x)"), Body("x * F.relu6(x + 3) / 6")),
    "maximum by absolute difference": (
        Body("torch.maximum(x, y)", _PAIR),
        Body("0.5 * (x + y + torch.abs(x - y))", _PAIR),
    ),
    "average pool by reshape": (
        Body("F.avg_pool1d(x[:, None], 4)[:, 0]"),
        Body("x.reshape(x.shape[0], -1, 4).mean(dim=2)"),
    ),
    "rms normalisation by length": (
        Body("F.rms_norm(x, (M,), eps=0.0)"),
        Body("M**0.5 * x / torch.linalg.vector_norm(x, dim=1, keepdim=True)"),
    ),
    "cross entropy by hand": (
        Body("F.cross_entropy(x, y, reduction='none')", _LABELS),
        Body("torch.logsumexp(x, 1) - x.gather(1, y[:, None])[:, 0]", _LABELS),
    ),
}  # fmt: skip

LOOK_ALIKES: dict[str, tuple[Body, Body]] = {
    "softmax over the other axis": (Body("torch.softmax(x, dim=1)"), Body("torch.softmax(x, dim=0)")),
    "softmax and softmin": (Body("torch.softmax(x, dim=1)"), Body("F.softmin(x, dim=1)")),
    "softmax and shares of sigmoids": (
        Body("torch.softmax(x, dim=1)"),
        Body("s = torch.sigmoid(x); s / s.sum(dim=1, keepdim=True)"),
    ),
    "gelu and its approximation": (Body("F.gelu(x)"), Body("F.gelu(x, approximate='tanh')")),
    "gelu and silu": (Body("F.gelu(x)"), Body("F.silu(x)")),
    "relu and leaky relu": (Body("torch.relu(x)"), Body("F.leaky_relu(x, 0.01)")),
    "relu and its smooth form": (Body("torch.relu(x)"), Body("F.softplus(x, beta=4)")),
    "relu and a clamp": (Body("torch.relu(x)"), Body("torch.clamp(x, 0.0, 6.0)")),
    "a clamp and none": (Body("torch.tanh(x) + x"), Body("torch.tanh(x) + torch.clamp(x, -8.0, 8.0)")),
    "variance and mean distance from the mean": (
        Body("torch.var(x, dim=1)"),
        Body("torch.abs(x - x.mean(dim=1, keepdim=True)).mean(dim=1)"),
    ),
    "variance and standard deviation": (Body("torch.var(x, dim=1)"), Body("torch.std(x, dim=1)")),
    "layer and rms normalisation": (Body("F.layer_norm(x, (M,))"), Body("F.rms_norm(x, (M,))")),
    "mean and median": (Body("x.mean(dim=1)"), Body("x.median(dim=1).values")),
    "largest and largest magnitude": (Body("x.amax(dim=1)"), Body("x.abs().amax(dim=1)")),
    "prefix sum forwards and backwards": (
        Body("torch.cumsum(x, dim=1)"),
        Body("torch.cumsum(x.flip(1), dim=1).flip(1)"),
    ),
    "prefix sum with and without itself": (Body("torch.cumsum(x, dim=1)"), Body("torch.cumsum(x, dim=1) - x")),
    "causal attention and full": (
        Body("F.scaled_dot_product_attention(x, y, z)", _HEADS),
        Body("F.scaled_dot_product_attention(x, y, z, is_causal=True)", _HEADS),
    ),
    "attention in a window and full": (
        Body("s = x @ y.transpose(1, 2) / M**0.5; torch.softmax(s, -1) @ z", _HEADS),
        Body("s = x @ y.transpose(1, 2) / M**0.5; p = torch.arange(N); "
             "s = torch.where((p[:, None] - p).abs() < 24, s, float('-inf')); torch.softmax(s, -1) @ z", _HEADS),
    ),
    "product and product with the transposed": (
        Body("x @ y", "x = torch.randn(N, N); y = torch.randn(N, N)"),
        Body("x @ y.t()", "x = torch.randn(N, N); y = torch.randn(N, N)"),
    ),
    "triangular and full product": (
        Body("x @ y", "x = torch.randn(N, N); y = torch.randn(N, M)"),
        Body("torch.tril(x) @ y", "x = torch.randn(N, N); y = torch.randn(N, M)"),
    ),
    "lower and upper triangle": (
        Body("torch.tril(x) @ y", "x = torch.randn(N, N); y = torch.randn(N, M)"),
        Body("torch.triu(x) @ y", "x = torch.randn(N, N); y = torch.randn(N, M)"),
    ),
    "huber and squared error": (
        Body("F.huber_loss(x, y, reduction='none')", _PAIR),
        Body("0.5 * (x - y) ** 2", _PAIR),
    ),
    "divergence and cross entropy": (
        Body("F.kl_div(F.log_softmax(x, 1), torch.softmax(y, 1), reduction='none').sum(1)", _PAIR),
        Body("-(torch.softmax(y, 1) * F.log_softmax(x, 1)).sum(1)", _PAIR),
    ),
    "flipped and not": (Body("torch.sigmoid(x)"), Body("torch.sigmoid(x.flip(1))")),
    "a convolution of one and of three": (
        Body("self.conv(x)", _MAPS, "conv = nn.Conv2d(M, M, 1)"),
        Body("self.conv(x)", _MAPS, "conv = nn.Conv2d(M, M, 3, padding=1)"),
    ),
    "with and without a bias": (
        Body("self.proj(x)", members="proj = nn.Linear(M, M)"),
        Body("self.proj(x)", members="proj = nn.Linear(M, M, bias=False)"),
    ),
}  # fmt: skip
