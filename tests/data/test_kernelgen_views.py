"""Operators moved past views, and inputs read as they lie in memory: less traffic, the same numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from cudal1_data import Task
from cudal1_data.kernelgen.codegen.programs import COLUMN_ROWS, torch_program
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.frontend.views import carried_dims
from cudal1_data.kernelgen.fusion import Kernel, plan, units
from cudal1_data.kernelgen.make import variants
from hypothesis import given, settings
from hypothesis import strategies as st
from template_programs import error_of, errors_in_interpreter

TOLERANCE = 2e-3
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\nB = 3\nC = 8\nG = 4\nL = 10\n\n\n"
INIT = "    def __init__(self):\n        super().__init__()\n"
GROUPS = f"{INIT}        self.norm = nn.GroupNorm(G, C)\n        self.bias = nn.Parameter(torch.randn(C, 1))\n"
HALF = GROUPS.replace("(G, C)", "(G, C, dtype=torch.float16)").replace("(C, 1)", "(C, 1).half()")


def reference(
    forward: str,
    *,
    constructor: str = "",
    inputs: str = "[torch.randn(B, C, L)]",
    names: str = "x",
    before: str = "return ",
) -> Task:
    body = "".join(f"        {line}\n" for line in forward.splitlines())
    source = f"{HEAD}class Model(nn.Module):\n{constructor}    def forward(self, {names}):\n{body}\n\n"
    source += f"def get_inputs():\n    {before}{inputs}\n\n\ndef get_init_inputs():\n    return []\n"
    return Task(id="views", name="views", source=source, level=1, origin="test")


ONE_KERNEL = {
    "operators around a group norm": reference(
        "h = self.norm(torch.square(x) + self.bias)\nreturn torch.lerp(F.softsign(h), self.bias, 0.4) + 0.25",
        constructor=GROUPS,
    ),
    "a group norm in half precision": reference(
        "return torch.tanh(self.norm(x)) * self.bias", constructor=HALF, inputs="[torch.randn(B, C, L).half()]"
    ),
    "an operator before a view and a sum of its rows": reference("return torch.exp(x).view(B, G, -1).sum(dim=-1)"),
    "a mask behind a view": reference(
        "h = self.norm(x)\nreturn torch.where(h > 0, h, 0.1 * h).view(B, C * L)", constructor=GROUPS
    ),
    "another tensor behind a view": reference(
        "return self.norm(x).view(B, C * L) * y",
        constructor=GROUPS,
        names="x, y",
        inputs="[torch.randn(B, C, L), torch.randn(B, C * L)]",
    ),
}
SEVERAL_KERNELS = {
    "a tensor that repeats within a group": reference(
        "return torch.relu(self.norm(x).view(B, 2, G, L) + y)",
        constructor=GROUPS,
        names="x, y",
        inputs="[torch.randn(B, C, L), torch.randn(G, 1)]",
    ),
    "rows of two shapes": reference("h = torch.softmax(x, dim=-1).view(B, C * L)\nreturn torch.softmax(h, dim=-1)"),
}


SWAPPED = "y = torch.randn(B, C, L)\n    y = y.transpose(-2, -1).contiguous().transpose(-2, -1)\n    return "
IN_PLACE = {
    "one of two inputs": reference(
        "return torch.tanh(x * y) + x", names="x, y", inputs="[torch.randn(B, C, L), y]", before=SWAPPED
    ),
    "an input in half precision, and a bias": reference(
        "return torch.tanh(y.half()) * b", names="y, b", inputs="[y, torch.randn(L).half()]", before=SWAPPED
    ),
    "tensors of one number per row": reference(
        "return torch.exp(y - b)", names="y, b", inputs="[y, torch.randn(B, C, 1)]", before=SWAPPED
    ),
    "a tensor that is repeated": reference(
        "return torch.relu(y * b)", names="y, b", inputs="[y[0], torch.randn(B, 1, 1)]", before=SWAPPED
    ),
}
AS_COLUMNS = {
    "rows": reference("return torch.softmax(y, -1)", names="y", inputs="[y]", before=SWAPPED),
    "rows of two inputs in either order": reference(
        "return (torch.exp(y) * x).sum(-1) / L", names="x, y", inputs="[torch.randn(B, C, L), y]", before=SWAPPED
    ),
}
NOT_IN_PLACE = {
    "another tensor": reference("return torch.tanh(y) * 2", names="y", inputs="[y + 1]", before=SWAPPED),
}


COLUMNS = {
    "a scan over the first axis": reference(
        "return torch.cumsum(x[0], dim=0) * 0.5", inputs="[torch.randn(1, 70, 24)]"
    ),
    "scans over both axes": reference(
        "h = torch.cumsum(torch.cumsum(torch.tanh(x), dim=-1) / L**0.5, dim=1)\nreturn torch.sigmoid(h) + y",
        names="x, y",
        inputs="[torch.randn(B, C, L), torch.randn(C, 1)]",
    ),
    "a scan of half precision": reference("return torch.cumsum(x, -2)", inputs="[torch.randn(B, 40, L).half()]"),
    "the first of two axes of sums": reference(
        "return torch.relu(x.sum(1)) + y", names="x, y", inputs="[torch.randn(B, 90, 33), torch.randn(33)]"
    ),
    "a softmax over columns": reference("return torch.softmax(x, 1) * 2", inputs="[torch.randn(B, 65, 17)]"),
}


def kernels(task: Task) -> int:
    return len(units(plan(read(task.source).roots)))


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_a_view_does_not_separate_kernels(name: str) -> None:
    assert kernels(ONE_KERNEL[name]) == 1


@pytest.mark.parametrize("name", SEVERAL_KERNELS)
def test_kernels_of_shapes_without_a_common_one_stay_apart(name: str) -> None:
    assert kernels(SEVERAL_KERNELS[name]) == 2


@pytest.mark.parametrize("name", [*ONE_KERNEL, *SEVERAL_KERNELS])
def test_operators_moved_past_views_compute_the_same(name: str, tmp_path: Path) -> None:
    task = (ONE_KERNEL | SEVERAL_KERNELS)[name]
    known = read(task.source)
    assert error_of(task, torch_program(known, plan(known.roots)), tmp_path) < TOLERANCE


@pytest.mark.slow
def test_kernels_over_the_shape_of_a_view_compute_the_same_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    files: list[str] = []
    for number, task in enumerate((ONE_KERNEL | SEVERAL_KERNELS).values()):
        (tmp_path / f"views{number}.py").write_text(task.source)
        files.append(str(tmp_path / f"views{number}.py"))
    errors = errors_in_interpreter(*files)
    assert len(errors) >= len(files)
    assert {name: error for name, error in errors.items() if not error < TOLERANCE} == {}


def test_only_inputs_that_kernels_read_are_read_in_place() -> None:
    for name, task in (IN_PLACE | NOT_IN_PLACE).items():
        programs = [one.source for one in variants(task, ("triton", "cuda-nvrtc")) if one.backend == "triton"]
        tiled = [program for program in programs if "tl.program_id(0) % parts" in program]
        assert len(tiled) == (len(programs) if name in IN_PLACE and "repeated" not in name else 0), name
    for name, task in AS_COLUMNS.items():
        made = [one for one in variants(task, ("triton",)) if one.template == "triton-rows"]
        assert made, name
        assert all("y.contiguous()" not in one.source and dict(one.parameters)["rows"] != 1 for one in made), name


@pytest.mark.slow
def test_inputs_read_in_place_give_the_same_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    files: list[str] = []
    for number, task in enumerate((IN_PLACE | AS_COLUMNS).values()):
        (tmp_path / f"placed{number}.py").write_text(task.source)
        files.append(str(tmp_path / f"placed{number}.py"))
    errors = errors_in_interpreter(*files)
    assert sum(name.endswith(", in place") for name in errors) == len(files) - 1
    assert {name: error for name, error in errors.items() if not error < TOLERANCE} == {}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_scanned_and_reduced_as_rows(name: str, tmp_path: Path) -> None:
    task = COLUMNS[name]
    known = read(task.source)
    assert any(isinstance(one, Kernel) and one.columns for one in units(plan(known.roots)))
    assert error_of(task, torch_program(known, plan(known.roots)), tmp_path) < TOLERANCE


def test_only_programs_over_columns_have_many_rows_in_a_tile() -> None:
    for name, task in (ONE_KERNEL | COLUMNS).items():
        tiles = [dict(one.parameters)["rows"] for one in variants(task, ("triton",)) if one.template == "triton-rows"]
        assert all((rows >= COLUMN_ROWS) == (name in COLUMNS) for rows in tiles if isinstance(rows, int)), name


@pytest.mark.slow
def test_programs_over_columns_compute_the_same_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    files: list[str] = []
    for number, task in enumerate(COLUMNS.values()):
        (tmp_path / f"columns{number}.py").write_text(task.source)
        files.append(str(tmp_path / f"columns{number}.py"))
    errors = errors_in_interpreter(*files)
    assert sum(name.endswith(", columns") for name in errors) == 2 * len(files)
    assert {name: error for name, error in errors.items() if not error < TOLERANCE} == {}


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3), st.data())
@settings(max_examples=300, deadline=None)
def test_a_tensor_carried_to_a_view_repeats_at_the_same_places(groups: list[list[int]], data: st.DataObject) -> None:
    """Axes of `groups` are joined in one view and apart in the other."""
    apart = tuple(size for group in groups for size in group)
    joined = tuple(math.prod(group) for group in groups)
    old, new = data.draw(st.permutations([apart, joined]))
    dims = tuple(size if data.draw(st.booleans()) else 1 for size in old)
    found = carried_dims(dims, old, new)
    small = torch.rand(dims)
    whole = small.expand(old).reshape(new)
    if found is not None:
        assert torch.equal(whole, small.reshape(found).expand(new))
    else:
        assert old == apart
        assert 1 < small.numel() < whole.numel()
