"""Which tensors share an element, held against the elements' addresses."""

from __future__ import annotations

import itertools

import pytest
from cudal1_worker.overlap import Place, shared
from hypothesis import given
from hypothesis import strategies as st

PLACES = st.integers(1, 3).flatmap(
    lambda rank: st.builds(
        Place,
        address=st.integers(1000, 1012).map(lambda word: 4 * word),
        shape=st.lists(st.integers(0, 3), min_size=rank, max_size=rank).map(tuple),
        strides=st.lists(st.integers(0, 7), min_size=rank, max_size=rank).map(tuple),
        item_bytes=st.just(4),
    )
)


def addresses(place: Place) -> set[int]:
    indices = itertools.product(*map(range, place.shape))
    return {
        place.address + 4 * sum(n * step for n, step in zip(index, place.strides, strict=True)) for index in indices
    }


@given(PLACES, PLACES)
def test_shared_is_that_some_address_is_in_both(one: Place, other: Place) -> None:
    assert shared(one, other) == bool(addresses(one) & addresses(other))


@pytest.mark.parametrize(("begin", "expected"), [(4096 + 12, False), (4096 + 4, True)])
def test_halves_of_a_matrix_share_nothing_and_shifted_columns_do(begin: int, expected: bool) -> None:
    left = Place(4096, (8, 3), (6, 1), 4)
    assert shared(Place(begin, (8, 3), (6, 1), 4), left) is expected


def test_tensors_at_address_zero_share_it() -> None:
    assert shared(Place(0, (), (), 4), Place(0, (2, 2), (2, 1), 4))
