"""Large outputs are compared and described some elements at a time; what comes out is the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle import numerics
from cudal1_env.judge.oracle.numerics import Answer, compare
from cudal1_worker.oracle import reference_error
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.sampled_from([0.0, 1.0, -2.5, 1e-6, 3e30, float("inf"), float("-inf"), float("nan")])
SHAPES = st.sampled_from([(), (1,), (7,), (5, 3), (2, 3, 4), (16, 1), (1, 20)])


def drawn(data: st.DataObject, count: int) -> list[float]:
    return data.draw(st.lists(VALUES, min_size=count, max_size=count))


@given(st.data(), SHAPES, st.integers(1, 30))
def test_comparing_in_pieces_changes_no_result(data: st.DataObject, shape: Sequence[int], piece: int) -> None:
    count = int(np.prod(shape))
    right = np.array(drawn(data, count))
    # Some elements differ, mostly by what is within a tolerance.
    got = np.where(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), right * 1.001, right)
    limits = np.maximum(0.01 * np.abs(np.nan_to_num(right)), 1e-38)
    answer = Answer(np.arange(count), right, limits, right, limits, 3e30)
    expected = Expected(tuple(shape), "float32", False)
    whole = compare(got.astype(np.float32), answer, expected, whole=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "_PIECE", piece)
        assert repr(compare(got.astype(np.float32), answer, expected, whole=True)) == repr(whole)


FINITE = st.floats(-4, 4).map(lambda one: 0.0 if abs(one) < 1 else one)
EXTREMES = st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e5, 3.5e38, 1e300])


@given(st.data(), SHAPES, st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
def test_an_error_report_counts_finite_elements_and_differing_masks(
    data: st.DataObject, shape: Sequence[int], dtype: torch.dtype
) -> None:
    count = int(np.prod(shape))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    values = st.lists(st.one_of(FINITE, FINITE, FINITE, EXTREMES), min_size=count, max_size=count)
    answer = torch.tensor(data.draw(values), dtype=torch.float64)
    own = torch.where(torch.rand(answer.shape) < 0.9, answer, torch.tensor(data.draw(values))).to(dtype)
    error = reference_error.error_of(own, answer)
    (found,) = reference_error.read([reference_error.report(own, answer, error)])
    pairs = list(zip(own.tolist(), answer.to(dtype).tolist(), strict=True))
    assert found == {
        "scale": max([abs(one) for one in answer.tolist() if math.isfinite(one)], default=0.0),
        "reference_error": max([one for one in error.tolist() if math.isfinite(one)], default=0.0),
        "masks_differ": sum(math.isfinite(one) != math.isfinite(other) for one, other in pairs),
    }


@given(st.data(), SHAPES, st.sampled_from(["float32", "float64", "float16", "bfloat16"]))
def test_outputs_are_compared_as_element_by_element(data: st.DataObject, shape: Sequence[int], dtype: str) -> None:
    count, expected = int(np.prod(shape)), Expected(tuple(shape), dtype, False)
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    values = st.lists(st.one_of(FINITE, FINITE, FINITE, EXTREMES), min_size=count, max_size=count)
    right = torch.tensor(data.draw(values), dtype=torch.float64)
    other = torch.where(
        torch.rand(count) < 0.8, right * (1 + 1e-3 * torch.rand(count)), torch.tensor(data.draw(values))
    )
    got = other.to(getattr(torch, dtype))
    scale = float(right[right.isfinite()].abs().max()) if right.isfinite().any() else 0.0
    limits = torch.where(torch.rand(count) < 0.5, 1e-2, 1.0) * right.abs().nan_to_num() + 1e-38
    answer = Answer(np.arange(count), right.numpy(), limits.numpy(), right, limits, scale)
    found = compare(got, answer, expected, whole=True)
    exact, rounded = got.double(), right.to(getattr(torch, dtype)).double()
    wrong = False
    for one, whole, limit, truth in zip(exact, rounded, limits, right, strict=True):
        if not whole.isfinite():
            wrong |= not (one == whole or (one.isnan() and whole.isnan()))
        else:
            wrong |= not bool((one - truth).abs() <= limit)
    assert found.correct == (not wrong)
    answer = Answer(np.arange(count), right.numpy(), limits.numpy(), right.numpy(), limits.numpy(), scale)
    assert compare(exact.numpy(), answer, expected, whole=True).correct == found.correct


@pytest.mark.parametrize(
    ("dtype", "count", "times", "correct"),
    [
        ("float16", 2, 1.9, True),
        ("float16", 3, 1.9, False),
        ("float16", 1, 2.1, False),
        ("bfloat16", 2, 1.9, True),
        ("float32", 1, 1.1, False),
    ],
)
def test_of_half_precision_few_elements_may_exceed_their_tolerance_a_little(
    dtype: str, count: int, times: float, *, correct: bool
) -> None:
    right, limits = np.ones(200_000), np.full(200_000, 2.0**-6)
    got = right.astype(np.float32)
    got[:: len(got) // count][:count] += np.float32(times * 2.0**-6)
    answer = Answer(np.arange(len(got)), right, limits, right, limits, 1.0)
    found = compare(got, answer, Expected((len(got),), dtype, False), whole=True)
    assert found.correct is correct
    assert found.error > found.tolerance  # the record still tells the worst element


@pytest.mark.parametrize(
    ("places", "correct"),
    [((5, 70_001, 300_007), True), ((5, 4_005, 300_005), False), ((5, 4_005), True), ((250_000, 250_100), True)],
    ids=["scattered", "three of a column of 400", "two of a column of 400", "two of a row of 1,000"],
)
def test_elements_that_exceed_their_tolerance_are_not_crowded(places: tuple[int, ...], *, correct: bool) -> None:
    right, limits = np.ones(400_000), np.full(400_000, 0.01)
    got = right.copy()
    got[list(places)] += 0.015
    answer = Answer(np.arange(4), right[:4], limits[:4], right, limits)
    assert compare(got, answer, Expected((400, 1000), "bfloat16", False), whole=True).correct == correct


def test_of_a_small_output_no_element_may_exceed_its_tolerance() -> None:
    right, limits = np.ones(99_999), np.full(99_999, 2.0**-6)
    got = right.astype(np.float32)
    got[7] += np.float32(1.1 * 2.0**-6)
    answer = Answer(np.arange(len(got)), right, limits, right, limits, 1.0)
    assert not compare(got, answer, Expected((len(got),), "bfloat16", False), whole=True).correct
