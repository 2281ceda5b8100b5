"""Which bytes of a GPU worker's outputs are read, without a GPU: the plan that is made before the clock runs."""

from __future__ import annotations

import struct

import numpy as np
from cudal1_env.judge.device.base import Output
from cudal1_env.judge.device.cuda_memory import _Plan, _rows
from cudal1_env.judge.device.tensors import Expected
from cudal1_worker import protocol as wire
from hypothesis import given
from hypothesis import strategies as st

EXPECTED = (Expected((3, 4), "float32", aliases=False), Expected((5,), "float16", aliases=False))
STRIDES = ((4, 1), (2,))
HOST = 1 << 44


def page_of(addresses: list[int]) -> bytearray:
    """What a worker writes about outputs of these two forms, in turn."""
    page = bytearray(wire.DESCRIPTOR_OFFSET)
    struct.pack_into("=Q", page, 8 * wire.OUTPUTS, len(addresses))
    for k, address in enumerate(addresses):
        want, strides = EXPECTED[k % 2], STRIDES[k % 2]
        padding = (0,) * (wire.MAX_DIMENSIONS - len(strides))
        code = wire.DTYPES.index(want.dtype)
        page += wire.DESCRIPTOR.pack(address, code, len(strides), 1, *want.shape, *padding, *strides, *padding)
    return page


def plan_of(positions: list[np.ndarray]) -> _Plan:
    outputs = [Output(0, STRIDES[k % 2], EXPECTED[k % 2]) for k in range(len(positions))]
    rows = _rows(bytes(page_of([0] * len(positions))), len(positions))
    return _Plan(outputs, positions, rows[:, 1:], HOST)


@given(st.data(), st.integers(1, 6))
def test_each_element_is_read_where_its_output_says(data: st.DataObject, calls: int) -> None:
    positions = [
        np.array(data.draw(st.lists(st.integers(0, EXPECTED[k % 2].size - 1), max_size=4)), dtype=np.int64)
        for k in range(2 * calls)
    ]
    starts = data.draw(st.lists(st.integers(0, 1 << 30), min_size=2 * calls, max_size=2 * calls))
    plan = plan_of(positions)
    wanted = [
        1000 + start + int(offset)
        for k, start in enumerate(starts)
        for offset in Output(0, STRIDES[k % 2], EXPECTED[k % 2]).offsets(positions[k])
    ]
    assert plan.sources(1000, np.array(starts, dtype=np.uint64)).tolist() == wanted
    assert plan.sizes.sum() == plan.size_bytes
    ends = plan.targets + plan.sizes - np.uint64(HOST)
    assert ends.tolist() == np.cumsum(plan.sizes).tolist()
    memory = np.arange(plan.size_bytes, dtype=np.uint8)
    assert [part.size for part in plan.split(memory)] == [one.size for one in positions]


@given(st.integers(1, 4), st.data())
def test_only_addresses_may_differ_from_the_plan(calls: int, data: st.DataObject) -> None:
    plan = plan_of([np.zeros(1, dtype=np.int64)] * (2 * calls))
    addresses = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=2 * calls, max_size=2 * calls))
    page = page_of(addresses)
    found = plan.addresses(bytes(page))
    assert found is not None
    assert found.tolist() == addresses
    size = wire.DESCRIPTOR.size
    place = data.draw(st.integers(0, 2 * calls - 1))
    inside = data.draw(st.integers(8, size - 1))
    page[wire.DESCRIPTOR_OFFSET + place * size + inside] ^= data.draw(st.integers(1, 255))
    assert plan.addresses(bytes(page)) is None
    struct.pack_into("=Q", page, 8 * wire.OUTPUTS, 2 * calls + 1)
    assert plan.addresses(bytes(page)) is None
