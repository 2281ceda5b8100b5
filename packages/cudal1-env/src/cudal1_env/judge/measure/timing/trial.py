"""One trial: paired samples of both arms in random order, the idle arm frozen.

Order of a trial: the reference alone, pairs of samples, the candidate's death, the reference alone again. An empty
sample follows each sample of the reference and has as many calls: the overhead drifts with the host's speed, by half of
itself within a tenth of a second, and the first call of a chain takes longer than the others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cudal1_env.errors import TaskError
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Case, Tally
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.timing.chain import Sample, timed_sample
from cudal1_env.judge.measure.timing.interference import Alone, alone, reference_share
from cudal1_env.judge.measure.timing.overhead import Overhead, estimate_overhead
from cudal1_env.judge.oracle.pool import WARM_SETS, InputSet, Pool
from cudal1_env.records import GpuState, Status
from cudal1_env.stats import TrialSamples

ALONE_BEFORE = 4
ALONE_AFTER = 8
"""Samples of the reference alone, before the pairs and after the candidate's death."""
_OVERHEAD_ALLOWANCE = 1.25
"""Maximum ratio of an empty call beside the candidate to one after its death. More is not subtracted."""
FIRST_PAIRS = 8
MORE_PAIRS = 6
"""Pairs whose input sets are made before the first one, and when those are used up: the interim looks are there."""
_LONG_MS = 10.0
"""Where calls take longer than this, the reference is timed alone half as often after the candidate's death."""
_CALLS_TO_WHOLE = 6.0
"""A chain of at most this many calls ends at the first set that is compared whole. One of at most n ends at such a
set with the chance of this over n, so that chains of 16 have some eight calls."""
_AWAKE_S = 2.0
_AWAKE_FACTOR = 3.0
"""What a candidate's calls before the clock may take in a trial, in seconds and over the reference's own, whichever is
more."""


@dataclass(frozen=True)
class Sizes:
    """How much a trial measures."""

    pairs: int
    """Maximum number of pairs of samples."""
    calls: int
    """Maximum calls of a sample; 1 on a CPU."""
    repeats: int
    """Samples of each arm that a pair averages over; 1 on a GPU."""
    untimed: int = 0
    """Calls of a sample before its timed ones; 0 on a CPU."""

    @property
    def sets(self) -> int:
        """Maximum input sets of a pair."""
        return self.calls * self.repeats


class TrialSets:
    """Input sets of one trial, and its clock: the first sets of the pool that no candidate has met.

    The sets of a pair are given once, and forgotten.
    """

    def __init__(self, case: Case, pool: Pool) -> None:
        self._case, self._pool = case, pool
        self.next = pool.fresh
        """Number of the first set that was not taken."""
        self.warm = pool.sets(WARM_SETS - 1, WARM_SETS)[0]
        """A set of untimed calls."""
        self._began = time.perf_counter() - self._oracle_s

    @property
    def measured_s(self) -> float:
        """Seconds of measurement so far, the oracle's left out."""
        return time.perf_counter() - self._oracle_s - self._began

    @property
    def _oracle_s(self) -> float:
        return self._case.watch.phases.get("oracle", 0.0)

    def prepare(self, count: int) -> None:
        """Make sets that will be wanted, as far as they can be kept."""
        with self._case.watch.phase("oracle"):
            self._pool.prepare(self.next, self.next + count)

    def take(self, count: int) -> list[InputSet]:
        """Return the next sets."""
        first, self.next = self.next, self.next + count
        with self._case.watch.phase("oracle"):
            return self._pool.sets(first, self.next)


@dataclass(frozen=True)
class Timed:
    """A sample of the reference, and the empty one behind it. By the judge's clock, for each call."""

    call_ms: float
    empty_ms: float
    reading_ms: float
    """How much of the empty call the judge read while the worker was stopped; 0 where it was not."""


def overhead_of(samples: Sequence[Timed]) -> Overhead:
    """Return the overhead of samples."""
    return estimate_overhead([one.empty_ms for one in samples], [one.reading_ms for one in samples])


@dataclass
class Pairs:
    """Paired samples of both arms."""

    reference: list[Timed] = field(default_factory=list[Timed])
    candidate_ms: list[float] = field(default_factory=list[float])
    """Latencies of a call with the overhead."""

    def net(self, share: float = 1.0) -> TrialSamples:
        """Return the latencies without `share` of the overhead, from 0 to 1."""
        overhead = overhead_of(self.reference)
        pairs = zip(self.candidate_ms, self.reference, strict=True)
        candidate = [overhead.net_ms(call_ms, share * one.empty_ms) for call_ms, one in pairs]
        return TrialSamples(tuple(_net_ms(self.reference, overhead, share)), tuple(candidate))


@dataclass(frozen=True)
class TrialResult:
    """What one trial measured."""

    samples: TrialSamples
    """Latencies in pairs, without the overhead."""
    overhead: Overhead
    """What was subtracted from every call of both arms."""
    alone_ms: tuple[float, float]
    """Median latency of the reference alone, before the pairs and after the candidate's death."""
    alone: Alone
    """The reference alone against the reference in pairs."""
    allowed: float
    """How many times as long the reference may take beside an honest program."""
    states: tuple[GpuState, ...] = ()
    """State of the GPU after each pair."""

    @property
    def reference_share(self) -> float:
        """Share of the reference's latency in pairs that counts for the reward, by this trial alone."""
        return reference_share([self.alone], allowed=self.allowed)

    @property
    def counted(self) -> TrialSamples:
        """The samples with the reference's latency that counts for the reward."""
        return self.samples.scaled_reference(self.reference_share)


@dataclass
class Trial:
    """Two arms in the timed loop, and the input sets that they are timed on.

    Raises:
        Fault: The candidate fails.
        TaskError: The reference fails.
    """

    reference: Arm
    candidate: Arm
    sets: TrialSets
    sizes: Sizes
    tally: Tally
    """Counts the candidate's calls."""
    random: np.random.Generator
    """Order of the arms."""
    _untimed_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})

    def run(self, reference_s: float, enough: Callable[[TrialSamples], bool]) -> TrialResult:
        """Measure until `enough` says so or the trial is full; the candidate is dead afterwards.

        Args:
            reference_s: Rough latency of a call of the reference, in seconds.
            enough: Asked about the samples after each pair.
        """
        for arm in (self.reference, self.candidate):
            arm.limit(reference_s)
        ready = min(FIRST_PAIRS, self.sizes.pairs)
        alone_sets = max(ALONE_BEFORE, self.sizes.sets)
        self.sets.prepare(alone_sets + ready * self.sizes.sets)  # made now, not between samples
        first = self.sets.take(alone_sets)
        before = self._alone(first, ALONE_BEFORE)
        latency_ms = statistics.median(_net_ms(before, overhead_of(before)))
        for arm in (self.reference, self.candidate):
            arm.limit(latency_ms * 1e-3)
        pairs, states = self._pairs(ready, enough)
        self.candidate.close()
        after = self._alone(first, ALONE_AFTER if latency_ms < _LONG_MS else ALONE_AFTER // 2)
        empty_ms = [[one.empty_ms for one in part] for part in (pairs.reference, after, after)]
        samples = pairs.net(reference_share([alone(*empty_ms)], allowed=_OVERHEAD_ALLOWANCE))
        overhead = overhead_of(pairs.reference)
        before_ms, after_ms = _net_ms(before, overhead), _net_ms(after, overhead)
        return TrialResult(
            samples,
            overhead,
            (statistics.median(before_ms), statistics.median(after_ms)),
            alone(samples.reference_ms, before_ms, after_ms),
            self.reference.device.neighbour_allowance,
            tuple(states),
        )

    def _pairs(self, ready: int, enough: Callable[[TrialSamples], bool]) -> tuple[Pairs, list[GpuState]]:
        """Measure pairs. Samples of a pair are neighbours in time, so that a machine's drift meets both alike.

        A sample behind one of the same arm takes less time, so either arm has as many of these: each odd pair swaps the
        arms, the others do by chance.
        """
        pairs, states = Pairs(), list[GpuState]()
        candidate_first = self.random.random() < 0.5
        for pair in range(self.sizes.pairs):
            if pair == ready:
                ready = min(pair + MORE_PAIRS, self.sizes.pairs)
                self.sets.prepare((ready - pair) * self.sizes.sets)
            if pair % 2 == 1 or self.random.random() < 0.5:
                candidate_first = not candidate_first
            self._pair(pairs, candidate_first=candidate_first)
            if (state := self.reference.device.state()) is not None:
                states.append(state)
            if enough(pairs.net()):
                break
        return pairs, states

    def _pair(self, pairs: Pairs, *, candidate_first: bool) -> None:
        sets = self._next_sets()  # both arms see the same
        calls = len(sets) // self.sizes.repeats
        for is_candidate in (candidate_first, not candidate_first):
            if is_candidate:
                samples = [self._of_candidate(part) for part in _parts(sets, calls)]
                pairs.candidate_ms.append(statistics.fmean(one.call_ms for one in samples))
            else:
                pairs.reference.append(self._reference(sets, calls))

    def _next_sets(self) -> list[InputSet]:
        """Sets of the next samples. A chain ends at a set that is compared whole; which one is secret.

        So each call is as likely as any other to be compared whole. Where a chain may be long, it passes some of these
        sets, because a short chain is noisier.
        """
        if self.sizes.calls == 1:
            return self.sets.take(self.sizes.repeats)
        end_at = min(1.0, _CALLS_TO_WHOLE / self.sizes.calls)
        sets = self.sets.take(1)
        while len(sets) < self.sizes.calls and not (sets[-1].whole and self.random.random() < end_at):
            sets += self.sets.take(1)
        return sets

    def _reference(self, sets: Sequence[InputSet], calls: int) -> Timed:
        """Return mean latencies of the reference's calls, over samples of `calls` each, and of an empty sample's."""
        samples = [self._of_reference(part) for part in _parts(sets, calls)]
        empty = self._of_reference([self.sets.warm] * calls, empty=True)
        return Timed(statistics.fmean(one.call_ms for one in samples), empty.call_ms, empty.reading_ms)

    @property
    def _untimed(self) -> list[InputSet]:
        return [self.sets.warm] * self.sizes.untimed

    def _of_candidate(self, sets: Sequence[InputSet]) -> Sample:
        sample = timed_sample(self.candidate, sets, self._untimed)
        self._add_untimed(sample.untimed_s, is_candidate=True)
        for one, comparisons in zip(sets, sample.comparisons, strict=True):
            self.tally.check(one, comparisons)
        self.tally.full_checks += sample.full_checks
        return sample

    def _of_reference(self, sets: Sequence[InputSet], *, empty: bool = False) -> Sample:
        try:
            sample = timed_sample(self.reference, sets, self._untimed, empty=empty)
        except Fault as fault:
            raise TaskError(f"the reference failed in a timed call with {fault.status}: {fault.message}") from fault
        if not all(comparison.correct for one in sample.comparisons for comparison in one):
            errors = [comparison.error for one in sample.comparisons for comparison in one]
            raise TaskError(f"the reference disagrees with its own float64 answer; errors over scale: {errors}")
        if not empty:  # the candidate has no empty samples: those would raise its budget
            self._add_untimed(sample.untimed_s, is_candidate=False)
        return sample

    def _add_untimed(self, seconds: float, *, is_candidate: bool) -> None:
        """Add up the seconds of calls outside the clock, which a budget bounds."""
        self._untimed_s[is_candidate] += seconds
        limit_s = max(_AWAKE_S, _AWAKE_FACTOR * self._untimed_s[False])
        if self._untimed_s[True] > limit_s:
            text = f"the untimed calls of a trial took longer than {limit_s:.2g} s"
            raise Fault(Status.TIMEOUT, text)

    def _alone(self, sets: Sequence[InputSet], count: int) -> list[Timed]:
        """Time the reference alone; it may meet the same sets again."""
        size = self.sizes.sets
        starts = [size * number % max(1, len(sets) - size + 1) for number in range(count)]
        return [self._reference(sets[start : start + size], self.sizes.calls) for start in starts]


def _parts(sets: Sequence[InputSet], calls: int) -> list[Sequence[InputSet]]:
    return [sets[start : start + calls] for start in range(0, len(sets), calls)]


def _net_ms(samples: Sequence[Timed], overhead: Overhead, share: float = 1.0) -> list[float]:
    """Latencies minus `share` of each sample's own empty call, and at least the resolution of the overhead."""
    return [overhead.net_ms(one.call_ms, share * one.empty_ms) for one in samples]
