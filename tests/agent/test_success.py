"""Shares of correct answers: their intervals, the draw of k, families, and what is left without learnt programs."""

from __future__ import annotations

import doctest
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import cudal1_agent.evaluation.success
import pytest
from cudal1_agent.data.tasks import HELD_OUT_TASKS, TRAIN
from cudal1_agent.evaluation.assessment import Assessed, assess, table_record
from cudal1_agent.evaluation.evaluate import Evaluated, refused_of
from cudal1_agent.evaluation.success import correct_at, success, wilson
from cudal1_agent.evaluation.tables import family_rows, rows_of, stage_table
from cudal1_agent.progress import Progress
from cudal1_agent.run.learnt import LEARNT, Learnt
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import EvaluationSettings
from cudal1_data.hashes import digest, skeleton_hash
from cudal1_env import Archive
from doubles.training import PROGRAM, HashEvaluator, RefusingEvaluator, ScriptedPolicy, evaluation, suite
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

TASKS = tuple(suite())


@given(st.integers(1, 400), st.data())
def test_the_interval_of_a_count_is_scipys(count: int, data: Any) -> None:
    successes = data.draw(st.integers(0, count))
    theirs = binomtest(successes, count).proportion_ci(method="wilson")
    ours = wilson(successes / count, count)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert ours.low <= ours.point <= ours.high


@given(st.integers(1, 7), st.data())
def test_correct_at_k_is_the_share_of_draws_with_a_correct_answer(answers: int, data: Any) -> None:
    correct, k = data.draw(st.integers(0, answers)), data.draw(st.integers(1, answers))
    draws = list(combinations([True] * correct + [False] * (answers - correct), k))
    assert correct_at(k, answers, correct) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_examples_in_the_docstrings() -> None:
    found = doctest.testmod(cudal1_agent.evaluation.success)
    assert found.attempted > 0
    assert found.failed == 0


def test_no_task_and_too_few_answers_are_refused() -> None:
    with pytest.raises(ValueError, match="pass at least one"):
        success([])
    with pytest.raises(ValueError, match="do not fit answers="):
        correct_at(3, 2, 1)


def assessed(number: int, family: str, *speedups: float | None) -> Assessed:
    task = TASKS[number]
    given = tuple(
        evaluation(task, PROGRAM.format(expression=f"torch.{'abc'[index]}(x)"), speedup)
        for index, speedup in enumerate(speedups)
    )
    return Assessed(task.id, given, True, family)


def test_a_table_has_each_family_and_the_same_without_learnt_skeletons() -> None:
    found = [assessed(0, "norm", 2.0, None), assessed(1, "norm", 2.0, 1.5), assessed(2, "scan", None, None)]
    copied = skeleton_hash(PROGRAM.format(expression="torch.a(x)").replace("x", "value"))
    record = {"stage": "sft", "group": TRAIN, **table_record(found, {copied})}
    assert record["success"]["at_1"]["point"] == 0.5
    assert record["success"]["at_k"]["point"] == pytest.approx(2 / 3)
    assert {name: one["success"]["at_1"]["point"] for name, one in record["families"].items()} == {
        "norm": 0.75,
        "scan": 0.0,
    }
    assert record["unlearnt"]["success"]["at_1"]["point"] == pytest.approx(1 / 3)
    assert (record["unlearnt"]["successes"], record["unlearnt"]["max"]) == (1, 1.5)
    text = stage_table([*rows_of(record), *family_rows(record)])
    assert "correct@1 (95 %)" in text
    assert "correct@2 (95 %)" in text
    assert "training tasks, without learnt skeletons" in text
    assert [line.split()[:2] for line in text.splitlines()[3:]] == [["sft", "norm"], ["sft", "scan"]]


def test_copies_of_the_reference_count_as_correct_and_not_as_programs_of_ones_own() -> None:
    copy, other = TASKS[0].source + "\n\nclass ModelNew(Model):\n    pass\n", PROGRAM.format(expression="x + x")
    with Archive() as archive:
        (found,) = assess(
            ScriptedPolicy([[copy, other]]),
            {TRAIN: TASKS[:1]},
            lambda task: task.source,
            Verdicts(HashEvaluator(), archive, reuse=False),
            EvaluationSettings(samples=2, temperature=1.0),
            seed=0,
            progress=Progress(),
        )[TRAIN]
    assert found.copies == {digest(copy)}
    both = replace(found, evaluations=tuple(evaluation(TASKS[0], source, 1.0) for source in (copy, other)))
    record = {"stage": "sft", "group": TRAIN, **table_record([both], frozenset())}
    assert [record["success"][name]["point"] for name in ("at_1", "own")] == [1.0, 0.5]
    assert "50 % (" in stage_table(rows_of(record))


def test_without_learnt_skeletons_there_is_no_second_row_and_copies_alone_leave_none() -> None:
    found = [assessed(0, "norm", 2.0)]
    assert table_record(found, frozenset())["unlearnt"] is None
    assert table_record(found, {skeleton_hash(found[0].best.source)})["unlearnt"] is None
    record = Evaluated({HELD_OUT_TASKS: found}, {}, trained_on_test=False).record("a model")
    assert record["table"][HELD_OUT_TASKS]["success"]["at_1"]["point"] == 1.0
    assert record["answers"][0]["correct"] == 1


def test_identical_answers_are_judged_once_though_nothing_is_looked_up() -> None:
    same, other = PROGRAM.format(expression="x + x"), PROGRAM.format(expression="x * 2")
    evaluator = HashEvaluator()
    with Archive() as archive:
        found = assess(
            ScriptedPolicy([[same, same, other, same]]),
            {TRAIN: TASKS[:1]},
            lambda task: task.source,
            Verdicts(evaluator, archive, reuse=False),
            EvaluationSettings(samples=4, temperature=1.0),
            seed=0,
            progress=Progress(),
        )
    assert len(evaluator.jobs) == 2
    verdicts = found[TRAIN][0].evaluations
    assert [one.source for one in verdicts] == [same, same, other, same]


def test_tables_leave_out_tasks_that_cannot_be_judged_and_records_say_why() -> None:
    programs = [[PROGRAM.format(expression="x + x")]] * (len(TASKS) + 1)
    with Archive() as archive:
        verdicts = Verdicts(RefusingEvaluator([TASKS[0].id]), archive)
        groups = assess(
            ScriptedPolicy(programs),
            {TRAIN: TASKS, HELD_OUT_TASKS: TASKS[:1]},
            lambda task: task.source,
            verdicts,
            EvaluationSettings(),
            seed=0,
            progress=Progress(),
        )
    assert [one.task for one in groups[TRAIN]] == [task.id for task in TASKS[1:]]
    assert HELD_OUT_TASKS not in groups
    found = Evaluated(groups, {}, trained_on_test=False, refused=refused_of(TASKS, verdicts))
    assert found.record("a model")["refused"] == {TASKS[0].id: f"{TASKS[0].id}: the double refuses it"}
    assert f"{TASKS[0].id} is left out" in found.text("a model")


def test_learnt_skeletons_are_kept_once_and_a_torn_line_does_no_harm(tmp_path: Path) -> None:
    Learnt(tmp_path).add(["aa", "bb", "aa"])
    assert (tmp_path / LEARNT).read_text() == "aa\nbb\n"
    with (tmp_path / LEARNT).open("a") as file:
        file.write("cc")
    again = Learnt(tmp_path)
    again.add(["bb", "dd"])
    assert Learnt(tmp_path).skeletons == {"aa", "bb", "cc", "dd"}


def test_verdicts_on_correctness_alone_make_shares_and_no_speedups() -> None:
    with Archive() as archive:
        found = assess(
            ScriptedPolicy([[PROGRAM.format(expression=f"x + {number}") for number in range(8)]]),
            {TRAIN: TASKS[:1]},
            lambda task: task.source,
            Verdicts(HashEvaluator(), archive, reuse=False),
            EvaluationSettings(samples=8, temperature=1.0),
            seed=0,
            progress=Progress(),
            precision="correct",
        )
    assert {one.precision for one in found[TRAIN][0].evaluations} == {"correct"}
    assert found[TRAIN][0].best.correct
    record = {"stage": "sft", "group": TRAIN, **table_record(found[TRAIN], frozenset())}
    assert "mean" not in record
    assert record["success"]["at_1"]["point"] == found[TRAIN][0].counts[1] / 8
    assert stage_table(rows_of(record)).splitlines()[1].split()[-8:] == ["-"] * 8
