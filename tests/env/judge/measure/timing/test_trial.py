"""A trial of two arms whose samples are scripted: order, sets, budgets, and what is subtracted or taken off."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cudal1_env.errors import TaskError
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Tally
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.timing import trial as module
from cudal1_env.judge.measure.timing.chain import Sample
from cudal1_env.judge.measure.timing.trial import ALONE_AFTER, ALONE_BEFORE, Sizes, Trial, TrialResult
from cudal1_env.judge.oracle.samples import InputSet
from cudal1_env.records import Status
from cudal1_env.stats import TrialSamples

OVERHEAD_MS = 0.05
ONE_CALL = Sizes(20, 1, 1)


class ScriptedArm:
    """An arm whose calls take as long as a function says."""

    def __init__(self, who: str, call_ms: Callable[[], float], *, chained: bool) -> None:
        self.who, self.call_ms = who, call_ms
        allowance = 1.0 if chained else 1.05
        self.device = SimpleNamespace(chained=chained, state=lambda: None, neighbour_allowance=allowance)
        self.limits_s: list[float] = []
        self.closed = False

    def limit(self, reference_s: float) -> None:
        self.limits_s.append(reference_s)

    def close(self) -> None:
        self.closed = True


def numbered(k: int) -> InputSet:
    """A set that is only its number; a quarter of them, by chance, are compared whole."""
    whole = bool(np.random.default_rng(k).random() < 0.25)
    return cast(InputSet, SimpleNamespace(index=k, answers=(), distribution="own", whole=whole))


class Numbered:
    """Sets that are only numbers; the untimed one is -1."""

    def __init__(self) -> None:
        self.next, self.prepared = 0, 0
        self.warm = cast(InputSet, SimpleNamespace(index=-1, answers=(), distribution="own"))

    def prepare(self, count: int) -> None:
        self.prepared = max(self.prepared, self.next + count)

    def take(self, count: int) -> list[InputSet]:
        self.next += count
        return [numbered(k) for k in range(self.next - count, self.next)]


class Script:
    """Runs a trial and keeps who was called on what."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        reference_ms: Callable[[], float] = lambda: 1.0,
        candidate_ms: Callable[[], float] = lambda: 1.0,
        empty_ms: Callable[[], float] = lambda: OVERHEAD_MS,
        untimed_s: float = 0.0,
        reference_untimed_s: float = 0.0,
        chained: bool = False,
        sizes: Sizes = ONE_CALL,
        seed: int = 0,
        full_checks: int = 1,
    ) -> None:
        self.log: list[tuple[str, list[int]]] = []
        self.everything: list[str] = []
        self.reference = ScriptedArm("R", reference_ms, chained=chained)
        self.candidate = ScriptedArm("C", candidate_ms, chained=chained)
        self.sets, self.tally = Numbered(), Tally()

        def sample(arm: ScriptedArm, sets: list[InputSet], untimed: list[InputSet], *, empty: bool = False) -> Sample:
            assert arm.limits_s, "expected a time limit before the first call"
            assert not arm.closed
            assert len(untimed) == sizes.untimed
            self.everything.append("E" if empty else arm.who)
            if not empty:
                self.log.append((arm.who, [one.index for one in sets]))
            before_s = untimed_s if arm.who == "C" else reference_untimed_s
            call_ms = empty_ms() + (0.0 if empty else arm.call_ms())
            found = () if empty else ((),) * len(sets)
            return Sample(call_ms, found, full_checks, 0.0 if chained else 0.02, before_s)

        monkeypatch.setattr(module, "timed_sample", sample)
        self.trial = Trial(
            cast(Arm, self.reference),
            cast(Arm, self.candidate),
            cast(Any, self.sets),
            sizes,
            self.tally,
            np.random.default_rng(seed),
        )

    def run(self, enough: Callable[[TrialSamples], bool] = lambda samples: False) -> TrialResult:
        return self.trial.run(1e-3, enough)


def timed(log: list[tuple[str, list[int]]], repeats: int = 1) -> list[tuple[str, list[int]]]:
    """The samples of the pairs: those after each arm's first ones, and before the reference alone again."""
    return log[2 * ALONE_BEFORE * repeats : len(log) - ALONE_AFTER * repeats]


@pytest.mark.parametrize("sizes", [Sizes(20, 12, 1, 4), Sizes(20, 1, 3)])
def test_both_arms_make_as_many_samples_before_the_pairs(monkeypatch: pytest.MonkeyPatch, sizes: Sizes) -> None:
    """The first samples of an arm take longer."""
    latencies_ms = {"R": itertools.chain([9.0] * 4 * sizes.repeats, itertools.repeat(1.0))}
    latencies_ms["C"] = itertools.chain([9.0] * 4 * sizes.repeats, itertools.repeat(1.0))
    script = Script(
        monkeypatch,
        reference_ms=lambda: next(latencies_ms["R"]),
        candidate_ms=lambda: next(latencies_ms["C"]),
        chained=sizes.calls > 1,
        sizes=sizes,
    )
    samples = script.run().samples
    before = ALONE_BEFORE * sizes.repeats
    assert [who for who, _ in script.log[: 2 * before]] == ["R"] * before + ["C"] * before
    assert samples.candidate_ms == pytest.approx([1.0] * 20)
    assert samples.reference_ms == pytest.approx([1.0] * 20)


@pytest.mark.parametrize("chained", [False, True])
def test_each_sample_follows_one_of_the_other_arm_and_empty_ones_follow_the_references(
    monkeypatch: pytest.MonkeyPatch, *, chained: bool
) -> None:
    script = Script(monkeypatch, chained=chained)
    assert script.run().samples.pairs == 20
    assert "".join(who for who, _ in timed(script.log)) == "RC" * 20
    pairs = "".join(script.everything)[3 * ALONE_BEFORE :]
    assert pairs.startswith("REC" * 20 + "RE")


@pytest.mark.parametrize("chained", [False, True])
def test_no_set_of_a_pair_is_used_again_but_for_the_other_arm(
    monkeypatch: pytest.MonkeyPatch, *, chained: bool
) -> None:
    script = Script(monkeypatch, chained=chained, sizes=Sizes(20, 12, 1, 4) if chained else Sizes(20, 1, 3))
    script.run()
    pairs = timed(script.log, script.trial.sizes.repeats)
    first = next(k for who, sets in pairs for k in sets if who == "C")
    met = {who: [k for one, sets in pairs for k in sets if one == who and k >= first] for who in "RC"}
    assert met["R"] == met["C"][: len(met["R"])]
    assert len(met["C"]) == len(set(met["C"])) >= 20 * 3
    assert max(met["C"]) < script.sets.prepared, "made before the samples, not between them"


@pytest.mark.parametrize("chained", [False, True])
def test_nothing_before_a_candidates_sample_depends_on_its_sets(
    monkeypatch: pytest.MonkeyPatch, *, chained: bool
) -> None:
    """How long a candidate is frozen shows neither its chain's length nor whether its outputs are compared whole."""
    script = Script(monkeypatch, chained=chained, sizes=Sizes(20, 12, 1, 4) if chained else Sizes(20, 1, 3))
    script.run()
    samples = timed(script.log, script.trial.sizes.repeats)
    for number, (who, sets) in enumerate(samples):
        earlier = {k for _, others in samples[:number] for k in others}
        assert who == "R" or not earlier & set(sets)


def test_a_short_chain_ends_at_the_first_outputs_that_are_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a program that leaves something out in a chain's first calls only is soon found."""
    script = Script(monkeypatch, chained=True, sizes=Sizes(20, 6, 1))
    script.run()
    chains = [sets for who, sets in timed(script.log) if who == "C"]
    assert len(chains) == 20
    for sets in chains:
        assert not any(numbered(k).whole for k in sets[:-1])
        assert numbered(sets[-1]).whole or len(sets) == 6


def test_a_long_chain_ends_at_outputs_that_are_compared_whole_or_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may pass some of these, since a short chain is noisier; the last call is not known beforehand."""
    script = Script(monkeypatch, chained=True, sizes=Sizes(60, 24, 1))
    script.run()
    chains = [sets for who, sets in timed(script.log) if who == "C"]
    assert len(chains) == 60
    assert all(numbered(sets[-1]).whole or len(sets) == 24 for sets in chains)
    passed = [sum(numbered(k).whole for k in sets[:-1]) for sets in chains]
    assert min(passed) == 0
    assert max(passed) > 0


def test_lengths_of_chains_differ_and_the_reference_has_those_of_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(monkeypatch, chained=True, sizes=Sizes(20, 12, 1, 4))
    script.run()
    of_candidate, of_reference = ([len(sets) for who, sets in timed(script.log) if who == one] for one in "CR")
    assert of_reference[1:] == of_candidate[:-1]
    lengths = of_candidate
    assert min(lengths) >= 1
    assert max(lengths) <= 12
    assert len(set(lengths)) > 3


def test_latencies_are_without_the_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Script(monkeypatch, reference_ms=lambda: 3.0, candidate_ms=lambda: 1.5).run()
    assert result.samples.reference_ms == pytest.approx((3.0,) * 20)
    assert result.samples.candidate_ms == pytest.approx((1.5,) * 20)
    assert result.overhead.call_ms == pytest.approx(OVERHEAD_MS)
    assert result.overhead.stealable_ms == pytest.approx(OVERHEAD_MS - 0.02), "reading is the judge's own"
    assert result.reference_share == 1.0


def test_an_overhead_that_drifts_moves_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is half as fast for a part of the trial: all but the calls themselves takes twice as long."""
    script: Script | None = None

    def empty_ms() -> float:
        return OVERHEAD_MS * (1.0 if script is None or 14 < len(script.log) < 40 else 2.0)

    script = Script(monkeypatch, reference_ms=lambda: 0.03, candidate_ms=lambda: 0.02, empty_ms=empty_ms, chained=True)
    result = script.run()
    assert np.exp(np.median(result.counted.log_ratios())) == pytest.approx(1.5, rel=1e-6)
    assert statistics.median(result.samples.candidate_ms) == pytest.approx(0.02)


def test_an_overhead_that_the_candidate_inflates_is_not_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty calls take 1 ms more while the candidate lives; its own calls do not."""
    script: Script | None = None

    def empty_ms() -> float:
        return OVERHEAD_MS + (0.0 if script is None or script.candidate.closed else 1.0)

    script = Script(monkeypatch, reference_ms=lambda: 3.0, candidate_ms=lambda: 1.7, empty_ms=empty_ms, chained=True)
    result = script.run()
    assert statistics.fmean(np.exp(result.counted.log_ratios())) == pytest.approx(3.0 / 2.7, rel=0.02)


@pytest.mark.parametrize(("chained", "expected"), [(True, 1.0), (False, 1.05)])
def test_a_reference_that_is_slowed_counts_as_it_is_alone(
    monkeypatch: pytest.MonkeyPatch, expected: float, *, chained: bool
) -> None:
    """It takes twice as long while the candidate lives; so the candidate seems twice as fast, and is not."""
    script: Script | None = None
    script = Script(
        monkeypatch, reference_ms=lambda: 1.0 if script is None or script.candidate.closed else 2.0, chained=chained
    )
    result = script.run()
    assert result.samples.reference_ms == pytest.approx((2.0,) * 20)
    assert statistics.fmean(result.counted.reference_ms) == pytest.approx(expected, rel=1e-6)
    assert statistics.fmean(np.exp(result.counted.log_ratios())) == pytest.approx(expected, rel=1e-6)


def test_calls_before_the_clock_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fault) as found:
        Script(monkeypatch, chained=True, untimed_s=0.3).run()
    assert found.value.status is Status.TIMEOUT
    Script(monkeypatch, chained=True, untimed_s=0.05).run()


def test_empty_samples_of_the_reference_do_not_raise_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the reference's own calls: 24 samples before the last pair's, 20 of the candidate."""
    with pytest.raises(Fault) as found:
        Script(monkeypatch, chained=True, untimed_s=2.0, reference_untimed_s=0.4).run()
    assert found.value.status is Status.TIMEOUT


def test_limits_follow_the_reference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, reference_ms=lambda: 4.0)
    script.run()
    assert script.reference.limits_s == script.candidate.limits_s == [1e-3, pytest.approx(4e-3)]


def test_a_reference_that_fails_is_the_tasks_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)

    def fails(*_: object, **__: object) -> Sample:
        raise Fault(Status.CRASH, "the worker died")

    monkeypatch.setattr(module, "timed_sample", fails)
    with pytest.raises(TaskError, match="CRASH"):
        script.run()


def test_a_trial_ends_when_the_caller_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    assert script.run(lambda samples: samples.pairs == 9).samples.pairs == 9
    assert script.candidate.closed


def test_a_trial_without_whole_comparisons_makes_all_its_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Script(monkeypatch, full_checks=0).run(lambda samples: True).samples.pairs == 20
