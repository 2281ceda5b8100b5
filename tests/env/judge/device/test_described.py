"""However a worker describes its outputs, the judge finds a broken contract or outputs that its arithmetic can hold."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from cudal1_env.judge.device.base import Contract, address_of, parse_outputs
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.device.reading import Plan
from cudal1_env.judge.device.tensors import Expected
from cudal1_worker import protocol as wire
from cudal1_worker.overlap import shared
from hypothesis import given
from hypothesis import strategies as st

NO_PROCESS = 1 << 30
ADDRESSES = st.sampled_from((0, 4096, 4104, 1 << 46, (1 << 57) - 64, 1 << 63, (1 << 64) - 8))
STRIDES = st.sampled_from((1, 4, 1 << 20, 1 << 40, 1 << 57, 1 << 60, 1 << 61, 1 << 62, (1 << 63) - 1))
SHAPES = st.sampled_from(((4,), (1, 4), (2, 2), (0, 3), ()))


def page(shapes: list[tuple[int, ...]], data: st.DataObject) -> bytes:
    """A reply page that describes outputs of these shapes with any addresses and strides."""
    head = bytearray(wire.DESCRIPTOR_OFFSET)
    head[8 * wire.OUTPUTS : 8 * wire.OUTPUTS + 8] = len(shapes).to_bytes(8, "little")
    for shape in shapes:
        rest = (0,) * (wire.MAX_DIMENSIONS - len(shape))
        strides = [data.draw(STRIDES) for _ in shape]
        head += wire.DESCRIPTOR.pack(data.draw(ADDRESSES), 0, len(shape), 0, *shape, *rest, *strides, *rest)
    return bytes(head)


@given(st.lists(SHAPES, min_size=1, max_size=2), st.data())
def test_no_description_of_outputs_raises_anything_but_a_broken_contract(
    shapes: list[tuple[int, ...]], data: st.DataObject
) -> None:
    expected = tuple(Expected(shape, "float32", aliases=False) for shape in shapes)
    memory = CpuDevice(None).memory(NO_PROCESS, 8, 8, 0)
    with contextlib.closing(memory), contextlib.suppress(Contract):
        outputs = parse_outputs(page(shapes, data), expected, 0)
        for one, other in itertools.pairwise(outputs):
            shared(one.place, other.place)
        for output in outputs:
            with contextlib.suppress(Contract):
                memory.whole([output])
            with contextlib.suppress(Contract):
                memory.overwrite([output])
        memory.read(Plan(outputs, [np.arange(one.size) for one in expected]), outputs)


@given(st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.integers()))
def test_what_is_no_address_becomes_zero(told: object) -> None:
    assert 0 <= address_of(told) < 1 << 57


def test_gaps_of_all_outputs_count_together() -> None:
    """Two outputs of 64 MiB each are within the limit, two of 128 MiB and some bytes are not."""
    shape, step = (2, 4), 1 << 24
    expected = tuple(Expected(shape, "float32", aliases=False) for _ in range(2))
    head = bytearray(wire.DESCRIPTOR_OFFSET)
    head[8 * wire.OUTPUTS : 8 * wire.OUTPUTS + 8] = (2).to_bytes(8, "little")
    rest = (0,) * (wire.MAX_DIMENSIONS - 2)
    for address in (4096, 8192):
        head += wire.DESCRIPTOR.pack(address, 0, 2, 0, *shape, *rest, step, 1, *rest)
    assert len(parse_outputs(bytes(head), expected, 0)) == 2
    far = bytes(head).replace(step.to_bytes(8, "little"), (2 * step).to_bytes(8, "little"))
    with pytest.raises(Contract, match="large gaps"):
        parse_outputs(far, expected, 0)
