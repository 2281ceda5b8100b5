"""Confirmation: only what is faster on new inputs and inside the module is returned, and the best of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent.optimized import module_file
from cudal1_agent.optimize import confirm
from cudal1_agent.optimize.budget import Budget
from cudal1_agent.optimize.confirm import Confirmation
from cudal1_agent.optimize.examine import Examined
from cudal1_agent.optimize.folder import OutFolder
from cudal1_agent.optimize.search import Search
from cudal1_agent.optimize.sources import Candidate
from cudal1_agent.optimize.target import read_target
from cudal1_env import Archive
from doubles.evaluator import RuleEvaluator, program

FORM = {"shape": (2,), "dtype": "float32", "stride": (1,)}
EXAMINED = Examined.model_validate(
    {
        "inputs": [{"tensor": FORM}],
        "outputs": [FORM],
        "returns": "tensor",
        "state": {},
        "configuration": {},
        "training": True,
        "mode_matters": False,
        "moved_bytes": 16,
        "flops": 0,
        "functions": 0,
        "bytes_ms": 0.1,
        "flops_ms": 0.0,
    }
)


class Judge(RuleEvaluator):
    """The double as a judge that believes `# again 0.9` at `report` precision."""

    def evaluate(self, task: Any, source: str, *, precision: Any = "training") -> Any:
        if precision == "report" and "# again" in source:
            source = source.replace("# speedup", "# was").replace("# again", "# speedup")
        return super().evaluate(task, source, precision=precision)

    def retire(self) -> dict[str, str]:
        return {}


def confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: dict[str, float], *sources: str, seconds: float = 1000.0
) -> Confirmation:
    """Programs that the search has seen; inside the module each has the speedup that stands for a part of its text."""

    def child(name: str, arguments: list[str], **_: Any) -> dict[str, Any]:
        if arguments[1] == "test":
            return {"strides": [[1]], "reused": False, "tests": ["test_a"]}
        text = (Path(arguments[0]) / "kernel.py").read_text()
        speedup = next((value for part, value in inside.items() if part in text), 2.0)
        return {"pairs": [(2.0, 2.0 / speedup)] * 10, "threads": 1}

    monkeypatch.setattr(confirm, "run_child", child)
    target = read_target(str(module_file(tmp_path)))
    budget = Budget(seconds, 8)
    search = Search(target.task, Archive(), budget, Judge, lambda _: None)
    for number, source in enumerate(sources):
        search.judge(Candidate(source, f"program {number}"), 100.0)
    return Confirmation(search, budget, OutFolder(tmp_path / "out", target, "cpu"), EXAMINED, [], lambda _: None)


def test_the_confirmed_program_with_the_highest_interval_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = confirmation(tmp_path, monkeypatch, {}, program(1.5), program(3.0), program(2.9)).winner()
    assert found is not None
    assert found[0].origin == "program 1"
    assert found[0].confirmed.point == 3.0
    assert found[0].in_module.speedup.point == pytest.approx(2.0)
    assert (found[1] / "kernel.py").read_text() == f"# coding: utf-8\n{program(3.0)}"


def test_a_program_that_is_slow_on_new_inputs_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lucky = "# again 0.9\n" + program(3.0)
    asked = confirmation(tmp_path, monkeypatch, {}, lucky, program(1.5))
    found = asked.winner()
    assert found is not None
    assert found[0].origin == "program 1"
    assert asked.refuted["program 0"].startswith("0.90 x (0.88 to 0.92) on new inputs")


def test_a_program_that_is_not_faster_inside_the_module_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = confirmation(tmp_path, monkeypatch, {"speedup 3.0": 0.98}, program(3.0))
    assert asked.winner() is None
    assert asked.refuted["program 0"].startswith("in your module it is 0.98 x")
    assert not asked.out_of_time


def test_without_time_nothing_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = confirmation(tmp_path, monkeypatch, {}, program(3.0), seconds=1000.0)
    monkeypatch.setattr(Budget, "left_s", property(lambda _: -1.0))
    assert asked.winner() is None
    assert asked.out_of_time


def test_a_program_that_the_search_saw_as_slower_is_never_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = confirmation(tmp_path, monkeypatch, {}, program(0.5))
    assert asked.winner() is None
    assert asked.refuted == {}


def test_a_policys_program_is_believed_only_beyond_the_judges_overhead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = confirmation(tmp_path, monkeypatch, {}, program(1.5))
    found = asked._search.evaluate(program(1.5), "report", 10.0).model_copy(update={"rewarded_low": 0.9})
    monkeypatch.setattr(asked._search, "known", lambda *_: found)
    assert not isinstance(asked._tried(Candidate(program(1.5), "template"), found), str)
    said = asked._tried(Candidate(program(1.5), "answer 1", own=False), found)
    assert isinstance(said, str)
    assert "the end that counts is 0.90" in said


def test_a_second_command_takes_the_first_ones_confirmation_and_the_report_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = confirmation(tmp_path, monkeypatch, {}, program(3.0))
    left = iter([500.0, -1.0])  # for the judge, then for the module
    monkeypatch.setattr(Budget, "left_s", property(lambda _: next(left)))
    assert asked.winner() is None
    assert asked.out_of_time
    (note,) = asked.notes
    assert "program 0: confirmed 3.00 x" in note
    assert "before it was measured in your module" in note

    monkeypatch.setattr(Budget, "left_s", property(lambda _: 500.0))
    monkeypatch.setattr(asked._search, "evaluate", lambda *_: pytest.fail("it was confirmed before"))
    found = asked.winner()
    assert found is not None
    assert found[0].confirmed.point == 3.0
