"""Large outputs are compared some rows at a time; what comes out is the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle import numerics
from cudal1_env.judge.oracle.numerics import Answer, compare, row_scales
from cudal1_worker import oracle, own_error
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.sampled_from([0.0, 1.0, -2.5, 1e-6, 3e30, float("inf"), float("-inf"), float("nan")])
SHAPES = st.sampled_from([(), (1,), (7,), (5, 3), (2, 3, 4), (16, 1), (1, 20)])


def drawn(data: st.DataObject, count: int) -> list[float]:
    return data.draw(st.lists(VALUES, min_size=count, max_size=count))


@given(st.data(), SHAPES, st.integers(1, 30))
def test_pieces_change_nothing(data: st.DataObject, shape: Sequence[int], piece: int) -> None:
    count = int(np.prod(shape))
    right = np.array(drawn(data, count))
    # Some elements differ, mostly by what is within a tolerance.
    got = np.where(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), right * 1.001, right)
    expected = Expected(tuple(shape), "float32", False)

    def outcomes() -> list[object]:
        scales = row_scales(right, tuple(shape))
        answer = Answer(np.arange(count), right, right, 3e30, 1e28, row_tolerance=0.01, row_scales=scales)
        mine, theirs = torch.tensor(got).reshape(tuple(shape)).float(), torch.tensor(right).reshape(tuple(shape))
        told = [*own_error.report_of_any(mine, theirs), *own_error.report_of_finite(mine, theirs)]
        told.append(torch.tensor(float(oracle.alike(theirs, mine))))
        found = compare(got.astype(np.float32), answer, expected, whole=True)
        return [scales.tolist(), repr(found.error), found.right, [float(one) for one in told]]

    whole = outcomes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "_PIECE", piece)
        patch.setattr(own_error, "_PART", piece)
        assert repr(outcomes()) == repr(whole)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 50))
def test_pieces_of_integers_change_nothing(values: list[int], piece: int) -> None:
    right = np.array(values)
    got = right.copy()
    got[::3] += 1
    expected = Expected((len(values),), "int64", False)
    answer = Answer(np.arange(len(values)), right, right, 3.0, 0.4)
    whole = compare(got, answer, expected, whole=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "_PIECE", piece)
        assert compare(got, answer, expected, whole=True) == whole


@pytest.mark.parametrize("row_value", [1e-6, 1.0])
def test_an_error_in_a_small_row_is_found_in_any_piece(monkeypatch: pytest.MonkeyPatch, row_value: float) -> None:
    monkeypatch.setattr(numerics, "_PIECE", 64)
    right = np.ones((40, 16))
    right[33] = row_value
    got = right.copy()
    got[33] = 0.0
    answer = Answer(
        np.arange(640), right.ravel(), right.ravel(), 1.0, 1e-3, row_tolerance=1e-3, row_scales=right.max(1)
    )
    assert not compare(got.ravel(), answer, Expected((40, 16), "float64", False), whole=True).right


FINITE = st.floats(-4, 4).map(lambda one: 0.0 if abs(one) < 1 else one)
EXTREMES = st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e5, 3.5e38, 1e300])


@given(st.data(), SHAPES, st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
def test_the_few_passes_tell_what_the_many_tell_or_that_something_is_not_finite(
    data: st.DataObject, shape: Sequence[int], dtype: torch.dtype
) -> None:
    count = int(np.prod(shape))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    values = st.lists(st.one_of(FINITE, FINITE, FINITE, EXTREMES), min_size=count, max_size=count)
    answer = torch.tensor(data.draw(values), dtype=torch.float64).reshape(tuple(shape))
    own = torch.where(torch.rand(answer.shape) < 0.9, answer, torch.tensor(data.draw(values)).reshape(tuple(shape)))
    own = own.to(dtype)
    every, few = own_error.read([own_error.report_of_any(own, answer), own_error.report_of_finite(own, answer)])
    if own_error.is_finite(few, own_error.most_of(dtype)):
        assert few == {**every, "mismatches": 0.0, "all_finite": 1.0}
        scales = row_scales(answer.flatten(), tuple(shape))
        assert torch.equal(row_scales(answer.flatten(), tuple(shape), all_finite=True), scales)
        assert np.array_equal(row_scales(answer.flatten().numpy(), tuple(shape), all_finite=True), scales.numpy())
    else:
        assert (
            not own.isfinite().all() or not answer.to(dtype).isfinite().all() or every["own_row_error"] == float("inf")
        )


@given(st.data(), SHAPES, st.sampled_from(["float32", "float64", "float16", "bfloat16"]), st.booleans())
def test_outputs_are_compared_as_element_by_element(
    data: st.DataObject, shape: Sequence[int], dtype: str, rows: bool
) -> None:
    count, expected = int(np.prod(shape)), Expected(tuple(shape), dtype, False)
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    values = st.lists(st.one_of(FINITE, FINITE, FINITE, EXTREMES), min_size=count, max_size=count)
    right = torch.tensor(data.draw(values), dtype=torch.float64)
    other = torch.where(
        torch.rand(count) < 0.8, right * (1 + 1e-3 * torch.rand(count)), torch.tensor(data.draw(values))
    )
    got = other.to(getattr(torch, dtype))
    scale = float(right[right.isfinite()].abs().max()) if right.isfinite().any() else 0.0
    tolerance, row_tolerance = data.draw(st.sampled_from([1e-2, 1.0, 1e31])), 0.01 if rows else float("inf")
    scales = row_scales(right, tuple(shape))
    answer = Answer(
        np.arange(count), right.numpy(), right, scale, tolerance, row_tolerance=row_tolerance, row_scales=scales
    )
    found = compare(got, answer, expected, whole=True)
    exact, rounded = got.double(), right.to(getattr(torch, dtype)).double()
    allowed = (0.01 * scales).clip(min=float(np.finfo(np.float32).tiny))
    per_element = allowed.repeat_interleave(expected.shape[-1] if expected.shape else 1)
    wrong, worst = False, 0.0
    for one, whole, limit, truth in zip(exact, rounded, per_element, right, strict=True):
        if not whole.isfinite():
            wrong |= not (one == whole or (one.isnan() and whole.isnan()))
        elif not one.isfinite():
            wrong = True
        else:
            worst = max(worst, float((one - truth).abs()))
            wrong |= rows and bool((one - truth).abs() > limit)
    assert found.right == (not wrong and worst <= tolerance)
    answer = Answer(
        np.arange(count),
        right.numpy(),
        right.numpy(),
        scale,
        tolerance,
        row_tolerance=row_tolerance,
        row_scales=scales.numpy(),
    )
    assert compare(exact.numpy(), answer, expected, whole=True).right == found.right
