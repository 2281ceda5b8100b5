from __future__ import annotations

import pickle

import pytest
from cudal1_data import Suite, Task, UnknownTaskError
from cudal1_data.suggest import nearest

TASKS = [
    Task(
        id=f"s/level{level}/{number}",
        source="",
        name="t",
        level=level,
        origin="file",
        split="train" if number == 1 else "test",
    )
    for level in (1, 2)
    for number in (1, 2)
]


def test_order_and_access() -> None:
    suite = Suite("s", TASKS)
    assert suite.ids == ("s/level1/1", "s/level1/2", "s/level2/1", "s/level2/2")
    assert len(suite) == 4
    assert suite[0] is TASKS[0]
    assert suite[-1] is TASKS[3]
    assert suite["s/level2/1"] is TASKS[2]
    assert suite["level2/1"] is TASKS[2]
    assert list(suite[1:3]) == TASKS[1:3]
    assert TASKS[1] in suite


def test_splits() -> None:
    suite = Suite("s", TASKS)
    assert suite.train.ids == ("s/level1/1", "s/level2/1")
    assert suite.test.ids == ("s/level1/2", "s/level2/2")
    assert suite.train.name == "s"


def test_parts_keep_their_programs_only() -> None:
    programs = {"s/level1/1": {"custom_code": "a"}, "s/level1/2": {"custom_code": "b"}}
    suite = Suite("s", TASKS, programs=programs)
    assert suite.train.programs == {"s/level1/1": {"custom_code": "a"}}
    with pytest.raises(TypeError):
        suite.programs["s/level1/1"] = {}  # type: ignore[index]


def test_unknown_id_offers_the_nearest() -> None:
    with pytest.raises(UnknownTaskError, match=r"did you mean .*s/level2/1"):
        Suite("s", TASKS)["s/level2/11"]


def test_ambiguous_end_is_refused() -> None:
    with pytest.raises(UnknownTaskError, match="s/level1/1, s/level2/1"):
        Suite("s", TASKS)["1"]


def test_a_size_behind_an_id_may_be_left_out() -> None:
    task = TASKS[0].model_copy(update={"source": "B = 4\nN = 4\n"})
    suite = Suite("s", [task.at({"B": 2}), TASKS[1], TASKS[1].model_copy(update={"id": "s/level1/2@B=2"})])
    assert suite["level1/1"].id == suite["s/level1/1"].id == suite["level1/1@B=2"].id == "s/level1/1@B=2"
    assert suite["level1/2"].id == "s/level1/2"
    both = Suite("s", [task.at({"B": 2}), task.at({"B": 1})])
    with pytest.raises(
        UnknownTaskError, match=r"several tasks of s are named .*; did you mean s/level1/1@B=2, s/level1/1@B=1"
    ):
        both.find("level1/1")


def test_second_task_of_an_id_is_reported() -> None:
    suite = Suite("s", [*TASKS, TASKS[0]])
    assert len(suite) == 4
    assert "s/level1/1 occurs twice" in str(suite.broken[0].error)


def test_a_suite_is_pickled_with_all_that_it_holds() -> None:
    suite = Suite(
        "s", [*TASKS, TASKS[0]], programs={"s/level1/1": {"custom_code": "x"}}, scores={"s/level1/2": {"a": 2.0}}
    )
    copied = pickle.loads(pickle.dumps(suite))
    assert (copied.name, list(copied), copied.programs, copied.scores) == ("s", TASKS, suite.programs, suite.scores)
    assert str(copied.broken[0].error) == str(suite.broken[0].error)


def test_nearest_is_empty_when_nothing_is_near() -> None:
    assert nearest("zzzz", ["starter/diag_matmul"]) == []
