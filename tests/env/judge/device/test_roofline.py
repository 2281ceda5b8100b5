"""Roofline: which bytes count, and what is called impossible."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cudal1_data import Task
from cudal1_env.gate import AuditReport, InputSensitivity, TaskAudit, reference_sha256
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.device.roofline import Roofline, moved_bytes, roofline_of
from cudal1_env.records import PROTOCOL_VERSION, Status
from cudal1_env.reward import reward_of
from hypothesis import given
from hypothesis import strategies as st

LATENCIES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)


# --- what counts ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0.0, 1.0)), max_size=5), st.integers(0, 1 << 40))
def test_no_more_bytes_count_than_there_are(inputs: list[tuple[int, float]], written: int) -> None:
    sizes, shares = [size for size, _ in inputs], [share for _, share in inputs]
    moved = moved_bytes(sizes, written, shares, level2_bytes=1 << 20)
    assert max(0, written - (1 << 20)) <= moved <= sum(sizes) + written
    assert moved_bytes(sizes, written, [*shares, 1.0], level2_bytes=1 << 20) == max(0, written - (1 << 20))


def test_outputs_count_beyond_the_cache_and_inputs_by_their_sensitivity() -> None:
    assert moved_bytes([1000, 500], 300, [0.5, 1.0], level2_bytes=100) == 500 + 500 + 200
    assert moved_bytes([1000, 500], 300, [], level2_bytes=100) == 200
    assert moved_bytes([1000, 500], 300, [], level2_bytes=400) == 0


def test_the_roofline_is_bytes_over_bandwidth() -> None:
    roofline = roofline_of(4_000_000_000, 4000.0)
    assert roofline is not None
    assert roofline.bound_ms == pytest.approx(1.0)
    assert roofline_of(0, 4000.0) is None


# --- what is impossible --------------------------------------------------------------------------------------------


@given(LATENCIES, st.floats(1e-3, 1e3))
def test_nothing_at_the_roofline_or_above_it_is_forbidden(latencies: list[float], bound_ms: float) -> None:
    roofline = Roofline(1, bound_ms)
    if roofline.forbids(latencies):
        assert sorted(latencies)[len(latencies) // 2 - (len(latencies) % 2 == 0)] < 0.95 * bound_ms
        assert not roofline.forbids(latencies, resolution_ms=bound_ms)
        assert Roofline(1, 2 * bound_ms).forbids(latencies)


def test_noise_does_not_make_a_latency_impossible() -> None:
    roofline = Roofline(1, 1.0)
    assert roofline.forbids([0.7] * 8)
    assert not roofline.forbids([0.97] * 8)
    noisy = [0.3, 1.2, 0.5, 1.1, 0.6, 1.3, 0.7, 1.0, 0.4]
    assert not roofline.forbids(noisy), "a candidate is denied only where it is sure"
    assert roofline.is_broken_by([one - 0.1 for one in noisy]), "and the roofline dropped where it is doubtful"
    assert not roofline.is_broken_by([0.97] * 8)


REFERENCE_S, CANDIDATE_S = 0.02, 0.002
"""How long each program sleeps in a call: no less, and not 7 ms more in most calls even on a busy machine."""
HEAD = "import time\nimport torch\nimport torch.nn as nn\n"
CALL = "    def forward(self, a, b):\n        time.sleep({seconds})\n        return torch.add(b, a, alpha=2)\n"
SLOW = Task(
    id="file/slow",
    name="slow",
    level=1,
    origin="file",
    source=f"{HEAD}class Model(nn.Module):\n{CALL.format(seconds=REFERENCE_S)}"
    "def get_inputs():\n    return [torch.randn(256, 512), torch.randn(256, 512)]\n"
    "def get_init_inputs():\n    return []\n",
)
FAST = f"{HEAD}class ModelNew(nn.Module):\n{CALL.format(seconds=CANDIDATE_S)}"


@pytest.mark.slow
def test_a_candidate_below_the_roofline_is_impossible_and_earns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], int, tuple[float, ...]]] = []
    roofline: list[Roofline | None] = [None]

    def known(
        self: CpuDevice, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float]
    ) -> Roofline | None:
        asked.append((list(input_bytes), output_bytes, tuple(shares)))
        return roofline[0]

    monkeypatch.setattr(CpuDevice, "roofline", known)
    entry = TaskAudit(
        name=SLOW.id,
        sha256=reference_sha256(SLOW),
        verdict="sound",
        sets=1,
        inputs=(
            InputSensitivity(tested=32, influential=32, share=0.8),
            InputSensitivity(tested=32, influential=32, share=0.7),
        ),
    )
    with Judge(JudgeSettings(device="cpu")) as judge:
        judge.learn(
            AuditReport(suite="file", device="cpu", max_sets=1, tasks=(entry,), protocol=PROTOCOL_VERSION),
        )
        plain = judge.evaluate(SLOW, FAST)
        assert plain.status is Status.CORRECT, plain.message
        assert plain.roofline_ms is None
        size = 256 * 512 * 4
        assert asked == [([size, size], size, (0.8, 0.7))]

        roofline[0] = Roofline(1000, CANDIDATE_S * 1e3 / 10)
        fast = judge.evaluate(SLOW, FAST)
        assert fast.status is Status.CORRECT, fast.message
        assert fast.roofline_ms is not None
        assert fast.roofline_ms == roofline[0].bound_ms
        assert fast.candidate is not None
        assert fast.roofline_fraction == pytest.approx(fast.roofline_ms / fast.candidate.median_ms)

        roofline[0] = Roofline(1000, REFERENCE_S * 1e3 / 2)
        forbidden = judge.evaluate(SLOW, FAST)
        assert forbidden.status is Status.IMPOSSIBLE, forbidden.message
        assert "no correct program is that fast" in forbidden.message
        assert forbidden.roofline_fraction is not None
        assert forbidden.roofline_fraction > 1.05
        assert reward_of(forbidden) == 0.0

        roofline[0] = Roofline(1000, REFERENCE_S * 1e3 * 100)
        nonsense = judge.evaluate(SLOW, FAST)
        assert nonsense.status is Status.CORRECT, "a roofline that the reference breaks is none"
        assert nonsense.roofline_ms is None
