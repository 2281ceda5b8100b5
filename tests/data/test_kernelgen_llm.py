"""Programs for blocks of language models: attention with masks and sinks, rotary pieces, caches, routers, samplers."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from cudal1_data import Task, load_suite, load_task
from cudal1_data.generator.families.llm import BLOCKS
from cudal1_data.kernelgen.codegen.attention import Rows, attention_program
from cudal1_data.kernelgen.codegen.cuda.rows import row_kernel
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, plan
from cudal1_data.kernelgen.ir import Node
from cudal1_data.kernelgen.make import options
from template_programs import error_of, error_on_one_thread, errors_in_interpreter, nvrtc_log

SUITE = load_suite("generated:llm?n=60&seed=3", device="cpu")
SIZES = {"TOKENS": 8, "ROWS": 4, "VOCAB": 96, "LENGTH": 32, "PAGES": 2, "PREFIX": 24, "HIDDEN": 32, "INNER": 48}
SIZES |= {"WINDOW": 12, "HEAD_DIM": 16, "TOP_K": 5, "EXPERTS": 16}
LOOSE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Of the scale of the answer: some units in the last place of a dtype."""


def block_of(task: Task) -> str:
    return task.name.removeprefix("llm, ").partition(":")[0]


def small(task: Task) -> Task:
    sizes = task.sizes["cpu"].default
    return task.at({name: size for name, size in SIZES.items() if sizes.get(name, 0) > size}, tag=False)


def allowed(task: Task) -> float:
    found = [dtype for word, dtype in ((".half()", "float16"), (".bfloat16()", "bfloat16")) if word in task.source]
    return LOOSE[found[0] if found else "float32"]


def first_of_each() -> list[Task]:
    """One task of each name: names tell the operators."""
    return list({task.name: task for task in SUITE}.values())


def test_each_block_has_programs_in_triton_and_in_cuda() -> None:
    backends: dict[str, set[str]] = defaultdict(set)
    for task in first_of_each():
        for option in options(task, ("triton", "cuda-nvrtc", "cuda-load-inline")):
            if option.backend not in backends[task.name] and option.render() is not None:
                backends[task.name].add(option.backend)
    wanted = {"triton", "cuda-nvrtc", "cuda-load-inline"}
    assert {name: found for name, found in backends.items() if found != wanted} == {}
    assert {name.removeprefix("llm, ").partition(":")[0] for name in backends} == set(BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_operators_one_by_one_agree_with_the_block(block: str, tmp_path: Path) -> None:
    tasks = [small(task) for task in first_of_each() if block_of(task) == block]
    for task in tasks:
        reference = read(task.source)
        program = torch_program(reference, plan(reference.roots))
        assert error_of(task, program, tmp_path) <= allowed(task), task.id
    assert tasks


@pytest.mark.parametrize("block", BLOCKS)
def test_nvrtc_builds_the_kernels_of_a_block(block: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC")
    task = next(task for task in first_of_each() if block_of(task) == block)
    reference = read(task.source)
    program = nvrtc_program(reference, plan(reference.roots), Choice(threads=128, vector=4))
    known: dict[str, object] = {}
    exec(program.partition("class ModelNew")[0], known)
    sources = [text for name, text in known.items() if re.fullmatch(r"SOURCE\d+", name)]
    assert sources
    assert {nvrtc_log(str(text)) for text in sources} == {""}


@pytest.mark.slow
def test_triton_programs_agree_with_each_block_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    limits: dict[str, float] = {}
    for number, task in enumerate(small(task) for task in first_of_each() if block_of(task) in BLOCKS):
        path = tmp_path / f"{block_of(task)}_{number}.py".replace(" ", "_")
        path.write_text(task.source)
        limits[str(path)] = allowed(task)
    errors = errors_in_interpreter(*limits)
    assert {name.partition(",")[0] for name in errors} == set(limits)
    assert {name: error for name, error in errors.items() if not error <= limits[name.partition(",")[0]]} == {}


def test_a_sink_and_a_window_stay_in_one_pass_over_the_keys() -> None:
    task = next(task for task in SUITE if "prefill" in task.name and "sink" in task.source and "WINDOW" in task.source)
    reference = read(task.source)
    program = attention_program(reference, plan(reference.roots), Rows(rows=16, keys=32, warps=4))
    forward = program.partition("def forward")[2]
    assert "@" not in forward
    assert "torch.cat" not in forward
    assert "for first in range(begin, end, BLOCK_N):" in program
    assert "rescale = tl.exp(running_max - larger)" in program


def source_of(lines: str, inputs: str, names: str = "x") -> str:
    body = "".join(f"        {line}\n" for line in lines.splitlines())
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\nrows, SLOTS = 6, 10\n\n\n"
        f"class Model(nn.Module):\n    def forward(self, {names}):\n{body}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    )


def task_of(source: str, folder: Path) -> Task:
    path = folder / "reference.py"
    path.write_text(source)
    return load_task(str(path), device="cpu")


STORE = "torch.randn(2, SLOTS, 4), torch.randn(rows, 4), torch.randperm(SLOTS)[:rows]"


def test_values_are_stored_in_a_copy(tmp_path: Path) -> None:
    source = source_of("kept = cache.clone()\nkept[1, at] = x * 2.0\nreturn torch.tanh(x), kept", STORE, "cache, x, at")
    task, reference = task_of(source, tmp_path), read(source)
    program = torch_program(reference, plan(reference.roots))
    assert "index_put_((" in program
    assert error_of(task, program, tmp_path) < 1e-6


@pytest.mark.parametrize(
    "lines",
    [
        "cache[1, at] = x\nreturn torch.tanh(cache)",
        "kept = cache.clone()\nother = kept + 1.0\nkept[1, at] = x\nreturn torch.tanh(kept), other",
        "kept = cache.clone()\nkept[:, at] = x\nreturn torch.tanh(kept)",
    ],
)
def test_a_store_that_something_else_sees_is_refused_by_name(lines: str) -> None:
    with pytest.raises(UnsuitableError, match=r"\[\.\.\.\] is assigned"):
        read(source_of(lines, STORE, "cache, x, at"))


PIECES = {
    "halves": "a, b = torch.sigmoid(x).chunk(2, dim=-1)\nreturn a * b",
    "every second": "return torch.tanh(x[..., ::2] + x[..., 1::2] ** 2)",
    "the last": "return torch.tanh(x)[..., 3:]",
    "of a middle axis": "a, b = x.chunk(2, dim=1)\nreturn a - b",
    "of an axis in capitals": "return torch.tanh(x[..., : rows // 2])",
    "of rows that were reduced": "return torch.softmax(x, dim=-1)[..., :-1]",
    "joined": "return torch.relu(torch.cat((x, 2.0 * x), dim=-1))",
    "interleaved": "return torch.tanh(torch.stack((x + 1.0, 2.0 * x), dim=-1).flatten(-2))",
    "maxima": "return torch.tanh(F.max_pool2d(x[None], 2))",
    "averages": "return F.avg_pool2d(torch.relu(x)[None], 2, stride=3)",
    "overlapping maxima": "return F.max_pool2d(x[None], 3, stride=1) * 2.0",
    "enlarged": "return torch.tanh(x[None] - F.interpolate(F.max_pool2d(x[None], 2), scale_factor=2) * x[:, :1, :1])",
    "enlarged three times": "return F.interpolate(torch.tanh(x), scale_factor=3, mode='nearest')",
    "enlarged rows": "return torch.softmax(F.interpolate(x[..., ::2], scale_factor=2) + x, dim=-1)",
    "with a sink": "s = torch.cat((x, x[..., :1]), dim=-1)\nreturn torch.softmax(s, dim=-1)[..., :-1]",
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    source = source_of(PIECES[name], "torch.randn(3, rows, 8)")
    task, reference = task_of(source, tmp_path), read(source)
    steps = plan(reference.roots)
    assert error_of(task, torch_program(reference, steps), tmp_path) < 1e-6
    assert not re.search(r"_pool\dd\(|interpolate\(", triton_program(reference, steps, Choice()))


TABLES = (
    "torch.randint(rows, (3, 4)), torch.randn(rows, 8), torch.randn(3, 4, 8), torch.randint(-rows, rows, (5,)), "
    "torch.randint(8, (rows, 8)), torch.randint(rows, (2, 8)), torch.randn(rows)"
)
LOOKUPS = {
    "words": "return F.embedding(t, w) * 2.0 + x",
    "normed words": "return F.layer_norm(F.embedding(t, w) + x, (8,))",
    "a bag": "return torch.tanh(torch.sum(F.embedding(t, w) * x[..., :1], dim=1))",
    "two ends": "return torch.relu(w[s] - w.index_select(0, t[0])[:1]) * w[s]",
    "places from the end": "return torch.exp(w[s]) + w[:1]",
    "as large as the table": "return torch.exp(w[torch.argsort(y)]) + y[:, None]",
    "of another axis": "return torch.tanh(w.index_select(1, u[0])) * 2.0 + torch.exp(w[t[:1, 0]])",
    "of a row": "return torch.gather(w, 1, t[:, :3].clamp(max=7)) * 2.0",
    "in every row": "return torch.sigmoid(torch.gather(w, 1, u)) + w",
    "in every column": "return torch.sigmoid(torch.gather(w, 0, v)) * 2.0",
    "of a list": "return torch.tanh(y[t]) + x[..., 0]",
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_elements_of_tables_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    source = source_of(LOOKUPS[name], TABLES, "t, w, x, s, u, v, y")
    task, reference = task_of(source, tmp_path), read(source)
    steps = plan(reference.roots)
    assert error_of(task, torch_program(reference, steps), tmp_path) < 1e-6
    assert re.search(r"_ptr\w* \+ \(place", triton_program(reference, steps, Choice()))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["words", "normed words", "places from the end", "in every row", "in every column"])
def test_cuda_text_reads_tables_at_places(name: str, tmp_path: Path) -> None:
    task = task_of(source_of(LOOKUPS[name].replace(" + w[:1]", ""), TABLES, "t, w, x, s, u, v, y"), tmp_path)
    assert error_on_one_thread(task, tmp_path) < 1e-6


SCAN = "s = torch.cumsum(torch.softmax(x, dim=-1) * x[:, :1], dim=-1)\nreturn torch.cumsum(torch.tanh(s) + x, dim=-1)"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("vector", [1, 2, 4])
def test_threads_scan_their_own_elements_first(vector: int, tmp_path: Path) -> None:
    source = source_of(
        "s = torch.cumsum(torch.sigmoid(x), dim=-1)\nreturn torch.cumsum(s * x, dim=-1) + s", "torch.randn(3, 20)"
    )
    task = task_of(source, tmp_path)
    (kernel,) = plan(read(source).roots)
    assert isinstance(kernel, Kernel)
    assert kernel.scans_last
    assert error_on_one_thread(task, tmp_path, vector=vector) < 1e-6


def test_what_is_scanned_and_then_reduced_is_no_last_scan() -> None:
    (kernel,) = plan(
        read(source_of("return torch.softmax(torch.cumsum(x, dim=-1), dim=-1)", "torch.randn(3, 20)")).roots
    )
    assert isinstance(kernel, Kernel)
    assert kernel.scans
    assert not kernel.scans_last


def test_neighbouring_threads_read_a_piece_of_a_row() -> None:
    source = source_of("a, b = x.chunk(2, dim=-1)\nreturn torch.softmax(a * b, dim=-1)", "torch.randn(3, 20)")
    kernels = [step for step in plan(read(source).roots) if isinstance(step, Kernel)]
    assert [len(kernel.leaves) for kernel in kernels] == [2]
    made = row_kernel(kernels[0], "fused", threads=32, per_block=4, unroll=1, vector=2)
    assert "lane = threadIdx.x, row = " in made.definition
    assert made.definition.count("x_ptr_2[") == 1  # once, and kept in registers


@pytest.mark.slow
def test_pieces_are_read_in_place_and_scans_carry_their_sums_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    sources = {name: source_of(lines, "torch.randn(3, rows, 8)") for name, lines in PIECES.items()}
    sources |= {name: source_of(lines, TABLES, "t, w, x, s, u, v, y") for name, lines in LOOKUPS.items()}
    sources["scan"] = source_of(SCAN, "torch.randn(3, 300)")
    for name, source in sources.items():
        (tmp_path / f"{name.replace(' ', '_')}.py").write_text(source)
    paths = {str(path) for path in tmp_path.glob("*.py")}
    errors = errors_in_interpreter(*sorted(paths))
    assert {name for name in errors if "," not in name} == paths
    assert f"{tmp_path / 'scan.py'}, in parts" in errors
    assert {name: error for name, error in errors.items() if not error < (1e-5 if "scan" in name else 1e-6)} == {}


def test_lengths_of_sequences_are_compared_with_places_in_the_kernel() -> None:
    task = next(task for task in SUITE if "decode" in task.name and "lengths" in task.source)
    kernels = [step for step in plan(read(task.source).roots) if isinstance(step, Kernel)]
    read_as_numbers = [leaf for kernel in kernels for leaf in kernel.leaves if leaf.dtype == "int64"]
    assert all(isinstance(leaf, Node) and leaf.size <= 8 for leaf in read_as_numbers)
    assert read_as_numbers
