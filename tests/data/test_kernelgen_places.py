"""Places of extremes in kernels: over rows and columns, in parts of long rows, and the first of equal elements."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cudal1_data import load_task
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, plan
from cudal1_data.task import Task
from doubles.cuda import Gpu, doubled
from template_programs import built_for_sm_90, error_of, errors_of_forms, reference_of

FORMS = {
    "rows": "return torch.argmax(x, dim=-1)",
    "columns": "return x.argmin(dim=0, keepdim=True)",
    "a middle axis": "return torch.argmax(torch.abs(x.reshape(3, 14, 24)), dim=1)",
    "with the extreme": "return torch.argmin(x, dim=1), torch.amin(x, dim=1), torch.amax(x * 2, dim=1)",
    "of a softmax": "p = torch.softmax(x / 4, dim=1)\nreturn p, torch.argmax(p, dim=1)",
    "halves": "return torch.argmin(x.half(), dim=1)",
    "elements there": "return torch.gather(x * 2, 1, torch.argmax(-x, dim=1, keepdim=True))",
}


def source_of(forward: str) -> str:
    """Return a reference whose rows have the same elements several times."""
    inputs = "torch.randint(-20, 20, (ROWS, COLS)).float() / 4"
    return reference_of(forward, inputs=inputs, head="ROWS = 14\nCOLS = 72")


def task_of(source: str) -> Task:
    return load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})


@pytest.mark.parametrize("name", FORMS)
def test_operators_one_by_one_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    source = source_of(FORMS[name])
    reference = read(source)
    steps = plan(reference.roots)
    assert any(isinstance(step, Kernel) and step.trailing for step in steps)
    assert error_of(task_of(source), torch_program(reference, steps), tmp_path) <= 1e-6


def test_the_place_among_all_elements_stays_in_pytorch() -> None:
    assert not any(isinstance(step, Kernel) for step in plan(read(source_of("return torch.argmax(x)")).roots))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("threads", "vector"), [(32, 1), (32, 2), (64, 1), (64, 4)])
@pytest.mark.parametrize("name", ["rows", "columns", "with the extreme", "of a softmax", "halves"])
def test_threads_join_their_places_on_a_double_of_a_gpu(name: str, threads: int, vector: int, tmp_path: Path) -> None:
    source = source_of(FORMS[name])
    reference = read(source)
    program = nvrtc_program(reference, plan(reference.roots), Choice(threads=threads, vector=vector))
    with doubled(Gpu(tmp_path)):
        assert error_of(task_of(source), program, tmp_path) <= 1e-6


def test_places_that_a_float_does_not_hold_are_refused_in_cuda() -> None:
    source = source_of("return torch.argmax(x.reshape(1, -1).expand(2, -1), dim=1)").replace(
        "COLS = 72", "COLS = 2**21"
    )
    reference = read(source)
    with pytest.raises(UnsuitableError, match="a float holds places up to 16777216, not those of"):
        nvrtc_program(reference, plan(reference.roots), Choice())


@pytest.mark.slow
def test_places_are_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    errors = errors_of_forms({name: source_of(forward) for name, forward in FORMS.items()}, tmp_path)
    assert {name for name in errors if name.endswith(", in parts")} >= {
        f"{name}, in parts" for name in ("rows", "halves")
    }
    assert {name for name in errors if name.endswith(", columns")} >= {
        f"columns, looped={one}, columns" for one in (0, 1)
    }
    assert {name: error for name, error in errors.items() if not error <= 1e-6} == {}


@pytest.mark.slow
def test_triton_builds_places_for_sm_90(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    paths: list[Path] = []
    for name in ("rows", "columns", "with the extreme", "halves"):
        reference = read(source_of(FORMS[name]))
        for looped in (0, 1):
            program = triton_program(reference, plan(reference.roots), Choice(block=16, looped=looped))
            paths.append(tmp_path / f"build_{len(paths)}.json")
            paths[-1].write_text(json.dumps({"reference": source_of(FORMS[name]), "source": program}))
    assert built_for_sm_90(*paths)["said"] == {}
