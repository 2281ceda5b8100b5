"""What a run reports as best is measured again."""

from __future__ import annotations

from pathlib import Path

from cudal1_agent.config import with_flags
from cudal1_agent.evaluation.champions import confirm
from cudal1_agent.reporting.page import report
from cudal1_agent.run.folder import METRICS
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import Settings
from cudal1_data import Task
from cudal1_env import Evaluation
from cudal1_env.records import Precision
from doubles.training import SMALL_MODEL, HashEvaluator, evaluation, session

SETTINGS = with_flags(
    Settings(), {"device": "cpu", "embedded": SMALL_MODEL.model_dump(), "evaluation": {"champions": 2}}
)


class HonestAtLast(HashEvaluator):
    """Finds each program 1.2 times as fast as the reference, whatever was seen before."""

    def __init__(self) -> None:
        super().__init__()
        self.precisions: list[Precision] = []

    def _judge(self, task: Task, source: str, precision: Precision) -> Evaluation:
        self.precisions.append(precision)
        return evaluation(task, source, 1.2, precision)


def test_the_fastest_programs_are_measured_again_on_new_inputs_and_reported_as_confirmed(tmp_path: Path) -> None:
    with session(tmp_path / "run", SETTINGS) as run:
        evaluator = HonestAtLast()
        run.verdicts = Verdicts(evaluator, run.folder.archive)
        renewed: list[int] = []
        run.renew_inputs = lambda: renewed.append(len(evaluator.precisions))
        for number, task in enumerate(run.tasks.train):
            run.folder.archive.add(evaluation(task, f"class ModelNew: ...  # {number}", 2.0 + number))
        run.began = run.folder.position_now()
        confirm(run, None)
        assert renewed == [0], "inputs are new before the first program is measured"
        assert evaluator.precisions == ["report"] * 2
        champions = [one for one in read_metrics(run.folder.path / METRICS) if one["event"] == "champion"]
        assert [one["chosen"]["point"] for one in champions] == [4.0, 3.0]
        assert [one["confirmed"]["point"] for one in champions] == [1.2, 1.2]
        confirm(run, None)
        assert len(evaluator.precisions) == 2, "an interrupted phase measures nothing twice"
    html = report(tmp_path / "run").read_text()
    assert "1.20 x" in html
    assert "Chosen at 4.00 x" in html
    assert "Chosen at 2.00 x" not in html


def test_a_champion_that_fails_is_reported_as_not_confirmed(tmp_path: Path) -> None:
    with session(tmp_path / "run", SETTINGS) as run:
        task = run.tasks.train[0]
        bad = next(
            source
            for number in range(99)
            if not HashEvaluator().evaluate(task, source := f"class ModelNew: ...  # {number}").correct
        )
        run.folder.archive.add(evaluation(task, bad, 9.0))
        run.began = run.folder.position_now()
        confirm(run, None)
    assert "Not confirmed (WRONG_OUTPUT)" in report(tmp_path / "run").read_text()
