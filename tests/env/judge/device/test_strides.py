"""An output's elements share memory only where those of the reference's do."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from cudal1_env.judge.device.strides import apart, own_memory
from cudal1_env.judge.device.tensors import Expected
from hypothesis import given
from hypothesis import strategies as st

DIMENSIONS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), max_size=4)


@given(DIMENSIONS)
def test_elements_called_apart_share_no_memory(dimensions: list[tuple[int, int]]) -> None:
    places = [sum(p) for p in itertools.product(*([k * s for k in range(n)] for n, s in dimensions))]
    if apart(dimensions):
        assert len(set(places)) == len(places)


@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_views_of_memory_in_full_are_apart(data: st.DataObject, shape: list[int]) -> None:
    whole = torch.zeros([n + data.draw(st.integers(0, 2)) for n in shape])
    view = whole[tuple(slice(0, n) for n in shape)].permute(*data.draw(st.permutations(range(len(shape)))))
    view = view[tuple(slice(None, None, data.draw(st.integers(1, 2))) for _ in shape)]
    assert own_memory(view.stride(), Expected(tuple(view.shape), "float32", aliases=False))


@given(st.lists(st.tuples(st.integers(2, 4), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_only_what_the_reference_repeats_may_be_repeated(dimensions: list[tuple[int, bool, bool]]) -> None:
    shape = tuple(n for n, _, _ in dimensions)
    in_full = torch.zeros(shape).stride()
    theirs = tuple(0 if twice else s for s, (_, twice, _) in zip(in_full, dimensions, strict=True))
    mine = tuple(0 if twice else s for s, (_, _, twice) in zip(in_full, dimensions, strict=True))
    allowed = all(twice or not also for _, twice, also in dimensions)
    assert own_memory(mine, Expected(shape, "float32", aliases=False, strides=theirs)) == allowed


def test_the_references_own_strides_are_allowed() -> None:
    windows = torch.zeros(20).unfold(0, 5, 2)
    assert not own_memory(windows.stride(), Expected(tuple(windows.shape), "float32", aliases=False))
    assert own_memory(windows.stride(), Expected(tuple(windows.shape), "float32", False, windows.stride()))
    assert own_memory((0, 0), Expected((1, 1), "float32", aliases=False))
    assert own_memory((0, 0), Expected((0, 5), "float32", aliases=False))
    assert not own_memory((np.int64(3), 2), Expected((3, 4), "float32", aliases=False)), "offsets 6 meet"
