"""What a program does at each of the protocol's steps to win time: it ends in its own status, within the budgets."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cudal1_data import Task
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Status

SETTINGS = JudgeSettings(
    build_timeout_s=2, warmup_timeout_s=2, call_timeout_s=3, memory_bytes=1 << 28, max_processes=64
)
"""Little memory, since a timed call has 1.2 s: to fill 1 GiB took longer on a busy machine."""
LIMIT_S = 2 + 2 + 3 + 10
"""All budgets together, and what a loaded machine takes to start and kill processes."""
TASK = Task(
    id="file/scaled",
    name="scaled",
    level=1,
    origin="file",
    source=(
        "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.w = nn.Parameter(torch.randn(512))\n    def forward(self, x):\n"
        "        return torch.tanh(x) * self.w\n\ndef get_inputs():\n    return [torch.randn(64, 512)]\n\n"
        "def get_init_inputs():\n    return []\n"
    ),
)
DEEDS = {
    "sleep": "time.sleep(1000)",
    "spin": "while True: pass",
    "allocate": "kept = [bytearray(1 << 26) for _ in range(4096)]",
    "fork": "while True: os.fork()",
}
STEPS = ("import", "constructor", "state", "first call", "untimed call", "timed call", "drop")
ENDS = {
    "sleep": {Status.TIMEOUT},
    "spin": {Status.TIMEOUT},
    "allocate": {Status.OUT_OF_MEMORY},
    # The processes count towards the worker's memory together, so the kernel may end them at that limit.
    "fork": {
        *(Status.TIMEOUT, Status.CRASH, Status.RUNTIME_ERROR, Status.BUILD_ERROR, Status.TAMPERING),
        Status.OUT_OF_MEMORY,
    },
}
PROGRAM = """
import os, threading, time
import torch
import torch.nn as nn

STEP, calls = STEP_NAME, 0


def deed():
    DEED


if STEP == "import":
    deed()
if STEP == "thread":
    threading.Thread(target=deed, daemon=True).start()


class Slow:
    def __del__(self):
        deed()


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(512))
        if STEP == "constructor":
            deed()

    def named_parameters(self, *given, **named):
        if STEP == "state":
            deed()
        return super().named_parameters(*given, **named)

    def state_dict(self, *given, **named):
        if STEP == "state":
            deed()
        return super().state_dict(*given, **named)

    def forward(self, x):
        global calls
        calls += 1
        if calls == {"first call": 1, "untimed call": 2, "timed call": 9}.get(STEP):
            deed()
        y = torch.tanh(x) * self.w
        if STEP == "drop" and calls == 9:
            y.slow = Slow()
        return y
"""


def program(step: str, deed: str) -> str:
    """A right program but for a deed at a step."""
    return PROGRAM.replace("STEP_NAME", repr(step)).replace("DEED", DEEDS[deed])


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(SETTINGS) as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("step", STEPS)
def test_misuse_of_each_step_ends_in_its_own_status_within_the_budgets(judge: Judge, step: str, deed: str) -> None:
    began = time.monotonic()
    one = judge.evaluate(TASK, program(step, deed))
    # Forks are refused in the timed loop, and Python ignores what a destructor raises.
    harmless = {Status.CORRECT} if (step, deed) == ("drop", "fork") else set[Status]()
    assert one.status in ENDS[deed] | harmless, one.message
    assert (one.rewarded_low or 0.0) <= 1.05
    assert time.monotonic() - began - one.seconds.wait_s < LIMIT_S


@pytest.mark.slow
def test_all_trials_together_have_a_budget_for_imports_and_untimed_calls() -> None:
    slow = PROGRAM.replace("STEP_NAME", "'constructor'").replace("DEED", "time.sleep(0.8)")
    with Judge(SETTINGS.model_copy(update={"build_timeout_s": 4.0, "warmup_timeout_s": 4.0})) as judge:
        one = judge.evaluate(TASK, f"import time\ntime.sleep(3.0)\n{slow}", precision="report")
    assert one.status is Status.TIMEOUT, one.message
    assert "of all trials" in one.message


@pytest.mark.parametrize("deed", DEEDS)
def test_work_outside_of_calls_gains_nothing(judge: Judge, deed: str) -> None:
    began = time.monotonic()
    one = judge.evaluate(TASK, program("thread", deed))
    assert one.status in {*ENDS[deed], Status.CORRECT, Status.RUNTIME_ERROR, Status.CRASH}, one.message
    assert (one.rewarded_low or 0.0) <= 1.05
    assert time.monotonic() - began - one.seconds.wait_s < LIMIT_S
