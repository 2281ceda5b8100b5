"""Matrix products with what follows them in one kernel: in half precision and float32, in Triton and CUDA C++."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from cudal1_data import load_task
from cudal1_data.kernelgen.codegen.cuda.products import (
    CudaTiles,
    inline_product_program,
    nvrtc_product_program,
    product_choices,
)
from cudal1_data.kernelgen.codegen.products import Tiles, product_program
from cudal1_data.kernelgen.codegen.programs import torch_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from cudal1_data.kernelgen.make import variants
from doubles.cuda import Gpu, doubled
from template_programs import (
    error_of,
    error_over_own,
    errors_in_interpreter,
    errors_of_forms,
    imported,
    nvrtc_log,
    reference_of,
)

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
MATMUL = """\
import torch
import torch.nn as nn

ROWS = {rows}
TERMS = {terms}
COLS = {cols}


class Model(nn.Module):
    def forward(self, x, w, y):
        return torch.relu(x @ w) * y


def get_inputs():
    x, w, y = torch.randn(2, ROWS, TERMS), torch.randn(TERMS, COLS), torch.randn(2, ROWS, COLS)
    return [x.to(torch.{dtype}), w.to(torch.{dtype}), y.to(torch.{dtype})]


def get_init_inputs():
    return []
"""
HALVES = ("float16", "bfloat16")
QUICK_DTYPES = ("bfloat16", *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float32", "float16")))
SIZES = ((40, 64, 72), (33, 37, 50), (70, 24, 66))
"""Rows, terms and columns: of several vector widths, none of them several tiles as a whole."""


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


def factors_of(forward: str, left: str, right: str) -> str:
    return reference_of(f"return {forward}", inputs=f"torch.randn({left}), torch.randn({right})", names="a, b")


FORMS = {
    "a batch": factors_of("torch.relu(torch.bmm(a, b)) + a[:, :1, :1]", "3, 37, 20", "3, 20, 70"),
    "transposed right factors": factors_of("torch.bmm(a, b.transpose(1, 2))", "3, 37, 20", "3, 70, 20"),
    "a batch of two axes": factors_of("torch.tanh(a @ b)", "2, 3, 17, 40", "2, 3, 40, 33"),
    "a transposed right factor": factors_of("a.matmul(b.transpose(0, 1)) * 2", "37, 20", "70, 20"),
    "letters": factors_of('torch.einsum("bijl,lk->bijk", a, b)', "2, 3, 17, 40", "40, 33"),
    "letters, transposed": factors_of('torch.einsum("ij, kj -> ik", a, b)', "37, 20", "70, 20"),
    "letters of a batch": factors_of('torch.einsum("bhij,bhjk->bhik", a, b)', "2, 3, 17, 40", "2, 3, 40, 33"),
    "letters of a batch, transposed": factors_of('torch.einsum("nmk,nok->nmo", a, b)', "3, 37, 20", "3, 70, 20"),
}
OTHERS = {
    "one for all": factors_of("torch.matmul(a, b)", "3, 37, 20", "1, 20, 70"),
    "transposed result": factors_of('torch.einsum("ij,jk->ki", a, b)', "37, 20", "20, 70"),
    "sum over two letters": factors_of('torch.einsum("bij,bjk->ik", a, b)', "3, 37, 20", "3, 20, 70"),
    "a diagonal": factors_of('torch.einsum("iij,jk->iik", a, b).sum(0)', "9, 9, 20", "20, 70"),
    "attention": factors_of("torch.softmax(a @ b.transpose(1, 2), dim=-1) @ b", "3, 37, 20", "3, 70, 20"),
}


@pytest.mark.parametrize("name", FORMS)
def test_products_of_any_form_agree_in_pytorch(name: str, tmp_path: Path) -> None:
    reference = read(FORMS[name])
    task = load_task("starter/swish_chain").model_copy(update={"source": FORMS[name], "variants": ()})
    assert error_of(task, torch_program(reference, plan(reference.roots)), tmp_path) <= 1e-6


def test_each_product_of_a_batch_is_in_one_launch_and_its_right_factor_is_not_copied() -> None:
    reference = read(FORMS["letters of a batch, transposed"])
    program = product_program(reference, plan(reference.roots), Tiles(32, 32, 32, warps=4, stages=2))
    assert "product0[(triton.cdiv(37, 32) * triton.cdiv(70, 32), 3)](a.contiguous(), b.contiguous()," in program
    assert "transpose" not in program


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay_in_pytorch(name: str) -> None:
    task = load_task("starter/swish_chain").model_copy(update={"source": OTHERS[name], "variants": ()})
    assert "triton-product" not in {one.template for one in variants(task, ("triton",))}


def test_more_products_than_a_grid_has_are_refused() -> None:
    reference = read(factors_of("torch.bmm(a, b)", "65536, 2, 3", "65536, 3, 2"))
    with pytest.raises(UnsuitableError, match="a grid has up to 65535 batches, not 65536"):
        product_program(reference, plan(reference.roots), Tiles(32, 32, 32, warps=4, stages=2))


@pytest.mark.slow
def test_products_of_any_form_are_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    errors = errors_of_forms(FORMS, tmp_path)
    assert {name for name in errors if name.endswith(", product")} == {f"{name}, product" for name in FORMS}
    assert {name: error for name, error in errors.items() if not error <= 1e-6} == {}


# --- CUDA C++ ------------------------------------------------------------------------------------------------------


def product_sources(dtype: str) -> list[str]:
    matmuls = [MATMUL.format(dtype=dtype, rows=rows, terms=terms, cols=cols) for rows, terms, cols in SIZES]
    return [LINEAR.format(dtype=dtype), *matmuls]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("dtype", QUICK_DTYPES)
def test_tiles_in_shared_memory_give_the_product_on_a_double_of_a_gpu(dtype: str, tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    for number, source in enumerate(product_sources(dtype)):
        reference = read(source)
        steps = plan(reference.roots)
        tiles = product_choices(reference, steps)
        program = nvrtc_product_program(reference, steps, tiles[number % len(tiles)])
        assert ("mma.sync" in program) == (dtype != "float32")
        task = load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})
        for gpu.backwards in (False, True):
            with doubled(gpu):
                assert error_over_own(task, program, tmp_path) <= (3.0 if dtype == "float32" else 1.1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_an_extension_with_a_product_runs_on_a_double_of_a_gpu(tmp_path: Path) -> None:
    source = LINEAR.format(dtype="bfloat16")
    reference = read(source)
    steps = plan(reference.roots)
    task = load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})
    with doubled(Gpu(tmp_path)):
        program = inline_product_program(reference, steps, product_choices(reference, steps)[1])
        assert error_over_own(task, program, tmp_path) <= 1.1


@pytest.mark.parametrize("dtype", QUICK_DTYPES)
def test_nvrtc_builds_products_for_sm_90(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC")
    source = MATMUL.format(dtype=dtype, rows=4096, terms=4096, cols=8192)
    reference = read(source)
    steps = plan(reference.roots)
    for tiles in product_choices(reference, steps)[:2]:
        module = imported(nvrtc_product_program(reference, steps, tiles), tmp_path)
        assert nvrtc_log(vars(module)["SOURCE0"]) == ""


def test_tiles_for_tensor_cores_are_too_large_for_threads() -> None:
    source = MATMUL.format(dtype="float32", rows=64, terms=64, cols=64)
    reference = read(source)
    with pytest.raises(UnsuitableError, match="a thread keeps up to 64 sums, not 32 x 32"):
        nvrtc_product_program(reference, plan(reference.roots), CudaTiles(64, 64, 32, 32, 32))


def test_products_are_among_the_variants() -> None:
    task = load_task("starter/matmul_bias_gelu", device="cuda")
    templates = {one.template for one in variants(task, ("cuda-nvrtc", "cuda-load-inline"))}
    assert {"cuda-nvrtc-product", "cuda-load-inline-product"} <= templates
