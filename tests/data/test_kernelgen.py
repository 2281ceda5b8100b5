"""Variant templates: what they read, and that their programs are correct, as far as that shows without a GPU."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from cudal1_data import load_suite, load_task
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program
from cudal1_data.kernelgen.codegen.rewrites import captured_program, transposed, transposed_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import index_text, plan
from cudal1_data.kernelgen.ir import broadcast
from cudal1_data.kernelgen.make import BACKENDS, variants
from cudal1_data.kernelgen.sizes import host_text, in_python, named
from cudal1_data.operators import EXPRESSIONS, Language, device_text, numeric
from cudal1_data.techniques import Backend, classify
from first_stream import stored_task, stored_tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from template_programs import (
    PRODUCTS,
    built_for_sm_90,
    error_of,
    error_on_one_thread,
    errors_in_interpreter,
    imported,
    nvrtc_log,
    reference_of,
    small_task,
)
from torch.nn import functional

TOLERANCE = 2e-5

IDS = (
    "starter/swish_chain",
    "starter/softplus_mish",
    "starter/layer_norm_manual",
    "starter/rms_norm",
    "starter/instance_norm_scale",
    "starter/row_logsumexp",
    "starter/cosine_distance",
    "starter/conv_batchnorm_eval",
    "starter/matmul_bias_gelu",
    "generated/elementwise-3-1",
    "generated/elementwise-3-2",
    "generated/reduction-3-0",
    "generated/norm-3-1",
    "generated/softmax-3-0",
    "generated/softmax-3-5",
    "generated/scan-3-0",
    "generated/scan-3-1",
    "generated/loss-3-0",
    "generated/attention-3-1",
    "generated/matmul_epilogue-3-1",
    "generated/network-3-0",
    "generated/structured-3-10",
    "generated/pooling-3-5",
    "generated/attention-3-14",
    "generated/gather-3-16",
    "generated/loss-3-4",
    "generated/recurrent-3-0",
    "generated/recurrent-3-1",
    "generated/recurrent-3-5",
    "generated/short-1-130",
    "generated/short-1-65",
    "generated/short-1-112",
    "generated/short-1-120",
    "generated/short-1-128",
    "starter/linear_recurrence",
)


@pytest.mark.parametrize("task_id", IDS)
def test_operators_one_by_one_agree_with_the_reference(task_id: str, tmp_path: Path) -> None:
    task = small_task(task_id)
    reference = read(task.source)
    assert error_of(task, torch_program(reference, plan(reference.roots)), tmp_path) < TOLERANCE


@pytest.mark.slow
def test_shapes_and_types_are_known_without_running(tmp_path: Path) -> None:
    read_tasks = 0
    for task in [*load_suite("starter", device="cpu"), *stored_tasks(0, 4)]:
        try:
            reference = read(task.source)
        except UnsuitableError:
            continue
        module = imported(task.source, tmp_path)
        with torch.device("meta"), torch.no_grad():
            outputs = module.Model(*module.get_init_inputs())(*module.get_inputs())
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        found = [(tuple(one.shape), str(one.dtype).removeprefix("torch.")) for one in outputs]
        assert [(root.dims, root.dtype) for root in reference.roots] == found, task.id
        read_tasks += 1
    assert read_tasks > 95


@pytest.mark.slow
def test_triton_programs_agree_with_the_reference_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="needs Triton")
    tasks = {*IDS, *PRODUCTS}
    errors = errors_in_interpreter(*sorted(tasks))
    whole = {name: error for name, error in errors.items() if not name.endswith(", in parts")}
    assert len(whole) == len(tasks) + len(PRODUCTS)
    assert len(errors) > len(whole)
    assert {name: error for name, error in errors.items() if not error < TOLERANCE} == {}


@pytest.mark.slow
def test_triton_builds_kernels_for_sm_90(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    paths: list[Path] = []
    tasks = stored_tasks(8, 1, "elementwise", "norm", "softmax", "scan", "matmul_epilogue", "loss", device="cuda")
    tasks.append(stored_task("generated/recurrent-3-5", device="cuda"))
    tasks.append(stored_task("generated/attention-0-1", device="cuda").at({"TOKENS": 128}, tag=False))
    for task in tasks:
        found = variants(task, ("triton",))
        on_tensor_cores = [one for one in found if ("precision", "tf32x3") in one.parameters]
        for number, made in enumerate(found[:1] + on_tensor_cores[-1:] + found[-1:]):
            paths.append(tmp_path / f"{task.id.replace('/', '_').replace('-', '_')}_{number}.json")
            paths[-1].write_text(json.dumps({"reference": task.source, "source": made.source}))
    assert any("tf32x3" in path.read_text() for path in paths)
    told = built_for_sm_90(*paths)
    assert told["said"] == {}
    assert isinstance(told["kernels"], int)
    assert told["kernels"] >= 12


# --- CUDA C++ --------------------------------------------------------------------------------------------------


def kernels_of(program: str, folder: Path) -> list[str]:
    """Return the texts of a program's kernels, with the sizes before them."""
    return [text for name, text in vars(imported(program, folder)).items() if name.startswith("SOURCE")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        Choice(threads=256, vector=4, unroll=4),
        Choice(threads=32, per_block=8, vector=2, unroll=2),
        Choice(threads=1024),
    ],
)
def test_nvrtc_builds_every_kernel(choice: Choice, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC")
    built = 0
    for task in stored_tasks(8, 2, device="cuda"):
        try:
            reference = read(task.source)
            program = nvrtc_program(reference, plan(reference.roots), choice)
        except UnsuitableError:
            continue
        for text in kernels_of(program, tmp_path):
            assert nvrtc_log(text) == "", f"{task.id}\n{text}"
            built += 1
    assert built > 20


ONE_KERNEL = [
    *(one for one in IDS if one.startswith(("starter/swish", "starter/soft", "starter/layer", "starter/row_"))),
    *(one for one in IDS if one.startswith(("generated/el", "generated/red", "generated/norm", "generated/soft"))),
    *("starter/cosine_distance", "generated/scan-3-1", "generated/loss-3-0"),
]
"""Tasks that are one kernel as a whole."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("task_id", ONE_KERNEL)
def test_cuda_text_computes_the_reference_on_one_thread(task_id: str, tmp_path: Path) -> None:
    assert error_on_one_thread(small_task(task_id), tmp_path) < TOLERANCE


# --- parts -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_places_in_smaller_tensors(domain: list[int], data: st.DataObject) -> None:
    dims = tuple(data.draw(st.sampled_from((1, size))) for size in domain)
    start = data.draw(st.integers(0, len(domain) - 1))
    if all(size == 1 for size in dims[:start]):
        dims = dims[start:]
    small = torch.arange(torch.Size(dims).numel()).reshape(dims)
    wanted = small.expand(domain).flatten().tolist()
    text = index_text(dims, tuple(domain), "i").replace("/", "//")
    assert [eval(text, {"i": place}) for place in range(len(wanted))] == wanted


@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4), data=st.data())
@settings(deadline=None)
def test_places_in_pieces_of_tensors(sizes: list[int], data: st.DataObject) -> None:
    whole = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    order = data.draw(st.permutations(range(len(sizes))))
    piece = whole.permute(order)[:: data.draw(st.integers(1, 2)), :: data.draw(st.integers(1, 2))]
    at = data.draw(st.integers(0, len(sizes)))
    piece = piece.unsqueeze(at).expand(*piece.shape[:at], data.draw(st.integers(1, 3)), *piece.shape[at:])
    text = index_text(tuple(piece.shape), tuple(piece.shape), "i", piece.stride()).replace("/", "//")
    assert [eval(text, {"i": place}) for place in range(piece.numel())] == piece.flatten().tolist()


def test_each_function_has_a_text_in_every_language() -> None:
    for expression in EXPRESSIONS.values():
        for language in get_args(Language):
            text = device_text(expression, language, ("value", "other", "third"))
            assert "value" in text


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_an_operators_numbers_are_those_of_its_pytorch_text(name: str) -> None:
    """One row gives both; where the table disagrees with itself, a task's sample values are not what it computes."""
    values = [[0.1 + 0.17 * ((7 * place + 3 * row) % 19) for place in range(19)] for row in range(3)]
    function = numeric(EXPRESSIONS[name])
    count = function.__code__.co_argcount
    names = {one: torch.tensor(row, dtype=torch.float64) for one, row in zip("abc", values, strict=True)}
    got = eval(device_text(EXPRESSIONS[name], "torch", ("a", "b", "c")), {"torch": torch, "F": functional, **names})
    want = [function(*each) for each in zip(*values[:count], strict=True)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_rows_have_up_to_as_many_elements_as_32_bits_count() -> None:
    for forward, columns, fits in (
        ("torch.softmax(x, dim=1)", 2**16, True),
        ("torch.softmax(x, dim=1)", 2**16 + 1, False),
        ("torch.exp(x)", 2**16 - 2, True),
        ("torch.exp(x)", 2**16 - 1, False),  # places past the end are compared with the number of elements
    ):
        source = reference_of(f"return {forward}", inputs=f"torch.randn({2**15}, {columns})")
        task = load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})
        assert bool(variants(task, ("triton",))) == fits, (forward, columns)


def test_shapes_that_do_not_go_together_are_an_error() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        broadcast((2, 3), (4,))


TRANSPOSED = ("generated/scan-0-0", "generated/scan-0-2", "generated/softmax-0-9")
"""Tasks with a scan or softmax over columns."""


@pytest.mark.parametrize("task_id", TRANSPOSED)
def test_rows_of_a_transposed_copy_agree_with_columns(task_id: str, tmp_path: Path) -> None:
    task = small_task(task_id)
    program = transposed_program(task.source)
    assert "dim=-2" not in program
    assert program.count(".contiguous(), dim=-1).transpose(-2, -1)") == task.source.count("dim=-2")
    tags = classify(program, task.source)
    assert tags is not None
    assert "layout" in tags.techniques
    assert error_of(task, program, tmp_path) < TOLERANCE


@pytest.mark.parametrize("task_id", TRANSPOSED)
def test_operators_over_transposed_columns_agree_with_the_reference(task_id: str, tmp_path: Path) -> None:
    task = small_task(task_id)
    (made,) = [one for one in variants(task, ["pytorch"]) if ("transposed", 1) in one.parameters]
    assert error_of(task, made.source, tmp_path) < TOLERANCE
    kernels = [one for one in variants(task, ["triton", "cuda-nvrtc"]) if ("transposed", 1) in one.parameters]
    assert {one.backend for one in kernels} == {"triton", "cuda-nvrtc"}
    assert {one.template for one in kernels} == {"triton-rows", "cuda-nvrtc-rows"}


@pytest.mark.slow
def test_triton_kernels_over_transposed_columns_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    files = [tmp_path / f"{number}.py" for number in range(len(TRANSPOSED))]
    for file, task_id in zip(files, TRANSPOSED, strict=True):
        file.write_text(transposed(small_task(task_id).source))
    errors = errors_in_interpreter(*map(str, files))
    assert len(errors) >= len(TRANSPOSED)
    assert {name: error for name, error in errors.items() if not error < TOLERANCE} == {}


def test_a_reference_in_kernelbench_s_form_is_transposed() -> None:
    source = "class Model(nn.Module):\n    def __init__(self):\n        super(Model, self).__init__()\n\n"
    program = transposed_program(source + "    def forward(self, x):\n        return torch.cumsum(x + 1, dim=-2)\n")
    assert program.endswith("class ModelNew(Model):\n    pass\n")
    assert "torch.cumsum((x + 1).transpose(-2, -1).contiguous(), dim=-1)" in program


@pytest.mark.parametrize("call", ["torch.softmax(*x, dim=-2)", "torch.softmax(x, dim=-2, dtype=x.dtype)"])
def test_a_call_that_is_not_known_stays(call: str) -> None:
    source = f"class Model(nn.Module):\n    def forward(self, x):\n        return {call}\n"
    with pytest.raises(UnsuitableError, match="columns"):
        transposed_program(source)


def test_a_reference_that_waits_for_the_gpu_is_not_captured() -> None:
    with pytest.raises(UnsuitableError, match="item"):
        captured_program("class Model(nn.Module):\n    def forward(self, x):\n        return x * x.sum().item()\n")
    with pytest.raises(UnsuitableError, match=r"cannot wait for x.mean\(\) > 0"):
        captured_program(
            "class Model(nn.Module):\n    def forward(self, x):\n        return x if x.mean() > 0 else -x\n"
        )


def test_a_reference_without_columns_is_not_transposed() -> None:
    with pytest.raises(UnsuitableError, match="columns"):
        transposed_program(load_task("starter/layer_norm_manual").source)


def test_state_names_are_the_reference_s() -> None:
    task = load_task("starter/layer_norm_manual", device="cuda")
    for made in variants(task, ("triton", "cuda-nvrtc", "cuda-load-inline")):
        assert "self.weight = nn.Parameter(torch.ones(size))" in made.source


@pytest.mark.slow
def test_every_family_has_variants_with_four_backends() -> None:
    backends: tuple[Backend, ...] = tuple(one for one in BACKENDS if one != "torch-compile")
    for task in stored_tasks(0, 1, device="cuda"):
        found = variants(task, backends)
        assert {one.backend for one in found} == set(backends), task.id
        assert len(found) >= 6, task.id


@pytest.mark.parametrize(
    "task_id", ["starter/layer_norm_manual", "generated/elementwise-3-1", "generated/conv" + "olution-3-1"]
)
def test_variants_are_programs_of_every_backend(task_id: str) -> None:
    found = variants(stored_task(task_id, device="cuda"))
    assert {one.backend for one in found} == set(BACKENDS)
    assert len({one.source for one in found}) == len(found) > 30
    for one in found:
        compile(one.source, one.template, "exec")
        tags = classify(one.source)
        assert tags is not None
        assert one.backend in ("pytorch", tags.backend)
        assert not re.search(r"\{\w*\}", one.source.partition("class ModelNew")[2])


@given(st.lists(st.tuples(st.sampled_from("+-*/"), st.integers(1, 9), st.booleans()), max_size=6), st.integers(1, 99))
def test_a_size_is_what_its_texts_say(steps: list[tuple[str, int, bool]], start: int) -> None:
    table: dict[str, str] = {}
    known = {name: named(start + place, name, table) for place, name in enumerate("ab")}
    size: int = known["a"]
    for operator, number, with_size in steps:
        other = known["b"] if with_size else number
        size = {"+": size + other, "-": size - other, "*": size * other, "/": size // other}[operator]
        if size <= 0:
            return
    values = {name: int(one) for name, one in known.items()}
    assert eval(host_text(size), values) == int(size)
    assert eval(in_python(str(size), table), values) == int(size)


def test_kernels_are_numbered_in_the_order_in_which_they_are_written() -> None:
    """A model that writes from left to right cannot know how many steps of the reference come before its kernel."""
    task = small_task("generated/network-3-0")
    reference = read(task.source)
    program = nvrtc_program(reference, plan(reference.roots), Choice(depth=1))
    assert set(re.findall(r"fused\d+|SOURCE\d+", program)) == {"fused0", "SOURCE0"}
