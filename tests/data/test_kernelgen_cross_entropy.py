"""Cross-entropy of rows and labels in kernels: in each form, with ignored labels, and in half precision."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cudal1_data import load_task
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, plan
from cudal1_data.task import Task
from doubles.cuda import Gpu, doubled
from template_programs import error_of, errors_of_forms, reference_of

TOLERANCE = 1e-5


def source_of(forward: str, init: str = "") -> str:
    """Return a reference with logits `x` and labels `t`, of which three are ignored."""
    labels = "torch.cat((torch.randint(COLS, (ROWS - 3,)), torch.randint(-100, -99, (3,))))"
    inputs = f"torch.randn(ROWS, COLS) * 3, {labels}"
    return reference_of(f"return {forward}", inputs=inputs, names="x, t", init=init, head="ROWS = 14\nCOLS = 72")


FORMS = {
    "mean": source_of("F.cross_entropy(x, t)"),
    "of each row": source_of('F.cross_entropy(torch.tanh(x) * 4, t, reduction="none") * 2'),
    "sum": source_of('torch.nn.functional.cross_entropy(x, t, reduction="sum")'),
    "a layer": source_of("self.loss(x, t)", init="self.loss = nn.CrossEntropyLoss()"),
    "halves": source_of('F.cross_entropy(x.half(), t, reduction="none")'),
}


def task_of(source: str) -> Task:
    return load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})


@pytest.mark.parametrize("name", FORMS)
def test_operators_one_by_one_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    reference = read(FORMS[name])
    program = torch_program(reference, plan(reference.roots))
    assert "cross_entropy" not in program
    assert error_of(task_of(FORMS[name]), program, tmp_path) <= (2**-10 if name == "halves" else TOLERANCE)


def test_the_cross_entropy_of_rows_is_one_kernel_with_the_step_before_it() -> None:
    kernels = [step for step in plan(read(FORMS["of each row"]).roots) if isinstance(step, Kernel) and step.trailing]
    assert [len(kernel.leaves) for kernel in kernels] == [2]


@pytest.mark.parametrize("setting", ["label_smoothing=0.1", "weight=x[0]", "ignore_index=3"])
def test_other_settings_are_refused(setting: str) -> None:
    with pytest.raises(UnsuitableError, match="the shape of the result of cross_entropy is unknown"):
        read(source_of(f"F.cross_entropy(x, t, {setting})"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("threads", "vector"), [(32, 1), (64, 4)])
@pytest.mark.parametrize("name", ["mean", "of each row"])
def test_threads_share_a_row_on_a_double_of_a_gpu(name: str, threads: int, vector: int, tmp_path: Path) -> None:
    reference = read(FORMS[name])
    program = nvrtc_program(reference, plan(reference.roots), Choice(threads=threads, vector=vector))
    with doubled(Gpu(tmp_path)):
        assert error_of(task_of(FORMS[name]), program, tmp_path) <= TOLERANCE


@pytest.mark.slow
def test_cross_entropies_are_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    errors = errors_of_forms(FORMS, tmp_path)
    assert {name for name in errors if name.endswith(", in parts")} >= {"mean, in parts", "of each row, in parts"}
    allowed = {name: 2**-10 if name.startswith("halves") else TOLERANCE for name in errors}
    assert {name: error for name, error in errors.items() if not error <= allowed[name]} == {}
