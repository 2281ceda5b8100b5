"""What of a turn's outputs is read and compared."""

from __future__ import annotations

import math

import numpy as np
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle.numerics import Answer, compare
from cudal1_env.judge.oracle.samples import chosen_samples, whole_samples
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.floats(-4, 4, width=32), st.sampled_from([0.0, math.inf, -math.inf, math.nan, 1e30, 1e-30, 70000.0])
)


def answer_of(values: list[float], limits: list[float]) -> Answer:
    right = np.array(values, dtype=np.float64)
    finite = np.abs(right[np.isfinite(right)])
    return Answer(np.arange(right.size), right, np.array(limits), scale=float(finite.max()) if finite.size else 0.0)


@given(st.data(), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_calls_are_compared_together_as_each_alone(data: st.DataObject, dtype: str) -> None:
    expected = Expected((4, 4), dtype, aliases=False)
    answers: list[Answer] = []
    got: list[np.ndarray] = []
    for _ in range(data.draw(st.integers(1, 4))):
        values = data.draw(st.lists(NUMBERS, max_size=5))
        count = len(values)
        noise = data.draw(st.lists(st.sampled_from([0.0, 0.0, 1e-3, 0.1]), min_size=count, max_size=count))
        limits = data.draw(st.lists(st.sampled_from([1e-38, 0.01, 1.0]), min_size=count, max_size=count))
        answers.append(answer_of(values, limits))
        with np.errstate(over="ignore"):
            kind = np.float16 if dtype == "float16" else np.float32
            got.append((np.array(values, dtype=np.float64) + np.array(noise)).astype(kind))
    together = whole_samples(answers).compare(got, [expected])
    alone = [compare(one, answer, expected, whole=False) for one, answer in zip(got, answers, strict=True)]
    assert [one.right for one in together] == [one.right for one in alone]
    np.testing.assert_array_equal([one.error for one in together], [one.error for one in alone])
    np.testing.assert_array_equal([one.tolerance for one in together], [one.tolerance for one in alone])


@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=6), min_size=1, max_size=4))
def test_integers_are_compared_together_as_each_alone(rows: list[list[int]]) -> None:
    expected = Expected((8,), "int64", aliases=False)
    answers = [Answer(np.arange(len(row)), np.array(row), np.array(row)) for row in rows]
    got = [np.array(row) * (k % 2) for k, row in enumerate(rows)]
    alone = [compare(one, answer, expected, whole=False) for one, answer in zip(got, answers, strict=True)]
    assert whole_samples(answers).compare(got, [expected]) == alone
    assert [one.right for one in alone] == [k % 2 == 1 or not any(row) for k, row in enumerate(rows)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_an_integer_is_right_or_what_the_reference_may_give_instead(elements: list[tuple[int, int, int]]) -> None:
    right, second, got = (np.array(column) for column in zip(*elements, strict=True))
    answer = Answer(np.arange(right.size), right, second, right, second)
    wrong = sum(g not in (r, s) for r, s, g in elements)
    for whole in (False, True):
        found = compare(got, answer, Expected((right.size,), "int64", aliases=False), whole=whole)
        assert found.right == (wrong == 0)
        assert found.error == wrong / right.size


@given(st.integers(1, 200), st.integers(1, 128), st.integers(0, 2**32 - 1))
def test_every_turn_reads_as_much_on_the_clock_and_something_of_the_last_call(calls: int, size: int, seed: int) -> None:
    pieces = 32
    answers = [answer_of([float(k) for k in range(size)], [1e-38] * size) for _ in range(calls)]
    on_clock, after = chosen_samples(answers, pieces, np.random.default_rng(seed))
    read = [part.size for part in on_clock.positions]
    assert sum(read) <= pieces
    if size >= pieces:
        assert sum(read) == pieces
    assert read[-1] > 0
    assert [part.size for part in after.positions] == [min(size, max(4, 256 // calls))] * calls
    got = [part.astype(np.float32) for part in on_clock.positions]
    assert all(one.right for one in on_clock.compare(got, [Expected((size,), "float32", aliases=False)]))
