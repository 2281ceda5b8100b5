"""The speed of light: which bytes count, what is called impossible, and which kept peaks are believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from cudal1_data import Task, load_task
from cudal1_env.audit.run import share_that_matters
from cudal1_env.calibration import spread_path
from cudal1_env.gate import AuditReport, InputShare, TaskAudit, reference_sha256
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.audit import AuditJudge
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.device.cuda.peaks import Peaks, known_peaks, load_peaks, peaks_path
from cudal1_env.judge.device.roofline import Floor, floor_of, moved_bytes
from cudal1_env.records import Status
from cudal1_env.reward import reward_of
from cudal1_worker.oracle.matter import Variation
from hypothesis import given
from hypothesis import strategies as st

PEAKS = Peaks(uuid="00-aa", driver="1.2", bandwidth_gb_s=4000.0)

LATENCIES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)


# --- what counts ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0.0, 1.0)), max_size=5), st.integers(0, 1 << 40))
def test_no_more_bytes_count_than_there_are(inputs: list[tuple[int, float]], written: int) -> None:
    sizes, shares = [size for size, _ in inputs], [share for _, share in inputs]
    moved = moved_bytes(sizes, written, shares, level2_bytes=1 << 20)
    assert max(0, written - (1 << 20)) <= moved <= sum(sizes) + written
    assert moved_bytes(sizes, written, [*shares, 1.0], level2_bytes=1 << 20) == max(0, written - (1 << 20))


def test_outputs_count_beyond_the_cache_and_inputs_by_what_matters() -> None:
    assert moved_bytes([1000, 500], 300, [0.5, 1.0], level2_bytes=100) == 500 + 500 + 200
    assert moved_bytes([1000, 500], 300, [], level2_bytes=100) == 200
    assert moved_bytes([1000, 500], 300, [], level2_bytes=400) == 0


def test_the_floor_is_bytes_over_bandwidth() -> None:
    floor = floor_of(4_000_000_000, 4000.0)
    assert floor is not None
    assert floor.floor_ms == pytest.approx(1.0)
    assert floor_of(0, 4000.0) is None


# --- what is impossible --------------------------------------------------------------------------------------------


@given(LATENCIES, st.floats(1e-3, 1e3))
def test_nothing_at_the_floor_or_above_it_is_forbidden(latencies: list[float], floor_ms: float) -> None:
    floor = Floor(1, floor_ms)
    if floor.forbids(latencies):
        assert sorted(latencies)[len(latencies) // 2 - (len(latencies) % 2 == 0)] < 0.8 * floor_ms
        assert not floor.forbids(latencies, resolution_ms=floor_ms)
        assert Floor(1, 2 * floor_ms).forbids(latencies)


def test_noise_does_not_make_a_latency_impossible() -> None:
    floor = Floor(1, 1.0)
    assert floor.forbids([0.7] * 8)
    assert not floor.forbids([0.85] * 8)
    noisy = [0.3, 1.2, 0.5, 1.1, 0.6, 1.3, 0.7, 1.0, 0.4]
    assert not floor.forbids(noisy), "a candidate is denied only where it is sure"
    assert floor.is_broken_by([one - 0.1 for one in noisy]), "and the floor dropped where it is doubtful"
    assert not floor.is_broken_by([0.85] * 8)


HEAD = "import torch\nimport torch.nn as nn\n"
INPUTS = "def get_inputs():\n    return [torch.randn(256, 512), torch.randn(256, 512)]\n"
SLOW = Task(
    id="file/slow",
    name="slow",
    level=1,
    origin="file",
    source=f"{HEAD}class Model(nn.Module):\n    def forward(self, a, b):\n        for _ in range(200):\n"
    f"            out = a * 2 + b\n        return out\n{INPUTS}def get_init_inputs():\n    return []\n",
)
ONCE = f"{HEAD}class ModelNew(nn.Module):\n    def forward(self, a, b):\n        return torch.add(b, a, alpha=2)\n"


@pytest.mark.slow
def test_a_candidate_below_the_floor_is_impossible_and_earns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], int, tuple[float, ...], bool]] = []
    floor: list[Floor | None] = [None]

    def known(
        self: CpuDevice, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float], *, again: bool = False
    ) -> Floor | None:
        asked.append((list(input_bytes), output_bytes, tuple(shares), again))
        return floor[0]

    monkeypatch.setattr(CpuDevice, "floor", known)
    entry = TaskAudit(
        name=SLOW.id,
        sha256=reference_sha256(SLOW),
        verdict="sound",
        sets=1,
        inputs=(InputShare(tested=32, mattered=32, share=0.8), InputShare(tested=32, mattered=32, share=0.7)),
    )
    with Judge(JudgeSettings(device="cpu")) as judge:
        judge.learn(AuditReport(suite="file", device="cpu", most_sets=1, tasks=(entry,)))
        plain = judge.evaluate(SLOW, ONCE)
        assert plain.status is Status.CORRECT, plain.message
        assert plain.roofline_ms is None
        size = 256 * 512 * 4
        assert asked == [([size, size], size, (0.8, 0.7), False)]
        assert plain.reference is not None
        assert plain.candidate is not None
        reference_ms = plain.reference.median_ms

        floor[0] = Floor(1000, plain.candidate.median_ms / 10)
        fast = judge.evaluate(SLOW, ONCE)
        assert fast.status is Status.CORRECT, fast.message
        assert fast.roofline_ms is not None
        assert fast.roofline_ms == floor[0].floor_ms
        assert fast.candidate is not None
        assert fast.roofline_fraction == pytest.approx(fast.roofline_ms / fast.candidate.median_ms)

        # Between the two, which lie far apart: a busy machine moves neither of them across.
        floor[0] = Floor(1000, reference_ms / 4)
        forbidden = judge.evaluate(SLOW, ONCE)
        assert forbidden.status is Status.IMPOSSIBLE, forbidden.message
        assert "no correct program is that fast" in forbidden.message
        assert asked[-1][-1], "the device's peaks are measured again first"
        assert forbidden.roofline_fraction is not None
        assert forbidden.roofline_fraction > 1.25
        assert reward_of(forbidden) == 0.0

        floor[0] = Floor(1000, reference_ms * 100)
        nonsense = judge.evaluate(SLOW, ONCE)
        assert nonsense.status is Status.CORRECT, "a floor that the reference breaks is none"
        assert nonsense.roofline_ms is None


# --- peaks ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cudal1"


def never() -> Peaks:
    raise AssertionError("measured although it is kept")


def test_peaks_are_measured_once_and_kept_for_a_gpu_and_its_driver(cache: Path) -> None:
    assert known_peaks("00-aa", "1.2", lambda: PEAKS) == PEAKS
    assert known_peaks("00-aa", "1.2", never) == PEAKS
    assert load_peaks("00-aa", "1.3") is None
    assert load_peaks("00-bb", "1.2") is None
    assert [path.name for path in cache.iterdir()] == ["peaks-00-aa.json"]


def test_measuring_again_keeps_the_better_figure(cache: Path) -> None:
    known_peaks("00-aa", "1.2", lambda: PEAKS)
    throttled = PEAKS.model_copy(update={"bandwidth_gb_s": 900.0})
    best = known_peaks("00-aa", "1.2", lambda: throttled, again=True)
    assert best == PEAKS
    assert load_peaks("00-aa", "1.2") == best


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "\0",
        PEAKS.model_dump_json()[:-9],
        PEAKS.model_copy(update={"bandwidth_gb_s": math.inf}).model_dump_json(),
        PEAKS.model_copy(update={"bandwidth_gb_s": -1.0}).model_dump_json(),
        PEAKS.model_copy(update={"uuid": "00-bb"}).model_dump_json(),
        PEAKS.model_copy(update={"driver": "9"}).model_dump_json(),
    ],
)
def test_what_cannot_be_believed_is_measured_again(cache: Path, text: str) -> None:
    cache.mkdir()
    path = peaks_path("00-aa")
    path.write_text(text)
    path.chmod(0o600)
    assert known_peaks("00-aa", "1.2", lambda: PEAKS) == PEAKS
    assert load_peaks("00-aa", "1.2") == PEAKS


def test_a_file_that_others_may_write_is_not_believed(cache: Path) -> None:
    known_peaks("00-aa", "1.2", lambda: PEAKS)
    peaks_path("00-aa").chmod(0o666)
    assert load_peaks("00-aa", "1.2") is None


def test_each_device_keeps_a_spread_of_its_own(cache: Path) -> None:
    assert len({spread_path(), spread_path("cuda", "00-aa"), spread_path("cuda", "00-bb")}) == 3


# --- which elements matter -----------------------------------------------------------------------------------------


def counts(function: object, values: list[torch.Tensor], others: list[list[torch.Tensor]]) -> list[int]:
    """How many elements of each input change the answer."""

    def exact(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [function(*[x.double() if x.is_floating_point() else x for x in inputs])]  # type: ignore[operator]

    variation = Variation(exact, values, others)
    assert not variation.changes(None, 0)
    found = [sum(variation.changes(k, i) for i in range(value.numel())) for k, value in enumerate(values)]
    assert not variation.changes(None, 0), "every element is put back"
    return found


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_elements_that_an_answer_depends_on_matter() -> None:
    x = draw(40)
    assert counts(torch.relu, [x], []) == [40], "also where the value itself is hidden by the function"
    assert counts(lambda a: a.sum(), [x], []) == [40]
    assert counts(lambda a: a.max(), [x], []) == [40]
    assert counts(lambda a: a.argmax(), [x], []) == [40]
    assert counts(lambda a: a[::4], [x], []) == [10]
    assert counts(lambda a: a * 0, [x], []) == [0]
    assert counts(lambda a: a.clamp(0, 1), [x.sigmoid()], []) == [40]


def test_structure_that_a_program_may_rely_on_does_not_matter() -> None:
    lower = torch.tril(draw(8, 8))
    assert counts(lambda a: a @ a.mT, [lower], []) == [36], "zeros stay zero"
    mask = torch.tril(torch.ones(8, 8))
    assert counts(lambda a, m: a * m, [draw(8, 8), mask], [[draw(8, 8), mask]]) == [36, 0], "a constant mask"
    table, rows = draw(64, 2), torch.arange(0, 16, 2)
    other = [draw(64, 2, seed=1), torch.arange(1, 17, 2)]
    assert counts(lambda t, i: t[i], [table, rows], [other]) == [16, 8], "labels take values of other sets"
    symmetric = draw(6, 6) + draw(6, 6).mT
    assert Variation(lambda v: v, [symmetric, draw(4, 4)], []).most() == [0.5, 1.0]
    assert Variation(lambda v: v, [torch.softmax(draw(4, 10).double(), -1)], []).most() == [0.9]


@given(st.integers(0, 32), st.floats(0.0, 1.0))
def test_a_share_is_a_cautious_one(mattered: int, most: float) -> None:
    one = share_that_matters(32, mattered, most)
    assert 0.0 <= one.share <= min(most, mattered / 32)


def test_the_bound_holds_with_ninety_nine_percent() -> None:
    assert share_that_matters(0, 0, 1.0).share == 0.0
    assert share_that_matters(32, 32, 1.0).share == pytest.approx(0.01 ** (1 / 32))
    # The chance of seeing 20 or more of 32 where the share is the bound is 1 %.
    p = share_that_matters(32, 20, 1.0).share
    tail = sum(math.comb(32, k) * p**k * (1 - p) ** (32 - k) for k in range(20, 33))
    assert tail == pytest.approx(0.01)


@pytest.mark.slow
def test_the_gate_finds_out_what_matters_in_a_real_task() -> None:
    with AuditJudge(JudgeSettings(device="cpu")) as judge:
        (tested, mattered, most), *rest = judge.inputs_that_matter(load_task("starter/triangular_matmul", device="cpu"))
        assert (tested, most) == (32, 1.0)
        assert 6 <= mattered <= 26, "about half of a triangular matrix"
        assert len(rest) == 1
        assert judge.inputs_that_matter(load_task("starter/rms_norm", device="cpu")) == [(32, 32, 1.0)]
