"""Test data stays out of training unless that is asked for, and then everything that is written says so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from cudal1_agent.data.tasks import GROUPS, HELD_OUT_TASKS, TRAIN, choose_tasks, tasks_of
from cudal1_agent.errors import CorpusError
from cudal1_agent.evaluation.tables import contamination_notes
from cudal1_agent.run.folder import ARCHIVE, METRICS, RunFolder, read_settings
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.settings import EvaluationSettings, Settings
from cudal1_data import Suite, Task, load_suite, load_task
from cudal1_data.sources.kernelbench import notes, same_tasks
from cudal1_env import Archive
from doubles.training import HashEvaluator, ScriptedPolicy, judged, suite, task

EVERYTHING = EvaluationSettings(held_out_sizes=None)
NEAR = "starter:diag_matmul,layer_norm_manual,rms_norm,gelu_tanh,row_logsumexp,batched_matmul"
"""Two near-duplicates of the test and what resembles them; tests/data/test_tracing.py compares every starter task."""


def kernelbench(*places: str, form: str = "kernelbench") -> Suite:
    """Tasks with KernelBench's names; no two have one text, nor one with the tasks of these tests."""

    def source(place: str) -> str:
        return task(place, f"x + {place.partition('/')[2]}", []).source

    return Suite(
        form,
        [
            Task(id=f"{form}/{place}", source=source(place), name=place, level=int(place[5]), origin=form)
            for place in places
        ],
    )


def test_training_on_kernelbench_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"all its 2 tasks are test data.*--train-on-test"):
        choose_tasks(kernelbench("level1/1", "level1/2"), "cpu", EVERYTHING)


def test_train_on_test_marks_a_run_on_kernelbench() -> None:
    tasks = choose_tasks(kernelbench("level1/1", "level1/2"), "cpu", EVERYTHING, train_on_test=True)
    assert tasks.trained_on_test
    assert [one.id for one in tasks.train] == ["kernelbench/level1/1", "kernelbench/level1/2"]
    assert tasks.groups[HELD_OUT_TASKS] == ()


def test_evaluating_on_kernelbench_does_not_mark_the_run() -> None:
    tasks = choose_tasks(kernelbench("level1/1"), "cpu", EVERYTHING, training=False)
    assert not tasks.trained_on_test
    assert [one.id for one in tasks.groups[HELD_OUT_TASKS]] == ["kernelbench/level1/1"]
    assert tasks.groups[TRAIN] == ()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["kernelbench", "cuda-l1"])
def test_near_duplicates_of_the_test_are_left_out(form: str) -> None:
    starter, test = load_suite(NEAR), kernelbench("level1/12", "level1/40", "level3/1", form=form)
    tasks = choose_tasks(starter, "cpu", EVERYTHING, test=test)
    left = {"starter/diag_matmul": f"{form}/level1/12", "starter/layer_norm_manual": f"{form}/level1/40"}
    train = {one.id for one in starter.train}
    assert tasks.left_out == {name: other for name, other in left.items() if name in train}
    assert {one.id for one in tasks.train} == train - left.keys()
    assert not any(one.id.partition("@")[0] in left for group in tasks.groups.values() for one in group)
    assert [one.id for one in tasks.groups[HELD_OUT_TASKS]] == list(test.ids)
    assert not tasks.trained_on_test
    kept = choose_tasks(starter, "cpu", EVERYTHING, test=test, train_on_test=True)
    assert kept.trained_on_test
    assert {one.id for one in kept.train} == train


def overlapping(tasks: Iterable[Task], test: Iterable[Task]) -> dict[str, str]:
    return {name: same.test for name, same in same_tasks(tasks, test).items()}


def test_a_task_overlaps_every_kernelbench_task_with_the_same_graph() -> None:
    """The named task stands for every task with the same graph: level 1's plain products of matrices."""
    products = [place for place, note in notes().items() if note.graph == notes()["level1/1"].graph]
    assert "level1/9" in products
    mine = task("product", "x", []).model_copy(update={"overlaps": "kernelbench/level1/1"})
    assert overlapping([mine], kernelbench("level1/9")) == {"toy/product": "kernelbench/level1/9"}
    assert overlapping([mine], kernelbench("level1/12")) == {}
    assert overlapping([task("other", "x", [])], kernelbench("level1/9")) == {}
    assert overlapping(kernelbench("level1/9", form="cuda-l1"), kernelbench("level1/9")) == {
        "cuda-l1/level1/9": "kernelbench/level1/9"
    }


def test_a_suite_of_near_duplicates_only_is_refused() -> None:
    mine = Suite("mine", [task("a", "x", []).model_copy(update={"overlaps": "kernelbench/level1/12"})])
    with pytest.raises(CorpusError, match="are in the test suite 'kernelbench'"):
        choose_tasks(mine, "cpu", EVERYTHING, test=kernelbench("level1/12"))


def test_tasks_that_overlap_the_test_suite_of_the_settings_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"code": one.source, "level": 1, "name": "12_Diagonal", "problem_id": 12} for one in kernelbench("level1/12")
    ]
    path = tmp_path / "kernelbench.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    both = Suite("starter", [load_task("starter/diag_matmul"), load_task("starter/gelu_tanh")])
    tasks = tasks_of(Settings(test_suite=str(path)), "cpu", suite=both)
    assert tasks.left_out == {"starter/diag_matmul": "kernelbench/level1/12"}
    assert [one.id for one in tasks.train] == ["starter/gelu_tanh"]


def test_the_stage_table_names_overlapping_tasks() -> None:
    records = [
        {"group": "train", "overlaps": {"starter/diag_matmul": "kernelbench/level1/12"}},
        {"group": "held_out_sizes", "overlaps": {"starter/diag_matmul@N=8": "kernelbench/level1/12"}},
        {"group": "held_out_tasks", "overlaps": {}, "trained_on_test": True},
    ]
    marked, line = contamination_notes(records, GROUPS)
    assert marked.startswith("trained_on_test")
    assert "training tasks: 1 overlap" in line
    assert "starter/diag_matmul (kernelbench/level1/12)" in line
    assert contamination_notes([{"group": "train"}], GROUPS) == []


def test_a_run_on_test_data_is_marked_in_config_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that a marked run writes carries the mark; so does its config."""
    from cudal1_agent.evaluation import evaluate
    from cudal1_agent.evaluation.assessment import Assessed
    from cudal1_agent.progress import Progress
    from cudal1_agent.run.session import Session
    from cudal1_agent.run.verdicts import Verdicts

    settings = Settings(train_on_test=True)
    only = Suite("toy", [one.model_copy(update={"split": "test"}) for one in suite()])
    with RunFolder.begin(tmp_path / "run", settings) as folder:
        tasks = choose_tasks(only, "cpu", EVERYTHING, train_on_test=True)
        verdicts = Verdicts(HashEvaluator(), folder.archive)
        session = Session(settings, folder, "cpu", True, tasks, verdicts, Progress())
        [best] = judged(verdicts.judge([(tasks.train[0], "```python\nclass ModelNew: ...\n```")]))

        monkeypatch.setattr(Session, "policy", lambda *_: ScriptedPolicy([]))
        monkeypatch.setattr(evaluate, "prompts_for", lambda *_, **__: None)
        monkeypatch.setattr(Session, "prompts", lambda *_: None)
        monkeypatch.setattr(evaluate, "assess", lambda *_, **__: {TRAIN: [Assessed(best.task, (best,), True)]})
        evaluate.tabulate(session, None, stage="sft", model="m", before=None)
        folder.metrics.append({"event": "step"})
    assert read_settings(tmp_path / "run").train_on_test
    records = read_metrics(tmp_path / "run" / METRICS)
    assert {record["event"] for record in records} == {"answer", "table", "step"}
    assert all(record["trained_on_test"] for record in records)
    with Archive(tmp_path / "run" / ARCHIVE) as archive:
        assert [kept.marks for kept in archive.variants(best.task, correct_only=False)] == [("trained_on_test",)]


def test_an_evaluation_names_near_duplicates_that_were_trained_on() -> None:
    from cudal1_agent.evaluation.assessment import Assessed
    from cudal1_agent.evaluation.evaluate import Evaluated

    best = HashEvaluator().evaluate(suite().train[0], "class ModelNew: ...")
    groups = {HELD_OUT_TASKS: [Assessed("kernelbench/level1/12", (best,), True)]}
    seen = Evaluated(groups, {"kernelbench/level1/12": "starter/diag_matmul"}, trained_on_test=True)
    record = seen.record("runs/one")
    assert record["seen"] == {"kernelbench/level1/12": "starter/diag_matmul"}
    assert all(one["trained_on_test"] for one in (record, *record["table"].values(), *record["answers"]))
    assert "trained_on_test: this run was trained on test data" in seen.text("one")
    assert "kernelbench/level1/12 (starter/diag_matmul)" in seen.text("one")
    clean = Evaluated(groups, {}, trained_on_test=False)
    assert "trained_on_test" not in json.dumps(clean.record("runs/one")) + clean.text("one")
