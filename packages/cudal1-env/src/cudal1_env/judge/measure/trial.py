"""One trial: paired samples of both arms in random order, the idle arm frozen.

Order of a trial: empty calls that tell the overhead, the reference alone, pairs of samples, the candidate's death, the
reference alone and empty calls again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cudal1_env.errors import TaskError
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Tally
from cudal1_env.judge.measure.chain import Sample, timed_sample
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.interference import reference_share
from cudal1_env.judge.measure.overhead import Overhead, estimate_overhead
from cudal1_env.judge.oracle.pool import InputSet
from cudal1_env.records import GpuState, Status
from cudal1_env.stats import Launch

ALONE_BEFORE = 4
ALONE_AFTER = 8
"""Samples of the reference alone, before the pairs and after the candidate's death."""
_EMPTY = 7
"""Empty samples that tell the overhead; on a GPU each has as many calls as a timed one."""
FIRST_PAIRS = 8
MORE_PAIRS = 6
"""Pairs whose input sets are made before the first one, and when those are used up: the interim looks are there."""
_SETTLING = 2
"""Samples of each arm that are not used, before the first pair and when the oracle had the device to make sets."""
_LONG_MS = 10.0
"""Where calls take longer than this, the reference is timed alone half as often after the candidate's death."""
_AWAKE_S = 2.0
_AWAKE_FACTOR = 3.0
"""What a candidate's calls before the clock may take in a trial, in seconds and over the reference's own, whichever is
more."""


@dataclass(frozen=True)
class Sizes:
    """How much a trial measures."""

    pairs: int
    """Most pairs of samples."""
    calls: int
    """Most calls of a sample; 1 on a CPU."""
    repeats: int
    """Samples of each arm that a pair averages over; 1 on a GPU."""

    @property
    def sets(self) -> int:
        """Most input sets of a pair."""
        return self.calls * self.repeats


class Sets(Protocol):
    """Input sets of a trial. The sets of a pair are given once, and forgotten."""

    @property
    def warm(self) -> InputSet:
        """A set of untimed calls."""
        ...

    def prepare(self, count: int) -> None:
        """Make the next `count` sets, as far as they can be kept."""
        ...

    def take(self, count: int) -> list[InputSet]:
        """Return the next `count` sets, which no arm has met."""
        ...


@dataclass(frozen=True)
class TrialResult:
    """What one trial measured."""

    samples: Launch
    """Latencies in pairs, without the overhead."""
    overhead: Overhead
    """What was subtracted from every call of both arms."""
    alone_ms: tuple[float, float]
    """Median latency of the reference alone, before the pairs and after the candidate's death."""
    reference_share: float
    """How much of the reference's latency beside the candidate counts (`interference`)."""
    states: tuple[GpuState, ...] = ()
    """What the driver said after each pair."""

    @property
    def counted(self) -> Launch:
        """The samples with the reference's latency that counts."""
        return self.samples.scaled_reference(self.reference_share)


@dataclass
class Trial:
    """Two arms in the timed loop, and what they are timed on.

    Raises:
        Fault: The candidate fails.
        TaskError: The reference fails.
    """

    reference: Arm
    candidate: Arm
    sets: Sets
    sizes: Sizes
    tally: Tally
    """Counts the candidate's calls."""
    random: np.random.Generator
    """Order of the arms, and lengths of samples."""
    _overhead: Overhead = field(default=Overhead(0.0, 0.0, 0.0))
    _first_calls_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})

    def run(self, reference_s: float, enough: Callable[[Launch], bool]) -> TrialResult:
        """Measure until `enough` says so or the trial is full; the candidate is dead afterwards.

        Args:
            reference_s: What a call of the reference takes, roughly.
            enough: Asked about the samples after each pair.
        """
        for arm in (self.reference, self.candidate):
            arm.limit(reference_s)
        ready = min(FIRST_PAIRS, self.sizes.pairs)
        alone_sets = max(ALONE_BEFORE, self.sizes.sets)
        self.sets.prepare(alone_sets + ready * self.sizes.sets)  # made now, not between samples
        alone = self.sets.take(alone_sets)
        self._overhead = self._empty()
        before = self._alone(alone, ALONE_BEFORE)
        for arm in (self.reference, self.candidate):
            arm.limit(statistics.median(before) * 1e-3)
        samples, states = self._pairs(ready, enough)
        self.candidate.close()
        if (lesser := self._overhead.or_less(self._empty())) is not self._overhead:
            more_ms = self._overhead.call_ms - lesser.call_ms
            samples, before = samples.longer(more_ms), [one + more_ms for one in before]
            self._overhead = lesser
        after = self._alone(alone, ALONE_AFTER if before[-1] < _LONG_MS else ALONE_AFTER // 2)
        return TrialResult(
            samples,
            self._overhead,
            (statistics.median(before), statistics.median(after)),
            reference_share(samples.reference_ms, before, after, allowed=self.reference.device.neighbour_allowance),
            tuple(states),
        )

    def _pairs(self, ready: int, enough: Callable[[Launch], bool]) -> tuple[Launch, list[GpuState]]:
        """Measure pairs. Samples of a pair are neighbours in time, so that a machine's drift meets both alike.

        A sample behind one of the same arm takes less time, so either arm has as many of these: each odd pair swaps the
        arms, the others do by chance. On a CPU, where that costs little, an unused sample of the other arm comes in
        between.
        """
        samples, states = Launch(), list[GpuState]()
        order = (True, False) if self.random.random() < 0.5 else (False, True)
        self._settle(order)
        for pair in range(self.sizes.pairs):
            if pair == ready:
                ready = min(pair + MORE_PAIRS, self.sizes.pairs)
                self.sets.prepare((ready - pair) * self.sizes.sets)
                self._settle(order)
            if pair % 2 == 1 or self.random.random() < 0.5:
                order = (order[1], order[0])
                if not self.reference.device.chained:
                    self._unused(is_candidate=order[1])
            samples = self._pair(samples, order)
            if (state := self.reference.device.state()) is not None:
                states.append(state)
            if enough(samples):
                break
        return samples, states

    def _pair(self, samples: Launch, order: Sequence[bool]) -> Launch:
        calls = self._calls()
        sets = self.sets.take(calls * self.sizes.repeats)  # both arms see the same
        latency_ms = {is_candidate: self._latency_ms(sets, calls, is_candidate=is_candidate) for is_candidate in order}
        return samples.add(latency_ms[False], latency_ms[True])

    def _calls(self) -> int:
        """Length of the next samples: secret, so that any call may be the last one, which is compared whole."""
        return int(self.random.integers(1, self.sizes.calls + 1))

    def _latency_ms(self, sets: Sequence[InputSet], calls: int, *, is_candidate: bool) -> float:
        """Return the mean latency of a call over samples of `calls` calls each, in milliseconds."""
        parts = [sets[start : start + calls] for start in range(0, len(sets), calls)]
        return statistics.fmean(self._sample_ms(part, is_candidate=is_candidate) for part in parts)

    def _sample_ms(self, sets: Sequence[InputSet], *, is_candidate: bool) -> float:
        if not is_candidate:
            return self._overhead.net_ms(self._of_reference(sets).call_ms)
        sample = timed_sample(self.candidate, sets, self.sets.warm)
        self._charge(sample, is_candidate=True)
        for one, comparisons in zip(sets, sample.comparisons, strict=True):
            self.tally.check(one, comparisons)
        self.tally.full_checks += sample.full_checks
        return self._overhead.net_ms(sample.call_ms)

    def _of_reference(self, sets: Sequence[InputSet], *, empty: bool = False) -> Sample:
        try:
            sample = timed_sample(self.reference, sets, self.sets.warm, empty=empty)
        except Fault as fault:
            raise TaskError(f"expected the reference to answer, got {fault.status}: {fault.message}") from fault
        if not all(comparison.right for one in sample.comparisons for comparison in one):
            errors = [comparison.error for one in sample.comparisons for comparison in one]
            raise TaskError(f"expected the reference to agree with its own float64 answer, errors over scale: {errors}")
        self._charge(sample, is_candidate=False)
        return sample

    def _charge(self, sample: Sample, *, is_candidate: bool) -> None:
        """Add up what the calls before the clock took: a budget bounds what no clock sees.

        Raises:
            Fault: The candidate's is spent.
        """
        self._first_calls_s[is_candidate] += sample.first_call_s
        limit_s = max(_AWAKE_S, _AWAKE_FACTOR * self._first_calls_s[False])
        if self._first_calls_s[True] > limit_s:
            text = f"expected the calls before the clock to take at most {limit_s:.2g} s in a trial, they took longer"
            raise Fault(Status.TIMEOUT, text)

    def _empty(self) -> Overhead:
        """Estimate the overhead from empty samples of the reference."""
        sets = [self.sets.warm] * self.sizes.calls
        samples = [self._of_reference(sets, empty=True) for _ in range(_EMPTY)]
        return estimate_overhead([one.call_ms for one in samples], [one.reading_ms for one in samples])

    def _alone(self, sets: Sequence[InputSet], count: int) -> list[float]:
        """Time the reference alone; it can be trusted with the same sets again."""
        size = self.sizes.sets
        starts = [size * number % max(1, len(sets) - size + 1) for number in range(count)]
        calls = self.sizes.calls
        return [self._latency_ms(sets[start : start + size], calls, is_candidate=False) for start in starts]

    def _settle(self, order: Sequence[bool]) -> None:
        """Make samples that are not used: on a CPU the first ones after a break take longer."""
        if not self.reference.device.chained:
            for is_candidate in [*order] * _SETTLING:
                self._unused(is_candidate=is_candidate)

    def _unused(self, *, is_candidate: bool) -> None:
        self._sample_ms([self.sets.warm], is_candidate=is_candidate)
