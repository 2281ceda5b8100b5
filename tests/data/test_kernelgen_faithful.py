"""Programs of templates compute what their reference computes; what templates cannot read is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cudal1_data.kernelgen.codegen.programs import Choice, torch_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from template_programs import errors_of_forms, imported, reference_of


def source_of(
    forward: str, init: str = "self.n = 1", *, head: str = "", inputs: str = "torch.randn(B, N)", **parts: str
) -> str:
    """Return a reference with a linear layer: its statements, one a line, and parts of `reference_of`."""
    init, head = f"self.fc = nn.Linear(N, N)\n{init}", f"B = 4\nN = 6\n{head}"
    return reference_of(forward, init=init, head=head, inputs=inputs, **parts)


RELU = "self.act = nn.ReLU(inplace=True)"
ELU = "self.act = nn.ELU(1.0, True)"
SAME = {
    "operand of a layer in place": source_of("h = self.fc(x)\ny = self.act(h)\nreturn y + h", RELU),
    "setting by position": source_of("h = self.fc(x)\ny = self.act(h)\nreturn y + h", ELU),
    "left operand": source_of("h = self.fc(x)\nreturn h + self.act(h)", "self.act = nn.Hardtanh(-0.5, 0.5, True)"),
    "another name of the operand": source_of(
        "h = self.fc(x)\nkept = h\ny = self.act(h)\nreturn self.fc(y) + kept", ELU
    ),
    "operand in a list": source_of("h = self.fc(x)\nparts = (h, x)\ny = self.act(h)\nreturn parts[0] + y", ELU),
    "operand in a call": source_of("h = self.fc(x)\nreturn torch.cat([h, self.act(h)], 1) * 2.0", ELU),
    "receiver of a method": source_of("h = self.fc(x)\nreturn h.exp().mul(self.act(h)) + h", ELU),
    "operand of a method": source_of(
        "h = self.fc(x)\nreturn self.low(h) + h", ELU, methods="\n    def low(self, x):\n        return self.act(x)\n"
    ),
    "used before": source_of("h = self.fc(x)\nw = h * 2.0\ny = self.act(h)\nreturn w + y + h", ELU),
    "changed twice": source_of("h = self.fc(x)\na = self.act(h)\nb = self.act(a)\nreturn h + a + b", ELU),
    "each step of a loop": source_of(
        "h = self.fc(x)\nfor i in range(20):\n    z = self.fc(h)\n    y = self.act(z)\n    h = z + y * 0.5\nreturn h",
        ELU,
    ),
    "softmax without an axis": source_of("return F.softmax(x) * 2.0"),
    "softmax of three axes without an axis": source_of("return F.log_softmax(x)", inputs="torch.randn(3, B, N)"),
    "softmax layer without an axis": source_of("return self.soft(x) * 2.0", "self.soft = nn.Softmax()"),
    "cosine without an axis": source_of(
        "return F.cosine_similarity(x, y) * 2.0", names="x, y", inputs="torch.randn(2, B, N), torch.randn(2, B, N)"
    ),
    "sum over an empty tuple": source_of("return x.sum(dim=()) * 2.0"),
    "mean over an empty tuple": source_of("return torch.mean(x * 2.0, dim=()) + 1.0"),
    "sum of halves in float32": source_of("return x.half().sum(dim=1, dtype=torch.float32)"),
    "softmax of halves in float32": source_of("return F.softmax(x.half(), dim=-1, dtype=torch.float32) * 2.0"),
    "mean of halves in float32": source_of("return x.bfloat16().mean(-1, keepdim=True, dtype=torch.float32) * 2.0"),
    "halves compared with a number": source_of(
        "return torch.where(x >= 0.1, x, 5.0) * 2.0", inputs="(torch.rand(64, 64) * 0.001 + 0.0995).half()"
    ),
    "short halves compared with a number": source_of(
        "return x.masked_fill(x > 0.1, 0.0) * 2.0", inputs="(torch.rand(64, 64) * 0.01 + 0.095).bfloat16()"
    ),
    "norm of rows by its order": source_of("return x / torch.linalg.norm(x, 2, dim=-1, keepdim=True)"),
    "one axis squeezed by name": source_of("return x.squeeze(dim=2) * 2.0 + 1.0", inputs="torch.randn(1, B, 1)"),
    "a wide identity": source_of("return torch.relu(x @ torch.eye(N, 3)) * 2.0"),
    "sizes of integers by name": source_of(
        "return (x + self.rows(i)) * 2.0",
        "self.rows = nn.Embedding(5, N)",
        names="x, i",
        inputs="torch.randn(B, N), torch.randint(0, 5, size=(B,))",
    ),
    "einsum with an axis of one element": source_of(
        "return torch.einsum('ij,ij->ij', x, y) * 2.0", names="x, y", inputs="torch.randn(B, N), torch.randn(1, N)"
    ),
    "a convolution with stride and dilation": source_of(
        "return torch.relu(self.conv(x)) * 2.0",
        "self.conv = nn.Conv1d(4, 8, 3, stride=2, padding=2, dilation=2)",
        inputs="torch.randn(2, 4, 9)",
    ),
    "half of a sum of sizes": source_of(
        "return torch.relu(x[:, : (N + B * 2) // 2]) * 2.0", inputs="torch.randn(B, 9)"
    ),
    "large and infinite and computed bounds": source_of(
        "return x.clamp(max=1e30) * x.clamp(min=float('-inf'), max=0.5) + x.clamp(max=N ** 0.5)"
    ),
    "constants assigned together": source_of("return x * SCALE", head="SCALE = 2.0\nOTHER = SCALE = 3.0"),
    "a class defined twice": source_of(
        "return x * 2.0",
        tail="class Model(nn.Module):\n    def forward(self, x):\n        return x * 7.0\n",
    ),
    "a filled tensor as a parameter": source_of(
        "return x * self.scale", "k = torch.ones(N)\nnn.init.constant_(k, 3.0)\nself.scale = nn.Parameter(k)"
    ),
    "a script": source_of(
        "return x * 2.0 * N",
        head="assert N > B\ntorch.manual_seed(N)\ntorch.backends.cudnn.benchmark = False",
        tail="if __name__ == '__main__':\n    print(Model()(*get_inputs()), N)\n",
    ),
}
"""References, each read with one of Python's or PyTorch's less usual rules."""

REFUSED = {
    "a view of a tensor changed in place": (
        source_of("h = self.fc(x)\nv = h.view(N, B)\ny = self.act(h)\nreturn y.sum() + v.exp()", RELU),
        "a view of a tensor",
    ),
    "a tensor whose view is changed": (
        source_of("h = self.fc(x)\ny = self.act(h[:, :3])\nreturn y.sum() + h.exp()", RELU),
        "a view of a tensor",
    ),
    "a part of a clone that is stored into": (
        source_of(
            "y = x.clone()\nz = y[..., 1:4]\ny[i] = v\nreturn z * 2.0",
            names="x, i, v",
            inputs="torch.randn(B, N), torch.randint(0, B, (1,)), torch.randn(1, N)",
        ),
        "a view of a tensor",
    ),
    "a store into a caller's clone": (
        source_of(
            "y = x.clone()\ns = self.fill(y, i, v)\nreturn y * 2.0 + s",
            names="x, i, v",
            inputs="torch.randn(B, N), torch.randint(0, B, (1,)), torch.randn(1, N)",
            methods="\n    def fill(self, y, i, v):\n        y[i] = v\n        return y.sum()\n",
        ),
        "only this name",
    ),
    "a parameter changed in place": (
        source_of("return self.act(self.w) * x", f"{ELU}\nself.w = nn.Parameter(torch.randn(N))"),
        "self.act changes in place",
    ),
    "a state changed in place": (
        source_of("h = x\nfor i in range(20):\n    y = self.act(h)\n    h = self.fc(h) + y\nreturn h", ELU),
        "self.act changes in place",
    ),
    "a name of NumPy's": (source_of("return torch.cat([x, x * 2.0], axis=1) * 2.0"), "argument axis"),
    "a norm of a matrix": (source_of("return x / torch.linalg.norm(x, 2)"), "linalg.norm of a matrix"),
    "a table that its lookup changes": (
        source_of(
            "return F.embedding(i, w, max_norm=0.5) + w[0]",
            names="i, w",
            inputs="torch.randint(0, B, (B,)), torch.randn(B, N)",
        ),
        "in place",
    ),
    "an index by a truth": (source_of("return x[True] * 2.0"), "an index has parts other"),
    "a step by name": (source_of("return x[:, :3] * torch.arange(0, 6, step=2)"), "by position"),
    "a size by name": (source_of("return x * torch.eye(B, m=N)"), "by position"),
    "a pool of maps without a batch": (
        source_of("return F.max_pool2d(x, 2) * 2.0", inputs="torch.randn(3, B, B)"),
        "a batch of maps",
    ),
    "an adaptive pool of maps without a batch": (
        source_of("return F.adaptive_avg_pool2d(x, 1) * 2.0", inputs="torch.randn(3, B, B)"),
        "needs a batch",
    ),
    "an adaptive layer of maps without a batch": (
        source_of("return self.pool(x)", "self.pool = nn.AdaptiveAvgPool2d(1)", inputs="torch.randn(3, B, B)"),
        "needs a batch",
    ),
    "a pool that gives places": (
        source_of("return F.max_pool2d_with_indices(x, 2)[0] * 2.0", inputs="torch.randn(2, 3, B, B)"),
        "max_pool2d_with_indices",
    ),
    "no number": (source_of("return torch.where(x > 0, x, float('nan'))"), "has nan"),
    "a filled member": (
        source_of("return x * self.k", "self.k = torch.ones(N)\nself.k.fill_(3.0)"),
        "may change self.k",
    ),
    "a filled tensor": (
        source_of("return x * self.k", "k = torch.ones(N)\nnn.init.constant_(k, 3.0)\nself.k = k"),
        "computes self.k",
    ),
    "a member computed from a parameter": (
        source_of("return x * self.k", "self.w = nn.Parameter(torch.randn(N))\nself.k = self.w * 2.0"),
        "computes self.k",
    ),
    "drawn members in a list": (source_of("return x * self.k[0]", "self.k = [torch.randn(N)]"), "computes self.k"),
    "drawn members assigned together": (
        source_of("return x * self.k + self.l", "both = (torch.randn(N), torch.randn(N))\nself.k, self.l = both"),
        "computes self.k",
    ),
    "a default before the last assignment": (
        source_of("return self.low(x)", methods="\n    def low(self, x, k=N):\n        return x * k\n", tail="N = 5"),
        "a default of N",
    ),
    "an augmented constant": (source_of("return x * S", head="S = 2.0\nS *= 3.0"), "may change S"),
    "a stored constant": (source_of("return x * S[0]", head="S = [2.0, 3.0]\nS[0] = 5.0"), "may change S"),
    "an appended constant": (source_of("return x * len(S)", head="S = [2.0, 3.0]\nS.append(1.0)"), "may change S"),
    "a conditional constant": (source_of("return x * S", head="S = 2.0\nif B > 2:\n    S = 3.0"), "may change"),
    "a constant with a type": (source_of("return x * S", head="S = 2.0\nS: float = 3.0"), "may change S"),
    "a constant of a loop": (source_of("return x * S", head="S = 2.0\nfor S in (3.0,):\n    pass"), "may change S"),
    "a constant that a function assigns": (
        source_of("return x * S", head="S = 2.0\n\n\ndef setup():\n    global S\n    S = 3.0\n\n\nsetup()\n"),
        "may change setup",
    ),
    "another default dtype": (
        source_of("return x * 2.0", head="torch.set_default_dtype(torch.float64)"),
        "all of the file",
    ),
    "a model that is called otherwise": (
        source_of("return x * 2.0", methods="\n    def __call__(self, x):\n        return self.forward(x) * 3.0\n"),
        "the method __call__",
    ),
    "a method assigned by the class": (
        source_of(
            "return x * 2.0",
            methods="\n    def other(self, x):\n        return x * 5.0\n\n    forward = other\n",
        ),
        "assigns a method",
    ),
    "a tensor with a module's name": (
        source_of("F = x * 2.0\nreturn F.max(y) + y", names="x, y", inputs="torch.randn(B, N), torch.randn(B, N)"),
        "the name F",
    ),
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("name", SAME)
def test_a_program_computes_what_its_reference_computes(name: str, tmp_path: Path) -> None:
    read_as = read(SAME[name])
    reference = imported(SAME[name], tmp_path)
    candidate = imported(torch_program(read_as, plan(read_as.roots)), tmp_path)
    torch.manual_seed(1)
    model, new, inputs = reference.Model(), candidate.ModelNew(), reference.get_inputs()
    new.load_state_dict(model.state_dict())
    with torch.no_grad():
        got, wanted = new(*inputs), model(*inputs)
    torch.testing.assert_close(got, wanted)
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    assert [root.dims for root in read_as.roots] == [one.shape for one in results]


@pytest.mark.parametrize(
    "forward", ["return F.softmax(x.flatten(), 0) * 2.0", "h = x * 3.0\nreturn torch.relu(h).sum() + h.exp()"]
)
def test_a_tile_of_several_rows_is_refused_for_a_tensor_of_one_row(forward: str) -> None:
    reference = read(source_of(forward))
    steps = plan(reference.roots)
    assert "fused0" in triton_program(reference, steps, Choice(rows=1, block=256))
    with pytest.raises(UnsuitableError, match="take one row"):
        triton_program(reference, steps, Choice(rows=2, block=256))


@pytest.mark.slow
def test_a_triton_program_computes_what_its_reference_computes(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    errors = errors_of_forms(SAME, tmp_path)
    assert max(error for name, error in errors.items() if "halves" not in name) < 2e-5
    assert max(errors.values()) < 2e-3


@pytest.mark.parametrize("name", REFUSED)
def test_a_reference_that_is_not_read_is_refused_by_name(name: str) -> None:
    source, said = REFUSED[name]
    with pytest.raises(UnsuitableError, match=said):
        read(source)
