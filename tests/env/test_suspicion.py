"""When the reference counts as slowed beside the candidate: often enough to be seen, and rarely by noise."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from cudal1_env.judge.measure import interference as suspicion
from cudal1_env.judge.measure.interference import slowed
from cudal1_env.judge.measure.trial import SOLO_AFTER, SOLO_TURNS
from cudal1_env.testing.noise import MODELS, Autoregressive, NoiseModel

LAUNCHES = 500


def test_a_clear_slowdown_counts_and_a_small_one_does_not() -> None:
    alone = [1.0, 1.01, 0.99, 1.0]
    assert slowed([1.2, 1.21, 1.19, 1.2, 1.2, 1.2, 1.22, 1.18], alone, alone)
    assert not slowed([1.04, 1.05, 1.04, 1.03, 1.04, 1.04, 1.05, 1.04], alone, alone)


def test_the_smaller_time_alone_counts() -> None:
    assert slowed([1.2] * 8, [1.2] * 4, [1.0] * 4)
    assert slowed([1.2] * 8, [1.0] * 4, [1.2] * 4)


def test_noise_is_rarely_called_a_slowdown() -> None:
    noise = random.Random(0)
    alarms = 0
    for _ in range(2000):
        times = [noise.lognormvariate(0.0, 0.1) for _ in range(28)]
        alarms += slowed(times[8:], times[:4], times[4:8])
    # Three launches in a row must alarm, and the reference beside itself must not: the rate of one counts cubed.
    assert alarms / 2000 < 0.1


def launch(model: NoiseModel, rng: np.random.Generator, pairs: int, *, share: float = 0.0) -> bool:
    """Whether a simulated launch looks slowed; a share of the turns beside take three times as long."""
    one = model.launch(rng, SOLO_TURNS + pairs + SOLO_AFTER)
    times = np.array(one.reference_ms)
    beside = times[SOLO_TURNS:-SOLO_AFTER] * np.where(rng.random(pairs) < share, 3.0, 1.0)
    return slowed(beside.tolist(), times[:SOLO_TURNS].tolist(), times[-SOLO_AFTER:].tolist())


@pytest.mark.parametrize("pairs", [8, 26])
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"linear drift", "random walk"}))
def test_no_noise_is_often_called_a_slowdown(name: str, pairs: int) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    assert sum(launch(MODELS[name], rng, pairs) for _ in range(LAUNCHES)) <= 0.01 * LAUNCHES


@pytest.mark.parametrize(("share", "pairs", "least"), [(0.5, 8, 0.75), (0.5, 20, 0.9), (0.4, 26, 0.85), (1.0, 8, 0.99)])
def test_what_slows_some_turns_is_seen_too(share: float, pairs: int, least: float) -> None:
    """A queue that runs dry now and then: the median alone sees half of the turns slowed in four of ten launches."""
    rng, model = np.random.default_rng(zlib.crc32(b"queue")), NoiseModel(arm=(Autoregressive(0.05, 0.3),))
    assert sum(launch(model, rng, pairs, share=share) for _ in range(LAUNCHES)) >= least * LAUNCHES
    assert sum(launch(model, rng, pairs) for _ in range(LAUNCHES)) <= 0.01 * LAUNCHES


def test_medians_alone_see_that_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicion, "_FAR", float("inf"))
    rng, model = np.random.default_rng(0), NoiseModel(arm=(Autoregressive(0.05, 0.3),))
    assert 0.3 < sum(launch(model, rng, 20, share=0.5) for _ in range(LAUNCHES)) / LAUNCHES < 0.5


def test_turns_of_an_honest_program_on_a_gpu_are_rarely_suspect(repository: Path) -> None:
    """The reference beside its own program, its last turns taken for those that would come after it."""
    suspect: list[bool] = []
    for line in (repository / "docs/results/judge_cuda.jsonl").read_text().splitlines():
        record = json.loads(line)
        for times, _ in record.get("turns_ms") or ():
            if len(times) > 2 * SOLO_AFTER:
                suspect.append(slowed(times[:-SOLO_AFTER], times[:SOLO_TURNS], times[-SOLO_AFTER:]))
    assert len(suspect) > 500
    assert sum(suspect) < 0.03 * len(suspect)
