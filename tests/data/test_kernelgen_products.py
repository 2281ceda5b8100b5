"""Matrix products with what follows them in one kernel: in half precision and float32, in Triton and CUDA C++."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cudal1_data.kernelgen.codegen.products import Tiles, product_program
from cudal1_data.kernelgen.codegen.programs import torch_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from template_programs import errors_in_interpreter, imported

LINEAR = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 40
INNER = 72
OUTER = 56


class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer, dtype=torch.{dtype})
        self.norm = nn.LayerNorm(outer, dtype=torch.{dtype})

    def forward(self, x, y):
        return self.norm(F.gelu(self.linear(x)) * y)


def get_inputs():
    return [torch.randn(ROWS, INNER).to(torch.{dtype}), torch.randn(ROWS, OUTER).to(torch.{dtype})]


def get_init_inputs():
    return [INNER, OUTER]
"""
HALVES = ("float16", "bfloat16")


@pytest.mark.slow
def test_products_of_halves_err_no_more_than_pytorch_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    paths = [tmp_path / f"{dtype}_own.py" for dtype in HALVES]
    for path, dtype in zip(paths, HALVES, strict=True):
        path.write_text(LINEAR.format(dtype=dtype))
    errors = errors_in_interpreter(*map(str, paths))
    assert set(errors) == set(map(str, paths))
    assert {name: error for name, error in errors.items() if not error <= 1.1} == {}


@pytest.mark.parametrize("dtype", HALVES)
def test_layers_in_half_precision_are_read(dtype: str, tmp_path: Path) -> None:
    source = LINEAR.format(dtype=dtype)
    reference = read(source)
    steps = plan(reference.roots)
    program = product_program(reference, steps, Tiles(32, 32, 32, warps=4, stages=2))
    assert "acc = tl.dot(left, right, acc)\n" in program
    given, made = imported(source, tmp_path), imported(torch_program(reference, steps), tmp_path)
    model, new = given.Model(*given.get_init_inputs()), made.ModelNew(*given.get_init_inputs())
    new.load_state_dict(model.state_dict())
    inputs = given.get_inputs()
    with torch.no_grad():
        wanted, got = model(*inputs), new(*inputs)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert float((got - wanted).abs().max()) <= float(wanted.abs().max()) * (2**-6 if dtype == "bfloat16" else 2**-9)


def test_a_layer_of_another_dtype_than_its_input_is_not_read() -> None:
    text = "nn.Linear(inner, outer, dtype=torch.float16)"
    source = LINEAR.format(dtype="float16").replace(text, "nn.Linear(inner, outer)")
    with pytest.raises(UnsuitableError, match="linear is stored in float32, and is called with float16"):
        read(source)
