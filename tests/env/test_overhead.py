"""What is subtracted from a turn: learnt without bias, and not believed where the candidate's death makes it less."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cudal1_env.judge.measure import trial as rounds
from cudal1_env.judge.measure.arm import Arm, Call
from cudal1_env.judge.measure.interference import kept_share
from cudal1_env.judge.measure.overhead import of_cpu, of_gpu, overstated_ms
from cudal1_env.judge.measure.trial import Measurement, Tally
from cudal1_env.judge.oracle.pool import InputSet

LEAST, FIRST, HARNESS = 0.3, 0.01, 0.002


def turns(rng: np.random.Generator, call_ms: float, noise_ms: float) -> tuple[dict[int, Any], dict[int, Any]]:
    empty = {n: LEAST + n * HARNESS + 0.1 * noise_ms * rng.standard_normal(6) for n in (32, 64)}
    full = {n: LEAST + FIRST + n * (HARNESS + call_ms) + noise_ms * rng.standard_normal(6) for n in (32, 64)}
    return empty, full


@pytest.mark.parametrize("call_ms", [0.005, 0.05])
def test_exact_times_give_the_exact_overhead(call_ms: float) -> None:
    found = of_gpu(*turns(np.random.default_rng(0), call_ms, 0.0))
    assert found.of_turn(64) == pytest.approx(LEAST + FIRST + 64 * HARNESS)
    assert found.harness_ms == pytest.approx(HARNESS)


def test_noise_does_not_make_it_too_large() -> None:
    rng = np.random.default_rng(1)
    true = LEAST + FIRST + 64 * HARNESS
    errors = [of_gpu(*turns(rng, 0.05, 0.1)).of_turn(64) - true for _ in range(400)]
    assert abs(statistics.fmean(errors)) < 0.005
    assert statistics.stdev(errors) < 0.03


def test_on_a_cpu_it_is_an_empty_call() -> None:
    found = of_cpu([0.2, 0.1, 0.12], 0.02)
    assert (found.of_turn(1), found.harness_ms) == (pytest.approx(0.12), 0.02)


def test_only_what_is_beyond_noise_was_overstated() -> None:
    rng = np.random.default_rng(2)

    def empty(middle_ms: float) -> list[float]:
        return list(middle_ms + 0.05 * rng.standard_normal(6))

    assert statistics.fmean(overstated_ms(empty(0.4), empty(0.4)) for _ in range(400)) < 0.005
    assert min(overstated_ms(empty(1.4), empty(0.4)) for _ in range(100)) > 0.8


class Hogged:
    """A GPU on which the candidate makes the reference's turns longer until its own first timed call."""

    def __init__(self, inflated_ms: float, seed: int) -> None:
        self.inflated_ms = inflated_ms
        self.random = np.random.default_rng(seed)
        self.device = SimpleNamespace(name="cuda", state=lambda: None)

    def arm(self, call_ms: float, *, is_candidate: bool) -> Arm:
        def call(sets: list[Any], *, empty: bool = False, watch: bool = False) -> Call:
            if is_candidate:
                self.inflated_ms = 0.0
            calls_ms = 0.0 if empty else call_ms * len(sets)
            elapsed_ms = 0.35 + calls_ms + self.inflated_ms + 0.01 * abs(self.random.standard_normal())
            return Call(int(1e6 * elapsed_ms), ((),) * len(sets), 0, 0.0 if watch else None)

        def nothing(*_: object) -> None: ...

        members = {"call": call, "limit": nothing, "at_most": nothing, "close": nothing, "describing_ns": 0}
        return cast(Arm, SimpleNamespace(device=self.device, **members))


@pytest.mark.parametrize(("inflated_ms", "again", "ratio"), [(0.0, True, 1.11), (1.0, True, 1.11), (1.0, False, 1.18)])
def test_an_overhead_that_the_candidate_inflates_gains_nothing(
    monkeypatch: pytest.MonkeyPatch, inflated_ms: float, again: bool, ratio: float
) -> None:
    """References of 3 ms, programs 1.11 times as fast: 1 ms off both makes it 1.18 where nobody looks again."""
    if not again:
        monkeypatch.setattr(rounds, "overstated_ms", lambda before, after: 0.0)

    def sets(first: int, last: int) -> list[InputSet]:
        return [cast(InputSet, SimpleNamespace(answers=(), distribution="own")) for _ in range(first, last)]

    ratios: list[float] = []
    for seed in range(20):
        gpu = Hogged(inflated_ms, seed)
        result = Measurement(
            gpu.arm(3.0, is_candidate=False),
            gpu.arm(2.7, is_candidate=True),
            sets,
            lambda first, last: None,
            np.random.default_rng(seed),
            Tally(),
            reference_s=3e-3,
            most_pairs=8,
            calls_per_turn=1,
            burst=1,
        ).run(lambda launch: False)
        ratios.append(math.exp(float(np.mean(result.launch.log_ratios()))))
    assert statistics.fmean(ratios) == pytest.approx(ratio, rel=0.006)


def test_the_smaller_time_of_the_reference_counts() -> None:
    alone = [1.0, 1.01, 0.99, 1.0]
    assert kept_share([1.2] * 8, alone, alone * 2) == pytest.approx(1 / 1.2, rel=0.01)
    assert kept_share([1.0] * 4 + [3.0] * 4, alone, alone * 2) < 0.6, "also where half of the turns are slowed"
    assert kept_share([1.2] * 8, [1.2] * 4, alone * 2) == pytest.approx(1 / 1.2, rel=0.01)
    assert kept_share([0.9] * 8, alone, alone) == 1.0


def test_noise_takes_little_from_an_honest_program() -> None:
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(400):
        times = np.exp(0.05 * rng.standard_normal(32)).tolist()
        shares.append(kept_share(times[4:24], times[:4], times[24:]))
    assert statistics.fmean(shares) > 0.985
