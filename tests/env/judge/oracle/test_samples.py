"""Which elements of a sample's outputs are read and compared."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
from cudal1_env.judge.device.base import Output
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.oracle.numerics import Answer, compare
from cudal1_env.judge.oracle.samples import InputSet, Samples, chosen_samples, whole_samples
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.floats(-4, 4, width=32), st.sampled_from([0.0, math.inf, -math.inf, math.nan, 1e30, 1e-30, 70000.0])
)


def answer_of(values: list[float], limits: list[float]) -> Answer:
    right = np.array(values, dtype=np.float64)
    finite = np.abs(right[np.isfinite(right)])
    return Answer(np.arange(right.size), right, np.array(limits), scale=float(finite.max()) if finite.size else 0.0)


def set_of(answers: list[Answer]) -> InputSet:
    return InputSet(0, "own", np.empty(0), tuple(answers), lambda: tuple(answers))


@given(st.data(), st.integers(1, 12))
def test_each_output_is_compared_with_its_own_part_of_its_sample(data: st.DataObject, outputs: int) -> None:
    expected = [Expected((4, 4), "float32", aliases=False)] * outputs
    answers: list[Answer] = []
    parts: list[slice] = []
    got: list[np.ndarray] = []
    wrong: list[bool] = []
    for _ in range(outputs):
        values = data.draw(st.lists(NUMBERS, min_size=1, max_size=5))
        begin = data.draw(st.integers(0, len(values)))
        limits = [max(0.01, 1e-6 * abs(value)) if math.isfinite(value) else 0.01 for value in values]
        answers.append(answer_of(values, limits))
        parts.append(slice(begin, data.draw(st.integers(begin, len(values)))))
        noise = data.draw(st.lists(st.sampled_from([0.0, 1e-3, 0.1]), min_size=len(values), max_size=len(values)))
        with np.errstate(over="ignore"):
            got.append((answers[-1].values + np.array(noise)).astype(np.float32)[parts[-1]])
        seen = zip(values[parts[-1]], noise[parts[-1]], strict=True)
        wrong.append(any(math.isfinite(value) and abs(value) < 1e5 and error == 0.1 for value, error in seen))
    found = Samples(set_of(answers), parts).compare(got, expected)
    assert [one.correct for one in found] == [not one for one in wrong]


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=9), st.booleans())
def test_widened_tolerances_count_where_an_element_errs_too_much(errors: list[float], same: bool) -> None:
    narrow = [answer_of([1.0] * len(errors), [1.0] * len(errors))]
    wide = narrow if same else [answer_of([1.0] * len(errors), [2.0] * len(errors))]
    asked: list[int] = []

    def widened() -> tuple[Answer, ...]:
        asked.append(1)
        return tuple(wide)

    one = InputSet(0, "own", np.empty(0), tuple(narrow), widened)
    got = np.array(errors, dtype=np.float64) + 1.0
    (found,) = whole_samples(one).compare([got], [Expected((len(errors),), "float64", aliases=False)])
    err = np.abs(got - 1.0).max()
    assert found.correct == (err <= (1.0 if same else 2.0))
    assert len(asked) == (err > 1.0)


def test_outputs_written_while_answers_are_widened_do_not_count() -> None:
    right = np.ones(4)
    answers = (Answer(np.arange(4), right, np.full(4, 0.01), right, np.full(4, 0.01)),)
    memory = np.zeros(4)

    def widened() -> tuple[Answer, ...]:
        memory[:] = 1.0
        return answers

    arm = cast(Arm, SimpleNamespace(memory=SimpleNamespace(whole=lambda _: [memory.copy()])))
    output = cast(Output, SimpleNamespace(expected=Expected((4,), "float64", aliases=False)))
    (found,) = Arm.compare_whole(arm, InputSet(0, "own", np.empty(0), answers, widened), [output])
    assert memory.all()
    assert not found.correct


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_an_integer_is_correct_or_a_value_that_the_reference_may_give(elements: list[tuple[int, int, int]]) -> None:
    right, second, got = (np.array(column) for column in zip(*elements, strict=True))
    answer = Answer(np.arange(right.size), right, second, right, second)
    wrong = sum(g not in (r, s) for r, s, g in elements)
    for whole in (False, True):
        found = compare(got, answer, Expected((right.size,), "int64", aliases=False), whole=whole)
        assert found.correct == (wrong == 0)
        assert found.error == wrong / right.size


@given(st.integers(1, 200), st.integers(1, 128), st.integers(0, 2**32 - 1))
def test_every_output_is_read_equally_on_the_clock_and_some_after_it(outputs: int, size: int, seed: int) -> None:
    pieces = 32
    answers = [answer_of([float(k) for k in range(size)], [1e-38] * size) for _ in range(outputs)]
    on_clock, after = chosen_samples(set_of(answers), pieces, np.random.default_rng(seed))
    read = [part.size for part in on_clock.positions]
    assert sum(read) <= pieces
    if size >= pieces:
        assert sum(read) == pieces
    assert read[-1] > 0
    assert [part.size for part in after.positions] == [min(size, max(4, 256 // outputs))] * outputs
    got = [part.astype(np.float32) for part in on_clock.positions]
    expected = [Expected((size,), "float32", aliases=False)] * outputs
    assert all(one.correct for one in on_clock.compare(got, expected))
