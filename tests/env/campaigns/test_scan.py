"""The scan of tasks: what it finds in references that are sound, and in those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from cudal1_data import load_suite
from cudal1_env.campaigns.scan import Scan, scan_file, scan_tasks, summary
from cudal1_env.campaigns.scan_child import measured
from cudal1_env.commands.audit import Audit
from cudal1_env.commands.campaign import Machine, Parts

CPU = Machine(device="cpu")


FORM = """import torch
import torch.nn as nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(64))

    def forward(self, x, y):
        return {answer}


def get_inputs():
    return [torch.randn(48, 64), torch.randn(48, 64)]


def get_init_inputs():
    return []
"""


def faults(answer: str) -> str:
    return "; ".join(Scan(task="t", sha256="", **measured(FORM.format(answer=answer), "t")).faults)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("torch.relu(x * self.w + y)", ""),
        ("torch.tanh(x) * y + self.w", ""),
        ("5 + 0.01 * (x + y) * self.w", "nearly constant"),
        ("self.w * 30 + 0.01 * (x + y)", "nearly the same for all inputs"),
        ("x * self.w + 0.001 * y", "input 1 hardly matters"),
        ("x * y + 1e-5 * self.w", "weight w hardly matters"),
        ("torch.abs(torch.exp(x)) + y * self.w", "abs does nothing"),
        ("torch.clamp(torch.tanh(x), -2, 2) + y * self.w", "clamp does nothing"),
        ("torch.log(x) + y * self.w", "not finite"),
        ("(x + 1e7) - 1e7 + y * 1e-9 * self.w", "ill-conditioned"),
    ],
)
def test_what_is_wrong_with_a_reference_is_named(answer: str, fault: str) -> None:
    found = faults(answer)
    assert (fault in found) if fault else found == ""


@pytest.mark.slow
def test_a_scan_resumes_and_counts(tmp_path: Path) -> None:
    tasks = list(load_suite("generated:norm+softmax?n=2&seed=3"))
    out = tmp_path / "scan.jsonl"
    first = scan_tasks(tasks[:1], scan_file(out), lambda _: None)
    before = out.read_bytes()
    both = scan_tasks(tasks, scan_file(out), lambda _: None)
    assert both[0] == first[0]
    assert out.read_bytes().startswith(before)
    assert [one.task for one in both] == [task.id for task in tasks]
    assert {one.family for one in both} == {"norm", "softmax"}
    text = summary(both)
    assert text.splitlines()[0].split() == ["tasks", "pass", "%"]
    assert "all" in text


@pytest.mark.slow
def test_a_part_and_its_joined_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, whole = "generated:norm+softmax?n=2&seed=3", tmp_path / "whole.jsonl"
    Audit(spec, machine=CPU, scan=True, parts=Parts(part="0/2"), out=tmp_path / "0.jsonl").run()
    Audit(spec, machine=CPU, scan=True, out=whole, parts=Parts(join=(tmp_path / "0.jsonl",))).run()
    assert len(whole.read_text().splitlines()) == 1
    assert "norm" in capsys.readouterr().out
