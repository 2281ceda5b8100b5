"""Verdicts without a clock on a GPU: eight side by side, and a measurement that waits gets the GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from cudal1_data import load_task
from cudal1_env.doctor import as_candidate
from cudal1_env.hardware import has_gpu
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.workers.lease import lease
from cudal1_env.records import Evaluation, Status

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")]

TASK = "starter/diag_matmul"
PROGRAM = """import torch
import torch.nn as nn
{top}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, a, b):
        {body}
"""


def program(body: str = "return a[:, None] * b", *, top: str = "", init: str = "pass") -> str:
    return PROGRAM.format(body=body, top=top, init=init)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cuda", lanes=8)) as one:
        yield one


def test_eight_and_more_are_judged_side_by_side(judge: Judge) -> None:
    task = load_task(TASK, device="cuda")
    right = [program() + f"# {number}\n" for number in range(14)]
    wrong = [program("return a[:, None] * b * 1.001"), program("b.mul_(a[:, None]); return b.clone()")]
    found = judge.evaluate_many(
        [(task, source) for source in [*right, *wrong, as_candidate(task)]], precision="correct"
    )
    statuses = [one.status for one in found]
    assert statuses == [Status.CORRECT] * 14 + [Status.WRONG_OUTPUT, Status.WRONG_CONTRACT, Status.CORRECT]
    assert all(one.calls == one.full_checks == 5 for one in found if one.correct)


def test_a_neighbour_that_takes_all_memory_harms_itself_only(judge: Judge) -> None:
    task = load_task(TASK, device="cuda")
    take = "self.most = [torch.empty(max(torch.cuda.mem_get_info()[0] - 2**28, 1), dtype=torch.uint8, device='cuda')]"
    sources = [program(init=take), *[program() + f"# beside {number}\n" for number in range(7)]]
    found = judge.evaluate_many([(task, source) for source in sources], precision="correct")
    # Judged again alone, it may find the little memory that it left enough.
    assert found[0].status in (Status.OUT_OF_MEMORY, Status.CORRECT), found[0].message
    assert [one.status for one in found[1:]] == [Status.CORRECT] * 7


@pytest.mark.parametrize(
    "top", ["", "torch.zeros(1, device='cuda')", "# torch.compile"], ids=["plain", "import", "compiles"]
)
def test_an_exclusive_lease_of_a_gpu_waits_for_less_than_ten_seconds(judge: Judge, top: str) -> None:
    task = load_task(TASK, device="cuda")
    judge.evaluate(task, program(), precision="correct")
    found: list[Evaluation] = []
    source = program(top=f"import time\n{top}", init="time.sleep(12.0)")
    thread = threading.Thread(target=lambda: found.append(judge.evaluate(task, source, precision="correct")))
    thread.start()
    time.sleep(2.0)
    with lease(*judge.device.locks) as waited:
        assert waited < 10.0
        assert judge.device.foreign_processes(judge._own_pids(Built(Case(task, source, "correct")))) == 0
    thread.join()
    assert found[0].status is Status.CORRECT, found[0].message
