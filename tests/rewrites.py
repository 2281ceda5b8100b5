"""Programs with rewrites, which decontamination must find, and with look-alikes, which it must not.

Each program is written as its forward body, with inputs `x`, `y`, `z`; the second of a pair has other sizes, and mostly
other parameter names.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data import Task


@dataclass(frozen=True)
class Body:
    """A program in short form."""

    forward: str
    """What `forward` does, lines parted by `;`, the last an expression."""
    inputs: str = "x = torch.randn(N, M)"
    """What `get_inputs` makes, parted by `;`."""
    members: str = ""
    """What the constructor makes, as `name = expression` parted by `;`."""


def task(name: str, body: Body, sizes: dict[str, int]) -> Task:
    """Expand a program to a task."""
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
_SMALL = "x = torch.randn(4, N, 32, 32)"
_ROWS = "x = torch.randn(4, N, M)"
_STEPS = "x = torch.randn(N, 12, M)"
_TOKENS = "x = torch.randint(50, (N, M))"
_LABELS = "x = torch.randn(N, M); y = torch.randint(4, (N,))"
_WEIGHT = "w = nn.Parameter(torch.randn(M, M))"

REWRITES: dict[str, tuple[Body, Body]] = {
    "swiglu fused": (
        Body("self.down(F.silu(self.gate(x)) * self.up(x))",
             members="gate = nn.Linear(M, 2 * M, bias=False); up = nn.Linear(M, 2 * M, bias=False); "
                     "down = nn.Linear(2 * M, M, bias=False)"),
        Body("g, u = self.both(x).chunk(2, -1); self.down(g * torch.sigmoid(g) * u)",
             members="both = nn.Linear(M, 4 * M, bias=False); down = nn.Linear(2 * M, M, bias=False)"),
    ),
    "other draws of the inputs": (
        Body("F.softplus(x) * y", _PAIR),
        Body("y * torch.log1p(torch.exp(x))", "x = torch.rand(N, M) * 2 - 1; y = 0.1 * torch.randn(N, M)"),
    ),
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
    "heads by einsum": (
        Body("b, n, m = x.shape; q, k, v = [t.view(b, n, 4, m // 4) for t in (x, y, z)]; "
             "s = torch.einsum('bnhd,bmhd->bhnm', q, k) / (m // 4) ** 0.5; "
             "torch.einsum('bhnm,bmhd->bnhd', s.softmax(-1), v).reshape(b, n, m)", _HEADS),
        Body("b, n, m = x.shape; q, k, v = [t.view(b, n, 4, m // 4).transpose(1, 2) for t in (x, y, z)]; "
             "o = F.scaled_dot_product_attention(q, k, v); o.transpose(1, 2).flatten(2)", _HEADS),
    ),
    "tanh gelu by hand": (
        Body("F.gelu(self.proj(x), approximate='tanh')", members="proj = nn.Linear(M, M)"),
        Body("h = x @ self.w + self.b; 0.5 * h * (1 + torch.tanh(0.7978845608028654 * (h + 0.044715 * h.pow(3))))",
             members="w = nn.Parameter(torch.randn(M, M)); b = nn.Parameter(torch.zeros(M))"),
    ),
    "rms norm module": (
        Body("self.norm(x) * torch.sigmoid(x)", members="norm = nn.RMSNorm(M, eps=1e-6)"),
        Body("v = x.float().pow(2).mean(-1, keepdim=True); "
             "(self.scale * (x * torch.rsqrt(v + 1e-6)).type_as(x)) / (1 + torch.exp(-x))",
             members="scale = nn.Parameter(torch.ones(M))"),
    ),
    "convolution by unfold": (
        Body("F.relu(self.conv(x))", _SMALL, "conv = nn.Conv2d(N, 2 * N, 3, padding=1)"),
        Body("b, c, h, w = x.shape; cols = F.unfold(x, 3, padding=1); "
             "(self.lin(cols.transpose(1, 2))).transpose(1, 2).reshape(b, -1, h, w).clamp(min=0)",
             _SMALL, "lin = nn.Linear(N * 9, 2 * N)"),
    ),
    "global pool": (
        Body("self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))", _SMALL, "fc = nn.Linear(N, 10)"),
        Body("torch.einsum('bchw,oc->bo', x, self.w) / (x.size(2) * x.size(3)) + self.b",
             _SMALL, "w = nn.Parameter(torch.randn(10, N)); b = nn.Parameter(torch.randn(10))"),
    ),
    "embedding by one-hot": (
        Body("self.table(x)", _TOKENS, "table = nn.Embedding(50, 4 * M)"),
        Body("F.one_hot(x, 50).to(self.table.dtype) @ self.table",
             _TOKENS, "table = nn.Parameter(torch.randn(50, 4 * M))"),
    ),
    "logsumexp by shift": (
        Body("torch.logsumexp(x, dim=1, keepdim=True) - x"),
        Body("m = x.max(dim=1, keepdim=True).values; (m - x) + (x - m).exp().sum(1, keepdim=True).log()"),
    ),
    "glu by chunk": (
        Body("F.glu(self.proj(x), dim=-1)", members="proj = nn.Linear(M, 2 * M)"),
        Body("h = F.linear(x, self.w, self.c); "
             "h[..., :h.shape[-1] // 2] / (1 + torch.exp(-h[..., h.shape[-1] // 2:]))",
             members="w = nn.Parameter(torch.randn(2 * M, M)); c = nn.Parameter(torch.randn(2 * M))"),
    ),
    "attention with fused projections": (
        Body("q, k, v = self.q(x), self.k(x), self.v(x); "
             "(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1) @ v",
             _ROWS, "q = nn.Linear(M, M); k = nn.Linear(M, M); v = nn.Linear(M, M)"),
        Body("q, k, v = self.qkv(x).split(x.shape[-1], dim=-1); F.scaled_dot_product_attention(q, k, v)",
             _ROWS, "qkv = nn.Linear(M, 3 * M)"),
    ),
    "multihead attention module": (
        Body("self.mha(x, x, x, need_weights=False)[0]", _ROWS, "mha = nn.MultiheadAttention(M, 4, batch_first=True)"),
        Body("b, n, m = x.shape; q, k, v = [t.view(b, n, 4, m // 4).transpose(1, 2) "
             "for t in self.qkv(x).chunk(3, -1)]; a = torch.softmax(q @ k.transpose(-1, -2) / (m // 4) ** 0.5, -1); "
             "self.out((a @ v).transpose(1, 2).reshape(b, n, m))",
             _ROWS, "qkv = nn.Linear(M, 3 * M); out = nn.Linear(M, M)"),
    ),
    "group norm by hand": (
        Body("self.norm(x)", _SMALL, "norm = nn.GroupNorm(4, N)"),
        Body("b, c, h, w = x.shape; g = x.reshape(b, 4, -1); "
             "g = (g - g.mean(-1, keepdim=True)) / torch.sqrt(g.var(-1, unbiased=False, keepdim=True) + 1e-5); "
             "g.view(b, c, h, w) * self.a.view(1, -1, 1, 1) + self.b[None, :, None, None]",
             _SMALL, "a = nn.Parameter(torch.ones(N)); b = nn.Parameter(torch.zeros(N))"),
    ),
    "wide layer kept transposed": (
        Body("self.b2(F.gelu(self.b1(x)))", members="b1 = nn.Linear(M, 4 * M); b2 = nn.Linear(4 * M, M)"),
        Body("h = torch.addmm(self.c1, x, self.w1); "
             "torch.addmm(self.c2, h * 0.5 * (1 + torch.erf(h / 2 ** 0.5)), self.w2)",
             members="w1 = nn.Parameter(torch.randn(M, 4 * M)); c1 = nn.Parameter(torch.randn(4 * M)); "
                     "w2 = nn.Parameter(torch.randn(4 * M, M)); c2 = nn.Parameter(torch.randn(M))"),
    ),
    "elu by where": (Body("F.elu(x) + y", _PAIR), Body("y + torch.where(x > 0, x, torch.exp(x) - 1.0)", _PAIR)),
    "mish": (Body("F.mish(x)"), Body("e = (1 + torch.exp(x)) ** 2; x * (e - 1) / (e + 1)")),
    "exclusive prefix sum by cat": (
        Body("torch.cumsum(x, 1) - x"),
        Body("torch.cat([torch.zeros_like(x[:, :1]), x.cumsum(1)[:, :-1]], dim=1)"),
    ),
    "divergence by hand": (
        Body("F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction='batchmean')[None] + x[:, 0]", _PAIR),
        Body("p, lq = y.softmax(1), x.log_softmax(1); x[:, 0] + (p * (p.log() - lq)).sum() / x.shape[0]", _PAIR),
    ),
    "binary cross entropy by softplus": (
        Body("F.binary_cross_entropy_with_logits(x, y, reduction='none').mean(1)",
             "x = torch.randn(N, M); y = torch.rand(N, M)"),
        Body("(F.softplus(x) - x * y).sum(1) / x.shape[1]", "x = torch.randn(N, M); y = torch.rand(N, M)"),
    ),
    "rotation of halves": (
        Body("a, b = x.chunk(2, -1); torch.cat([-b, a], -1) * torch.sin(y) + x * torch.cos(y)", _PAIR),
        Body("h = x.shape[-1] // 2; a, b, c, s = x[:, :h], x[:, h:], y.cos(), y.sin(); "
             "torch.cat((a * c[:, :h] - b * s[:, :h], b * c[:, h:] + a * s[:, h:]), dim=1)", _PAIR),
    ),
    "depthwise by shifts": (
        Body("self.conv(x.transpose(1, 2)).transpose(1, 2)",
             _ROWS, "conv = nn.Conv1d(M, M, 3, padding=2, groups=M, bias=False)"),
        Body("p = F.pad(x, (0, 0, 2, 2)); n = x.shape[1] + 2; "
             "sum(p[:, i:i + n] * self.taps[:, i] for i in range(3))",
             _ROWS, "taps = nn.Parameter(torch.randn(M, 3))"),
    ),
    "max pool by unfold": (
        Body("F.max_pool2d(torch.tanh(x), 2)", _SMALL),
        Body("torch.tanh(x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2).amax(-1))", _SMALL),
    ),
    "bilinear by einsum": (
        Body("self.b(x, y)", _PAIR, "b = nn.Bilinear(M, M, 6, bias=False)"),
        Body("torch.einsum('ni,oij,nj->no', x, self.w, y)", _PAIR, "w = nn.Parameter(torch.randn(6, M, M))"),
    ),
    "largest by sorting": (
        Body("x.topk(4, dim=1).values.mean(1)"),
        Body("torch.sort(x, dim=1, descending=True)[0][:, :4].sum(1) / 4"),
    ),
    "recurrence by a loop": (
        Body("self.gru(x)[0]", _STEPS, "gru = nn.GRU(M, M, batch_first=True)"),
        Body("h = x.new_zeros(x.shape[0], x.shape[2]); "
             "torch.stack([h := self.cell(x[:, t], h) for t in range(x.shape[1])], 1)",
             _STEPS, "cell = nn.GRUCell(M, M)"),
    ),
    "sizes written out": (
        Body("F.hardsigmoid(x) * x"),
        Body("x * torch.clamp(x + 3, 0, 6) / 6", "x = torch.randn(48, 112)"),
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
    "max and average pool": (Body("F.max_pool2d(x, 2)", _SMALL), Body("F.avg_pool2d(x, 2)", _SMALL)),
    "layer and instance norm": (Body("F.layer_norm(x, x.shape[1:])", _SMALL), Body("F.instance_norm(x)", _SMALL)),
    "elu and selu": (Body("F.elu(x)"), Body("F.selu(x)")),
    "hard and smooth swish": (Body("F.hardswish(x)"), Body("F.silu(x)")),
    "silu and gelu gate": (Body("F.silu(x) * y", _PAIR), Body("F.gelu(x) * y", _PAIR)),
    "norm before and after the residual": (
        Body("x + self.p(F.layer_norm(x, (x.shape[-1],)))", members="p = nn.Linear(M, M)"),
        Body("F.layer_norm(x + self.p(x), (x.shape[-1],))", members="p = nn.Linear(M, M)"),
    ),
    "prefix sum and running maximum": (Body("torch.cumsum(x, 1)"), Body("torch.cummax(x, 1)[0]")),
    "largest and smallest four": (
        Body("x.topk(4, dim=1).values.mean(1)"),
        Body("x.topk(4, dim=1, largest=False).values.mean(1)"),
    ),
    "length by one and two": (Body("F.normalize(x, p=2, dim=1)"), Body("F.normalize(x, p=1, dim=1)")),
    "convolution and transposed": (
        Body("self.c(x)", _SMALL, "c = nn.Conv2d(N, N, 3, padding=1)"),
        Body("self.c(x)", _SMALL, "c = nn.ConvTranspose2d(N, N, 3, padding=1)"),
    ),
    "depthwise and full": (
        Body("self.c(x)", _SMALL, "c = nn.Conv2d(N, N, 3, padding=1)"),
        Body("self.c(x)", _SMALL, "c = nn.Conv2d(N, N, 3, padding=1, groups=N)"),
    ),
    "rotation of halves and pairs": (
        Body("a, b = x.chunk(2, -1); torch.cat([-b, a], -1) * torch.sin(y) + x * torch.cos(y)", _PAIR),
        Body("torch.stack([-x[:, 1::2], x[:, 0::2]], -1).flatten(1) * torch.sin(y) + x * torch.cos(y)", _PAIR),
    ),
    "smoothed labels and not": (
        Body("F.cross_entropy(x, y, reduction='none')", _LABELS),
        Body("F.cross_entropy(x, y, reduction='none', label_smoothing=0.1)", _LABELS),
    ),
    "cosine and dot product": (Body("F.cosine_similarity(x, y, 1)", _PAIR), Body("(x * y).sum(1)", _PAIR)),
    "city block and straight distance": (
        Body("torch.cdist(x, y, p=1)", _PAIR),
        Body("torch.cdist(x, y, p=2)", _PAIR),
    ),
    "batched product and with the transposed": (
        Body("torch.einsum('bij,bjk->bik', x, y)", "x = torch.randn(4, M, M); y = torch.randn(4, M, M)"),
        Body("torch.einsum('bij,bkj->bik', x, y)", "x = torch.randn(4, M, M); y = torch.randn(4, M, M)"),
    ),
    "recurrence by tanh and relu": (
        Body("self.r(x)[0]", _STEPS, "r = nn.RNN(M, M, batch_first=True)"),
        Body("self.r(x)[0]", _STEPS, "r = nn.RNN(M, M, batch_first=True, nonlinearity='relu')"),
    ),
    "softmax and linear attention": (
        Body("(x @ y.transpose(1, 2)).softmax(-1) @ z", _HEADS),
        Body("x.softmax(-1) @ (y.softmax(1).transpose(1, 2) @ z)", _HEADS),
    ),
    "logarithm of softmax and of sigmoid": (Body("F.log_softmax(x, 1)"), Body("F.logsigmoid(x)")),
    "absolute and squared error": (
        Body("F.l1_loss(x, y, reduction='none').mean(1)", _PAIR),
        Body("F.mse_loss(x, y, reduction='none').mean(1)", _PAIR),
    ),
    "zeros and edges around": (
        Body("self.c(x)", _SMALL, "c = nn.Conv2d(N, N, 3, padding=1)"),
        Body("self.c(x)", _SMALL, "c = nn.Conv2d(N, N, 3, padding=1, padding_mode='replicate')"),
    ),
    "relu before and after a layer": (
        Body("self.p(x).relu()", members="p = nn.Linear(M, M)"),
        Body("self.p(x.relu())", members="p = nn.Linear(M, M)"),
    ),
    "weight with and without one": (
        Body("self.w * x / x.norm(dim=1, keepdim=True)", members="w = nn.Parameter(torch.ones(M))"),
        Body("(1 + self.w) * x / x.norm(dim=1, keepdim=True)", members="w = nn.Parameter(torch.zeros(M))"),
    ),
    "square of a sum and sum of squares": (Body("(x * x).sum(1)"), Body("x.sum(1) ** 2")),
    "gate and gated half": (
        Body("a, b = x.chunk(2, -1); a * torch.sigmoid(b)"),
        Body("a, b = x.chunk(2, -1); b * torch.sigmoid(a)"),
    ),
    "rows and columns gathered": (
        Body("x[y]", "x = torch.randn(M, M); y = torch.randint(8, (N,))"),
        Body("x[:, y]", "x = torch.randn(M, M); y = torch.randint(8, (N,))"),
    ),
}  # fmt: skip
