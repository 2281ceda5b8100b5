"""Loops in references: how they are read, and that programs with kernels for them are correct."""

from __future__ import annotations

import ctypes
import re
import shutil
from itertools import count
from pathlib import Path

import pytest
import torch
from cudal1_data import Task, load_task
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, torch_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import LoopStep, plan, units
from cudal1_data.kernelgen.make import variants
from template_programs import compiled, error_of, small_task

TOLERANCE = 2e-5
_numbers = count()


def task_of(body: str, inputs: str = "torch.randn(3, 5, 8), torch.randn(3, 8)") -> Task:
    """Return a small task whose `forward(self, x, state)` is given."""
    lines = "".join(f"        {line}\n" for line in body.strip("\n").splitlines())
    source = (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.pace = nn.Parameter(torch.randn(8))\n"
        "        self.carry = nn.Linear(8, 8)\n\n"
        f"    def forward(self, x, state):\n{lines}\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"
    )
    return load_task("starter/linear_recurrence").model_copy(update={"source": source})


STACKED = """
h = torch.tanh(x)
states = []
for step in range(5):
    state = torch.sigmoid(self.pace) * state + h[:, step]
    states.append(state)
return torch.stack(states, dim={axis}) * 2
"""
PART_OF_THE_STEPS = """
for step in range(1, 5, 2):
    state = state * self.pace + x[:, step]
return torch.tanh(state)
"""
TWO_STATES = """
memory = torch.zeros_like(state)
firsts, seconds = [], []
for step in range(5):
    keep = torch.sigmoid(x[:, step] + memory)
    memory = keep * memory + (1 - keep) * state
    state = torch.tanh(memory - state)
    firsts.append(state)
    seconds.append(keep)
return torch.stack(firsts, dim=1) + torch.stack(seconds, dim=1) * memory[:, None] + state[:, None]
"""
STATE_BEFORE = """
states = []
for step in range(5):
    states.append(state)
    state = torch.tanh(state + x[:, step])
return torch.exp(torch.stack(states, dim=1))
"""
JOINED = """
states = []
for step in range(5):
    state = torch.tanh(state * x[:, step])
    states.append(state)
return torch.exp(torch.cat(states, dim=1))
"""
WITH_A_LAYER = """
states = []
for step in range(5):
    state = torch.tanh(self.carry(state) + x[:, step])
    states.append(state)
return torch.exp(torch.stack(states, dim=1))
"""
ROWS = """
states = []
for step in range(5):
    state = torch.softmax(state + x[:, step], dim=-1)
    states.append(state)
return torch.exp(torch.stack(states, dim=1))
"""
SWAPPED = """
memory = torch.tanh(state)
for step in range(5):
    memory, state = state, torch.sin(memory + x[:, step])
return torch.exp(state - memory)
"""
NESTED = """
for step in range(5):
    for again in range(3):
        state = torch.tanh(state + x[:, step] * self.pace)
    state = state * 0.5
return torch.exp(state)
"""
WRITTEN_OUT = """
total = state
for step in range(3):
    total = total * (step + 1) + x[:, step : step + 1].mean(dim=1)
return torch.tanh(total)
"""
PROGRAMS = {
    "stacked": STACKED.format(axis=1),
    "stacked first": STACKED.format(axis=0),
    "stacked last": STACKED.format(axis=-1),
    "part of the steps": PART_OF_THE_STEPS,
    "two states": TWO_STATES,
    "state before": STATE_BEFORE,
    "joined": JOINED,
    "with a layer": WITH_A_LAYER,
    "rows": ROWS,
    "swapped": SWAPPED,
    "nested": NESTED,
    "written out": WRITTEN_OUT,
}
WHOLE = {"stacked", "stacked first", "stacked last", "part of the steps", "two states", "joined"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_keeps_its_meaning(name: str, tmp_path: Path) -> None:
    task = task_of(PROGRAMS[name])
    reference = read(task.source)
    steps = plan(reference.roots)
    assert any(isinstance(one, LoopStep) for one in units(steps)) == (name in WHOLE)
    assert error_of(task, torch_program(reference, steps), tmp_path) < TOLERANCE


class OneThread:
    """Stands for `torch.cuda._compile_kernel`: a kernel's text as C++, one thread after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.built = 0

    def __call__(self, source: str, name: str) -> object:
        sizes = source[: source.index('extern "C"')]
        body = sizes + source[source.index("__global__") :].removesuffix("}\n")
        parameters = body.partition("__launch_bounds__(")[2].partition("(")[2].partition(")")[0].split(",")
        kinds = [one.replace("__restrict__", "").rpartition(" ")[0].strip() for one in parameters]
        # One thread goes over a whole row; elsewhere each thread of a block comes in its turn.
        rows = "const unsigned int lane = threadIdx.x" in body
        body = re.sub(r"start \+= \d+u", "start += 1u", body)
        pointers = ", ".join(f"({kind})p[{place}]" for place, kind in enumerate(kinds))
        body += (
            'extern "C" void run(void** p, unsigned blocks, unsigned threads) { for (unsigned b = 0; b < blocks; ++b) '
            "for (unsigned t = 0; t < threads; ++t) { blockIdx.x = b; threadIdx.x = t; "
            f"{name}({pointers}); }} }}\n"
        )
        run = compiled(body, self.folder).run
        self.built += 1

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: list[torch.Tensor]) -> None:
            table = (ctypes.c_void_p * len(args))(*(one.data_ptr() for one in args))
            run(table, grid[0], 1 if rows else block[0])

        return launch


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["stacked last", "part of the steps", "two states", "with a layer"])
def test_cuda_programs_with_loops_are_correct_on_one_thread(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = OneThread(tmp_path)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", made)
    task = task_of(PROGRAMS[name])
    reference = read(task.source)
    program = nvrtc_program(reference, plan(reference.roots), Choice(threads=32, unroll=2, vector=2))
    assert error_of(task, program, tmp_path) < TOLERANCE
    assert made.built == len(set(re.findall(r"SOURCE\d+", program)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("task_id", ["generated/recurrent-3-1", "generated/recurrent-3-5"])
def test_generated_recurrences_are_correct_on_one_thread(
    task_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "_compile_kernel", OneThread(tmp_path))
    task = small_task(task_id)
    reference = read(task.source)
    program = nvrtc_program(reference, plan(reference.roots), Choice(threads=64, vector=4))
    assert error_of(task, program, tmp_path) < TOLERANCE


def test_each_step_reads_its_part_where_it_lies() -> None:
    reference = read(task_of(PROGRAMS["with a layer"]).source)
    program = triton_program(reference, plan(reference.roots), Choice())
    assert "(offsets // 8) * (5 * 8)" in program
    assert not re.search(r"\[:, step_\d+\]\.contiguous", program)


def test_a_kernel_for_all_steps_is_a_template_of_its_own() -> None:
    found = variants(load_task("starter/linear_recurrence", device="cuda"), ("triton", "cuda-nvrtc"))
    made = {one.template for one in found}
    assert {name for name in made if not name.startswith("starter:")} == {"triton-loop", "cuda-nvrtc-loop"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("for one in x:\n    state = state + one\nreturn state", "over a range"),
        ("for step in range(20):\n    state = state * (step + 1)\nreturn state", "the steps of a loop differ"),
        ("for step in range(20):\n    state = torch.stack((state, state))\nreturn state", "changes its shape"),
        (
            "out = [state]\nfor step in range(20):\n    out.append(state)\nreturn torch.stack(out)",
            "has elements before the loop",
        ),
    ],
)
def test_a_loop_that_is_not_followed(body: str, said: str) -> None:
    with pytest.raises(UnsuitableError, match=said):
        read(task_of(body).source)
