"""Large outputs are compared some rows at a time; what comes out is the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cudal1_env.judge import numerics
from cudal1_env.judge.numerics import Answer, Expected, compare, row_scales
from cudal1_worker import oracle
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
        told = [*oracle.own_errors(mine, theirs), oracle.scale_of(theirs), oracle.alike(theirs, mine)]
        found = compare(got.astype(np.float32), answer, expected, whole=True)
        return [scales.tolist(), repr(found.error), found.right, [float(one) for one in told]]

    whole = outcomes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "_PIECE", piece)
        patch.setattr(oracle, "_PART", piece)
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
