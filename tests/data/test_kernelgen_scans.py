"""Prefix sums and products in kernels: along any axis, with operators around them, and sums of all earlier elements."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cudal1_data import load_task
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program, triton_program
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, plan
from cudal1_data.kernelgen.ir import Node
from cudal1_data.task import Task
from doubles.cuda import Gpu, doubled
from template_programs import built_for_sm_90, error_of, errors_of_forms, reference_of

TOLERANCE = 1e-5
PRODUCTS = {
    "products": "return torch.cumprod(x, dim=-1)",
    "products down": "return torch.cumprod(1 + x / 8, dim=0) * 2",
    "both": "return torch.cumprod(1 + torch.tanh(x) / 8, dim=1) + x.cumsum(1)",
}
EXCLUSIVE = {
    "narrow": (
        "s = torch.cumsum(x.narrow(dim=1, start=0, length=x.size(1) - 1), dim=1)\n"
        "return torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), s), dim=1)"
    ),
    "scaled": "return torch.cat([torch.zeros_like(x[:, :1]), (x[:, :-1] / COLS**0.5 * x[:, :1]).cumsum(-1)], dim=-1)",
    "halves": "s = x.half()\nreturn torch.cat((torch.zeros_like(s[:, :1]), s[:, :-1].cumsum(1)), dim=1).float()",
    "behind": "s = F.relu(x).cumsum(-1)\nreturn torch.tanh(torch.cat((torch.zeros(ROWS, 1), s[..., :-1]), dim=-1))",
}
OTHERS = {
    "ones": "return torch.cat((torch.ones_like(x[:, :1]), torch.cumsum(x[:, :-1], dim=1)), dim=1)",
    "all sums": "return torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x, dim=1)), dim=1)",
    "later ones": "return torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x[:, 1:], dim=1)), dim=1)",
    "products behind zeros": "return torch.cat((torch.zeros_like(x[:, :1]), torch.cumprod(x[:, :-1], dim=1)), dim=1)",
}


def source_of(forward: str) -> str:
    return reference_of(forward, inputs="torch.randn(ROWS, COLS)", head="ROWS = 6\nCOLS = 84")


def task_of(source: str) -> Task:
    return load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})


def joins(forward: str) -> int:
    """Return how many tensors PyTorch joins in the programs of a reference."""
    steps = plan(read(source_of(forward)).roots)
    return sum(isinstance(step, Node) and step.text.startswith("torch.cat(") for step in steps)


@pytest.mark.parametrize("name", [*PRODUCTS, *EXCLUSIVE, *OTHERS])
def test_operators_one_by_one_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    source = source_of((PRODUCTS | EXCLUSIVE | OTHERS)[name])
    reference = read(source)
    assert error_of(task_of(source), torch_program(reference, plan(reference.roots)), tmp_path) <= TOLERANCE


def test_sums_of_earlier_elements_are_one_kernel_and_other_joined_tensors_are_not() -> None:
    for name, forward in EXCLUSIVE.items():
        assert joins(forward) == 0, name
        assert sum(isinstance(step, Kernel) for step in plan(read(source_of(forward)).roots)) == 1, name
    for name, forward in OTHERS.items():
        assert joins(forward) == 1, name


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("threads", "vector"), [(32, 1), (32, 2), (64, 1), (64, 4)])
def test_products_of_threads_are_joined_on_a_double_of_a_gpu(threads: int, vector: int, tmp_path: Path) -> None:
    source = source_of(PRODUCTS["both"])
    reference = read(source)
    program = nvrtc_program(reference, plan(reference.roots), Choice(threads=threads, vector=vector))
    assert "x *= other" in program
    with doubled(Gpu(tmp_path)):
        assert error_of(task_of(source), program, tmp_path) <= TOLERANCE


@pytest.mark.slow
def test_scans_are_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    forms = {name: source_of(forward) for name, forward in (PRODUCTS | EXCLUSIVE).items()}
    errors = errors_of_forms(forms, tmp_path)
    assert {name for name in errors if name.endswith(", in parts")} == {f"{name}, in parts" for name in forms}
    allowed = {name: 2**-10 if name.startswith("halves") else TOLERANCE for name in errors}
    assert {name: error for name, error in errors.items() if not error <= allowed[name]} == {}


@pytest.mark.slow
def test_triton_builds_scans_for_sm_90(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    paths: list[Path] = []
    for name in ("both", "products down"):
        reference = read(source_of(PRODUCTS[name]))
        for looped in (0, 1):
            program = triton_program(reference, plan(reference.roots), Choice(block=16, looped=looped))
            paths.append(tmp_path / f"build_{len(paths)}.json")
            paths[-1].write_text(json.dumps({"reference": source_of(PRODUCTS[name]), "source": program}))
    assert built_for_sm_90(*paths)["said"] == {}
