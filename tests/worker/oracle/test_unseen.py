"""A task whose outputs would not show a product in lower precision pays nothing above 1, audited or not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from cudal1_data import Task
from cudal1_env.gate import AuditReport, TaskAudit, reference_sha256
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure import record
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.measure.record import Seen
from cudal1_env.judge.measure.timing.overhead import Overhead
from cudal1_env.judge.measure.timing.trial import TrialResult
from cudal1_env.records import PROTOCOL_VERSION, Speedup
from cudal1_env.stats import TrialSamples
from cudal1_worker.oracle.oracle import Oracle
from cudal1_worker.oracle.unseen import UnseenPrecision

SHOWN = {
    "a product alone": "x @ w",
    "two products": "torch.relu(x @ w) @ w",
    "scores of attention": "torch.softmax(x @ w, -1) @ w",
    "beside a sine": "torch.cat([x @ w, torch.sin(4000 * t)], -1)",
    "a product of signs": "x.sign() @ w.sign()",  # lower precision loses nothing there
    "rounded afterwards": "(x @ w).bfloat16()",
    "many largest places": "(big @ w).argmax(-1)",
    "no product": "x.exp()",
    "infinities": "(x @ w).masked_fill(x > 1, -torch.inf)",
}
UNSEEN = {
    "few largest places": "(x[:4] @ w).argmax(-1)",
    "added to a sine": "x @ w * 1e-3 + torch.cos(4000 * t)",
    "the first of two": "torch.cat([(x @ w) * 1e-4 + torch.cos(4000 * t), x @ w], -1)",
}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cpu")) as judge:
        yield judge


def task_of(expression: str) -> Task:
    rows = 65536 if "big" in expression else 64
    source = (
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, x, w, t, big):\n"
        f"        return {expression}\n"
        "def get_inputs():\n"
        f"    return [torch.randn(64, 64), torch.randn(64, 64), torch.rand(64, 64), torch.randn({rows}, 64)]\n"
        "def get_init_inputs():\n    return []\n"
    )
    return Task(id="file/own", source=source, name="own", level=1, origin="file")


def doubts(judge: Judge, expression: str) -> str:
    pool = judge._pools.take(Case(task_of(expression), "", "training"), None)
    pool.sets(0, 1)
    return "; ".join(pool.doubts())


@pytest.mark.parametrize("name", SHOWN)
def test_products_whose_precision_outputs_show_are_paid(name: str, judge: Judge) -> None:
    assert doubts(judge, SHOWN[name]) == ""


@pytest.mark.parametrize("name", UNSEEN)
def test_products_whose_precision_no_output_shows_are_named(name: str, judge: Judge) -> None:
    assert "(mm) in tf32" in doubts(judge, UNSEEN[name])


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("self.w = torch.randn(64, 1) @ torch.randn(1, 64)", "w"),
        ("self.ws = [torch.randn(64, 1), 2]", "ws[0]"),
        ("self.table = {'a': torch.rand(3)}", "table['a']"),
        ("self.w = torch.ones(64, 64)", ""),  # each seed's is the same: it says no more than the text
        ("self.w = nn.Parameter(torch.randn(64, 64))", ""),
        ("self.register_buffer('w', torch.randn(64, 64))", ""),
        ("self.register_buffer('w', torch.randn(64, 64), persistent=False)", "w"),
    ],
)
def test_weights_outside_the_state_are_named(made: str, named: str, judge: Judge) -> None:
    text = task_of("x @ w").source.replace(
        "    def forward", f"    def __init__(self):\n        super().__init__()\n        {made}\n    def forward"
    )
    task = Task(id="file/own", source=text, name="own", level=1, origin="file")
    pool = judge._pools.take(Case(task, "", "training"), None)
    assert pool.io_spec.seeded == ((named,) if named else ())
    pool.sets(0, 1)
    assert pool.doubts() == (
        [f"{named} may have the constructor's structure; register them as parameters or buffers that persist"]
        if named
        else []
    )


def test_an_audit_that_calls_the_task_sound_ends_the_question(judge: Judge) -> None:
    task = task_of(UNSEEN["few largest places"])
    assert not judge._case(task, "", "training").is_sound
    entry = TaskAudit(name=task.id, sha256=reference_sha256(task), verdict="sound", sets=1)
    for protocol, sound in (("1", False), (PROTOCOL_VERSION, True)):
        judge.learn(AuditReport(suite="own", device="cpu", protocol=protocol, max_sets=1, tasks=(entry,)))
        assert judge._case(task, "", "training").is_sound is sound


def test_such_a_task_pays_nothing_above_1_and_the_record_says_why() -> None:
    trial = TrialResult(
        TrialSamples((4.0, 4.0), (1.0, 1.0)), Overhead(0.1, 0.1, 0.01), alone_ms=(4.0, 4.0), reference_share=1.0
    )
    case, speedup = Case(task_of("x @ w"), "", "training"), Speedup(low=3.9, point=4.0, high=4.1)
    paid = record.measured(case, Seen(trials=[trial]), speedup)
    capped = record.measured(
        case, Seen(trials=[trial], doubts=["no output would show product 1 (mm) in tf32"]), speedup
    )
    assert paid.rewarded_low is not None
    assert paid.rewarded_low > 3
    assert capped.rewarded_low == 1.0
    assert capped.speedup == speedup
    assert "no output would show product 1 (mm) in tf32" in capped.message


def test_a_product_that_memory_leaves_untried_is_a_doubt() -> None:
    def full(seed: int, distribution: str) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("no memory")

    answer = UnseenPrecision(cast(Oracle, SimpleNamespace(fresh_inputs=full))).unseen({"seeds": [1]}, [])
    assert "too little memory" in answer["product"]
