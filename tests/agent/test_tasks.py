"""Choice of tasks: those that a stage or a table takes lie at equal distances in the suite."""

from __future__ import annotations

from cudal1_agent.data.tasks import spread
from cudal1_data import load_suite
from hypothesis import given
from hypothesis import strategies as st

TASKS = tuple(load_suite("starter"))


@given(st.integers(1, len(TASKS)), st.integers(1, len(TASKS)))
def test_chosen_tasks_lie_at_equal_distances(count: int, among: int) -> None:
    places = [TASKS.index(task) for task in spread(TASKS[:among], count)]
    assert len(places) == min(count, among)
    gaps = [after - before for before, after in zip(places, [*places[1:], among], strict=True)]
    assert max(gaps) - min(gaps) <= 1
    assert places[0] == 0


@given(st.integers(1, len(TASKS)))
def test_a_choice_is_part_of_one_of_twice_as_many(count: int) -> None:
    assert {task.id for task in spread(TASKS, count)} <= {task.id for task in spread(TASKS, 2 * count)}


def test_no_number_chooses_all_tasks() -> None:
    assert spread(TASKS, None) == spread(TASKS, 10**6) == TASKS
    assert spread(TASKS, 0) == ()
