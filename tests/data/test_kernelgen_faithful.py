"""Programs of templates compute what their reference computes; what templates cannot read is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cudal1_data.kernelgen.codegen.programs import torch_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from template_programs import errors_in_interpreter, imported

SOURCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

B = 4
N = 6
{head}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(N, N)
        {init}

    def forward(self, {names}):
        {forward}
{methods}

def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []

{tail}
"""


def source_of(
    forward: str,
    init: str = "self.n = 1",
    *,
    names: str = "x",
    inputs: str = "torch.randn(B, N)",
    head: str = "",
    methods: str = "",
    tail: str = "",
) -> str:
    """Return a reference: its statements, one a line."""
    inner = {"forward": forward, "init": init}
    lines = {name: text.replace("\n", "\n        ") for name, text in inner.items()}
    return SOURCE.format(names=names, inputs=inputs, head=head, methods=methods, tail=tail, **lines)


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
}
"""References that change tensors in place: an operand is what it is after the change, under each of its names."""

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
}


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


@pytest.mark.slow
def test_a_triton_program_computes_what_its_reference_computes(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    paths = [tmp_path / f"{name.replace(' ', '_')}.py" for name in SAME]
    for path, source in zip(paths, SAME.values(), strict=True):
        path.write_text(source)
    errors = errors_in_interpreter(*map(str, paths))
    assert {name.partition(",")[0] for name in errors} == set(map(str, paths))
    assert max(errors.values()) < 2e-5


@pytest.mark.parametrize("name", REFUSED)
def test_a_reference_that_is_not_read_is_refused_by_name(name: str) -> None:
    source, said = REFUSED[name]
    with pytest.raises(UnsuitableError, match=said):
        read(source)
