"""How many calls are made in one go, and how many a turn has: long enough to be timed, small enough to be kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.measure.trial import SETS_BESIDE, SETS_BY_CALL
from cudal1_env.judge.measure.trials import Launches
from cudal1_env.judge.oracle.client import Anatomy
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.records import Precision
from hypothesis import given
from hypothesis import strategies as st

MIB, GIB = 1 << 20, 1 << 30


def launches(*, bursts: bool = True, most_burst_bytes: int = 4 * GIB) -> Launches:
    device = SimpleNamespace(name="cuda", bursts=bursts, most_burst_bytes=most_burst_bytes)
    return Launches(cast(Any, SimpleNamespace(settings=JudgeSettings(), device=device)), cast(Any, None))


def anatomy(input_bytes: int, output_bytes: int) -> Anatomy:
    return Anatomy(None, [], [], input_bytes, (Expected((output_bytes // 4,), "float32", False),))


def test_short_calls_fill_three_milliseconds() -> None:
    small = anatomy(4096, 4096)
    assert launches()._size("training", 1e-3, small, 10_000, bursts=True)[1:] == (3, 3, 25)
    assert launches()._size("training", 10e-6, small, 10_000, bursts=True)[1:] == (64, 64, 64)
    assert launches()._size("report", 10e-6, small, 10_000, bursts=True)[1:] == (128, 128, 128)
    assert launches()._size("training", 5e-3, small, 10_000, bursts=True)[2:] == (1, 5)
    assert launches()._size("training", 30e-3, small, 10_000, bursts=True)[1:] == (1, 1, 1)


def test_memory_bounds_them() -> None:
    large = anatomy(256 * MIB, 256 * MIB)
    assert launches()._size("training", 0.13e-3, large, 10_000, bursts=True)[1:] == (16, 16, 16)
    assert launches()._size("training", 0.13e-3, large, 72, bursts=True)[1:] == (8, 8, 8)
    assert launches(most_burst_bytes=GIB)._size("training", 0.13e-3, large, 10_000, bursts=True)[1:] == (4, 4, 4)


@given(
    st.sampled_from(["training", "report"]),
    st.floats(1e-6, 1.0),
    st.integers(4, 3 * GIB),
    st.integers(4, 3 * GIB),
    st.integers(1, 5000),
    st.booleans(),
)
def test_turns_are_whole_and_fit(
    precision: Precision, reference_s: float, input_bytes: int, output_bytes: int, room: int, bursts: bool
) -> None:
    one = launches(bursts=bursts)
    pairs, calls, burst, most = one._size(precision, reference_s, anatomy(input_bytes, output_bytes), room, bursts=True)
    assert pairs >= 8
    assert 1 <= burst <= most
    assert calls % burst == 0
    assert calls >= burst
    assert bursts or most == 1
    if most > 1:
        assert most * max(input_bytes, output_bytes // 4 * 4) <= 4 * GIB
        assert SETS_BY_CALL * most + SETS_BESIDE <= room
        assert burst == most or most * reference_s <= 25e-3 * 1.0001
