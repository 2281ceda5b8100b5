"""What of a turn's outputs is read and compared."""

from __future__ import annotations

import math

import numpy as np
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle.numerics import Answer, compare, most_differing
from cudal1_env.judge.oracle.samples import chosen_samples, whole_samples
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

NUMBERS = st.one_of(
    st.floats(-4, 4, width=32), st.sampled_from([0.0, math.inf, -math.inf, math.nan, 1e30, 1e-30, 70000.0])
)


def answer_of(values: list[float], tolerance: float, row: float) -> Answer:
    right = np.array(values, dtype=np.float64)
    finite = np.abs(right[np.isfinite(right)])
    return Answer(
        np.arange(right.size),
        right,
        None,
        float(finite.max()) if finite.size else 0.0,
        tolerance,
        row_tolerance=row,
        sample_scales=np.abs(np.nan_to_num(right, posinf=0, neginf=0)) + 0.5,
    )


@given(st.data(), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_calls_are_compared_together_as_each_alone(data: st.DataObject, dtype: str) -> None:
    expected = Expected((4, 4), dtype, aliases=False)
    answers: list[Answer] = []
    got: list[np.ndarray] = []
    for _ in range(data.draw(st.integers(1, 4))):
        values = data.draw(st.lists(NUMBERS, max_size=5))
        noise = data.draw(st.lists(st.sampled_from([0.0, 0.0, 1e-3, 0.1]), min_size=len(values), max_size=len(values)))
        answers.append(
            answer_of(
                values, data.draw(st.sampled_from([0.0, 0.01, 1.0])), data.draw(st.sampled_from([0.01, math.inf]))
            )
        )
        with np.errstate(over="ignore"):
            kind = np.float16 if dtype == "float16" else np.float32
            got.append((np.array(values, dtype=np.float64) + np.array(noise)).astype(kind))
    together = whole_samples(answers).compare(got, [expected])
    alone = [compare(one, answer, expected, whole=False) for one, answer in zip(got, answers, strict=True)]
    assert [one.right for one in together] == [one.right for one in alone]
    np.testing.assert_array_equal([one.error for one in together], [one.error for one in alone])


@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=6), min_size=1, max_size=4), st.floats(0, 1))
def test_integers_are_compared_together_as_each_alone(rows: list[list[int]], tolerance: float) -> None:
    expected = Expected((8,), "int64", aliases=False)
    answers = [Answer(np.arange(len(row)), np.array(row), None, 3.0, tolerance) for row in rows]
    got = [np.array(row) * (k % 2) for k, row in enumerate(rows)]
    alone = [compare(one, answer, expected, whole=False) for one, answer in zip(got, answers, strict=True)]
    assert whole_samples(answers).compare(got, [expected]) == alone


@given(st.integers(1, 200), st.integers(1, 128), st.integers(0, 2**32 - 1))
def test_every_turn_reads_as_much_on_the_clock_and_something_of_the_last_call(calls: int, size: int, seed: int) -> None:
    pieces = 32
    answers = [answer_of([float(k) for k in range(size)], 0.1, math.inf) for _ in range(calls)]
    on_clock, after = chosen_samples(answers, pieces, np.random.default_rng(seed))
    read = [part.size for part in on_clock.positions]
    assert sum(read) <= pieces
    if size >= pieces:
        assert sum(read) == pieces
    assert read[-1] > 0
    assert [part.size for part in after.positions] == [min(size, max(4, 256 // calls))] * calls
    got = [part.astype(np.float32) for part in on_clock.positions]
    assert all(one.right for one in on_clock.compare(got, [Expected((size,), "float32", aliases=False)]))


@given(st.integers(1, 100_000), st.floats(1e-4, 0.5))
def test_integers_that_differ_as_often_as_they_may_are_rarely_denied(count: int, share: float) -> None:
    most = most_differing(count, share)
    assert binom.sf(most, count, share) < 1e-6
    assert most <= count * share + 6 * math.sqrt(count * share) + 10, "and a program that errs more is not let through"
