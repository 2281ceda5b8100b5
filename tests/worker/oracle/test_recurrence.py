"""Outputs that a program may hold in stock and inputs that come again are found, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cases import mostly_slow
from cudal1_data import Task
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.oracle.pool import Pool
from cudal1_worker.oracle.recurrence import Shifts, Windows, again, some_groups

INPUTS = {
    "x = torch.randn(64, 64)": False,
    "x = torch.randn(64, 64).relu()": False,
    "x = torch.randn(64, 64).sign()": False,
    "x = torch.randn(160, 1).bfloat16()": False,
    "x = torch.randn(12).bfloat16()": False,
    "x = torch.cat([torch.randn(32, 64), torch.zeros(32, 64)])": False,
    "x = torch.randint(0, 50000, (64, 64)).float()": False,
    "x = torch.cat([torch.randn(60, 64), torch.arange(256.0).view(4, 64)])": True,
    "x = torch.sin(torch.arange(4096.0) * torch.randint(1, 200, (1,))).view(64, 64)": True,
    "x = torch.sin(torch.arange(64.0) * torch.randint(1, 30, (64, 1)))": True,  # rows of a table, at any places
    "x = torch.sin(torch.arange(4096.0)).roll(int(torch.randint(4096, ()))).view(64, 64)": True,
    "x = (torch.arange(4096) * torch.randint(1, 30, (1,)) % 97 < 30).float().view(64, 64)": True,  # one of 29 masks
    "x = torch.stack([torch.randn(2048), torch.arange(2048.0).sin()], -1)": True,  # never two neighbours
    "x = torch.stack([torch.randn(2048), torch.sin(torch.arange(2048.0) * torch.randint(1, 30, (1,)))], -1)": True,
    "t = torch.sin(torch.arange(2048.0)).roll(int(torch.randint(2048, ()))).view(64, 32)\n"
    "    x = torch.stack([torch.randn(64, 32), t], -1).view(64, 64)": True,  # columns of a table that begins anywhere
    "x = torch.stack([torch.randn(2048), torch.zeros(2048)], -1)": False,
    "x = torch.randint(0, 600, (64, 64))": False,
    "x = torch.randint(0, 100, (64, 64)) / 100": False,
    "x = torch.randn(64, 64).tril()": False,
    "x = (torch.arange(64) < torch.randint(65, (64, 1))).float()": False,  # lengths
    "x = (torch.rand(64, 64) < 0.02).float()": False,
}
"""What `get_inputs` draws, and whether that comes again."""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cpu")) as judge:
        yield judge


def pool_of(judge: Judge, draw: str, expression: str = "x * 2") -> Pool:
    source = (
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, x, which):\n"
        f"        return {expression}\n"
        f"def get_inputs():\n    {draw}\n    return [x, torch.randint(0, 100, (1,))]\n"
        "def get_init_inputs():\n    return []\n"
    )
    return judge._pools.take(
        Case(Task(id="file/own", source=source, name="own", level=1, origin="file"), "", "training")
    )


@pytest.mark.parametrize("draw", mostly_slow(INPUTS, *list(INPUTS)[:3]))
def test_inputs_that_come_again_are_found(judge: Judge, draw: str) -> None:
    assert pool_of(judge, draw).recurrence()[1] == ([0] if INPUTS[draw] else [])


def test_an_output_that_is_one_of_a_hundred_comes_again(judge: Judge) -> None:
    draw, table = "x = torch.randn(8, 64)", "torch.arange(8192.0).cos().view(128, 64) * (1 + which)"
    size = 136 * 64 * 4
    share = pool_of(judge, draw, f"torch.cat([x, {table} + 1e-9 * x.mean()])").recurrence()[0] / size
    assert share == pytest.approx(2 * 128 / 136, rel=0.05), "read and written, and the rest is new"
    assert pool_of(judge, draw, f"torch.cat([x, {table} + 1e4 * x.mean()])").recurrence()[0] == 0


def test_bytes_to_move_are_those_of_the_draws_that_have_most_in_common() -> None:
    new, table = torch.randn(3, 512, 8), torch.randn(2, 512, 8)
    assert again(new) == 0.0
    assert again(torch.zeros(3, 512, 8)) == 1.0, "a fill is only written"
    assert again(table[[0, 1, 0]]) == 2.0, "a table is read, too"
    assert again(torch.cat([new, torch.zeros(3, 512, 8)], 1)) == 0.5
    assert again(torch.relu(new)) < 0.02, "single elements that come again are written with their neighbours"


def test_few_equal_elements_of_short_draws_tell_nothing() -> None:
    torch.manual_seed(0)
    for size in (2, 16, 160, 300, 2000):
        for _ in range(10):
            windows = Windows(7)
            for _ in range(64):
                windows.add(torch.randn(size).bfloat16().view(torch.int16).long())
            assert windows.share <= 0.01, size


def test_fills_tell_nothing() -> None:
    windows, shifts = Windows(7), Shifts(7)
    for _ in range(3):
        windows.add(torch.zeros(4096))
        shifts.add(torch.zeros(4096))
    assert windows.share == shifts.share == 0.0


def test_outputs_that_are_views_of_one_table_come_again_and_gathered_rows_do_not(judge: Judge) -> None:
    draw, table = "x = torch.randint(4096, (1,))", "torch.arange(8192.0).cos()"
    assert pool_of(judge, draw, f"{table}[x + torch.arange(4096)]").recurrence()[0] > 1.8 * 4096 * 4
    draw = "x = torch.randint(128, (64,))"
    assert pool_of(judge, draw, f"{table}.view(128, 64)[x]").recurrence()[0] < 0.2 * 4096 * 4


def test_outputs_that_never_change_are_named(judge: Judge) -> None:
    draw = "x = torch.randn(8, 64)"
    assert pool_of(judge, draw, "(x * 2, x.isfinite().all(), which > 50)").recurrence()[2] == [1]


def test_groups_tell_values_apart_beyond_most_tolerances() -> None:
    x = torch.rand(4096) + 1.0
    assert torch.equal(some_groups(x * (1.0 + 1e-4), 7) == some_groups(x, 7), torch.zeros(512, 8, dtype=torch.bool))
    assert (some_groups(x * (1.0 + 2.0**-23), 7) == some_groups(x, 7)).double().mean() > 0.96
