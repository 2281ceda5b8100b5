"""One trial: paired samples of both arms, in turn, the idle arm frozen.

Order of a trial: the reference alone, as many samples of the candidate, pairs of samples, the candidate's death, the
reference alone again. An empty sample with as many calls follows each sample of the reference, because the overhead
drifts with the host's speed (by half within 0.1 s) and a chain's first call takes longer than the others.
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
from cudal1_env.judge.oracle.pool import WARM_SETS, Pool
from cudal1_env.judge.oracle.samples import InputSet
from cudal1_env.records import GpuState, Status
from cudal1_env.stats import TrialSamples

ALONE_BEFORE = 4
ALONE_AFTER = 8
"""Samples of the reference alone, before the pairs and after the candidate's death. The candidate also has
`ALONE_BEFORE` samples before the pairs, which do not count."""
_SETTLE_S = 1.0
"""Seconds after which the candidate begins no more of these."""
_OVERHEAD_ALLOWANCE = 1.25
"""Maximum ratio of an empty call beside the candidate to one after its death; an excess is not subtracted."""
FIRST_PAIRS = 8
MORE_PAIRS = 6
"""Pairs whose input sets are made before the first pair, and each time those are used up; interim looks are there."""
_CALLS_TO_WHOLE = 6.0
"""A chain of at most this many calls ends at the first set that is compared whole. A chain of at most n > 6 calls ends
at each such set with probability 6 / n, so chains of at most 16 have some eight calls."""
_WHOLE = 4
"""Minimum whole comparisons in a trial, if its pairs suffice: some faults show in four of five whole outputs, and in no
sample (`tests/exploits/h71_rare_column.py`)."""
_AWAKE_S = 2.0
_AWAKE_FACTOR = 3.0
"""Limit of a candidate's untimed calls in a trial: this many seconds, or this many times the reference's, if more."""


@dataclass(frozen=True)
class Sizes:
    """Size of a trial."""

    pairs: int
    """Maximum number of pairs of samples."""
    calls: int
    """Maximum calls of a sample; 1 on a CPU."""
    repeats: int
    """Samples of each arm that a pair averages; 1 on a GPU."""
    untimed: int = 0
    """Untimed calls of a sample before its timed ones; 0 on a CPU."""

    @property
    def sets(self) -> int:
        """Maximum input sets of a pair."""
        return self.calls * self.repeats


class TrialSets:
    """Input sets of one trial, the pool's first that no candidate has seen, and the trial's clock.

    Each set is given to one pair only.
    """

    def __init__(self, case: Case, pool: Pool) -> None:
        self._case, self._pool = case, pool
        self.next = pool.fresh
        """Number of the next set to take."""
        self.warm = pool.sets(WARM_SETS - 1, WARM_SETS)[0]
        """The set for untimed calls."""
        self._began = time.perf_counter() - self._oracle_s

    @property
    def measured_s(self) -> float:
        """Seconds of measurement so far, without the oracle's."""
        return time.perf_counter() - self._oracle_s - self._began

    @property
    def _oracle_s(self) -> float:
        return self._case.watch.phases.get("oracle", 0.0)

    def prepare(self, count: int) -> None:
        """Make the next `count` sets, as far as memory allows to keep them."""
        with self._case.watch.phase("oracle"):
            self._pool.prepare(self.next, self.next + count)

    def take(self, count: int) -> list[InputSet]:
        """Return the next sets."""
        first, self.next = self.next, self.next + count
        with self._case.watch.phase("oracle"):
            return self._pool.sets(first, self.next)


@dataclass(frozen=True)
class Timed:
    """A sample of the reference and the empty sample after it: milliseconds per call, by the judge's clock."""

    call_ms: float
    empty_ms: float
    reading_ms: float
    """Part of the empty call in which the judge read from the frozen worker; 0 on a GPU."""


def overhead_of(samples: Sequence[Timed]) -> Overhead:
    """Return the overhead estimated from samples of the reference."""
    return estimate_overhead([one.empty_ms for one in samples], [one.reading_ms for one in samples])


@dataclass
class Pairs:
    """Paired samples of both arms."""

    reference: list[Timed] = field(default_factory=list[Timed])
    candidate_ms: list[float] = field(default_factory=list[float])
    """Latencies of a call, overhead included."""

    def net(self, share: float = 1.0) -> TrialSamples:
        """Return the latencies minus `share` (0 to 1) of the overhead."""
        overhead = overhead_of(self.reference)
        pairs = zip(self.candidate_ms, self.reference, strict=True)
        candidate = [overhead.net_ms(call_ms, share * one.empty_ms) for call_ms, one in pairs]
        return TrialSamples(tuple(_net_ms(self.reference, overhead, share)), tuple(candidate))


@dataclass(frozen=True)
class TrialResult:
    """Measurements of one trial."""

    samples: TrialSamples
    """Latencies in pairs, without the overhead."""
    overhead: Overhead
    """Overhead that was subtracted from both arms."""
    alone_ms: tuple[float, float]
    """Median latency of the reference alone, before the pairs and after the candidate's death."""
    alone: Alone
    """The reference alone compared with the reference in pairs."""
    allowed: float
    """Maximum slowdown of the reference beside an honest program."""
    states: tuple[GpuState, ...] = ()
    """State of the GPU after each pair."""

    @property
    def reference_share(self) -> float:
        """Share of the reference's latency in pairs that counts for the reward, from this trial alone."""
        return reference_share([self.alone], allowed=self.allowed)

    @property
    def counted(self) -> TrialSamples:
        """The samples, with the reference's latency scaled to what counts for the reward."""
        return self.samples.scaled_reference(self.reference_share)


@dataclass
class Trial:
    """Two arms in the timed loop, and the input sets for timing them.

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
    """Draws the ends of chains."""
    _untimed_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    _last_sets: list[InputSet] = field(default_factory=list[InputSet])
    """Sets of the candidate's last sample; the reference's next one has the same."""

    def run(self, reference_s: float, enough: Callable[[TrialSamples], bool]) -> TrialResult:
        """Measure until `enough` accepts the samples or the trial is full; kill the candidate, time the reference."""
        for arm in (self.reference, self.candidate):
            arm.limit(reference_s)
        ready = min(FIRST_PAIRS, self.sizes.pairs)
        alone_sets = max(ALONE_BEFORE, self.sizes.sets)
        self.sets.prepare(alone_sets + ready * self.sizes.sets)  # made now, not between samples
        first = self.sets.take(alone_sets)
        before = self._alone(first, ALONE_BEFORE)
        self._last_sets = first[: self.sizes.sets]
        latency_ms = statistics.median(_net_ms(before, overhead_of(before)))
        for arm in (self.reference, self.candidate):
            arm.limit(latency_ms * 1e-3)
        self._settle(first)
        pairs, states = self._pairs(ready, enough)
        self.candidate.close()
        after = self._alone(first, ALONE_AFTER)
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
        """Measure pairs of samples, which follow each other, so that drift of the machine affects both alike."""
        pairs, states = Pairs(), list[GpuState]()
        for pair in range(self.sizes.pairs):
            if pair == ready:
                ready = min(pair + MORE_PAIRS, self.sizes.pairs)
                self.sets.prepare((ready - pair) * self.sizes.sets)
            self._pair(pairs)
            if (state := self.reference.device.state()) is not None:
                states.append(state)
            if self.tally.full_checks >= _WHOLE and enough(pairs.net()):
                break
        return pairs, states

    def _pair(self, pairs: Pairs) -> None:
        """Time the reference on the sets that the candidate had in the last pair, then the candidate on new ones.

        A candidate sees how long it was frozen. If the reference had the same sets first, that would show whether the
        candidate's outputs will be compared whole, or how many calls its chain has.

        So each sample follows one of the other arm. After one of its own arm it takes up to 3 % less time or more. In
        random order, the reference often came after its own empty samples, and seemed 0.5 % faster (docs/log.md, "Why a
        program was slower than itself").
        """
        sets, last = self._next_sets(), self._last_sets
        self._last_sets = sets
        pairs.reference.append(self._reference(last, len(last) // self.sizes.repeats))
        samples = [self._of_candidate(part) for part in _parts(sets, len(sets) // self.sizes.repeats)]
        pairs.candidate_ms.append(statistics.fmean(one.call_ms for one in samples))

    def _next_sets(self) -> list[InputSet]:
        """Return the sets of the next pair. A chain ends at a secret set that is compared whole.

        So every call is equally likely to be compared whole. Long chains may continue past such a set, because short
        chains are noisier.
        """
        if self.sizes.calls == 1:
            return self.sets.take(self.sizes.repeats)
        end_at = min(1.0, _CALLS_TO_WHOLE / self.sizes.calls)
        sets = self.sets.take(1)
        while len(sets) < self.sizes.calls and not (sets[-1].whole and self.random.random() < end_at):
            sets += self.sets.take(1)
        return sets

    def _reference(self, sets: Sequence[InputSet], calls: int) -> Timed:
        """Time the reference in samples of `calls` calls each, then one empty sample; return the means per call."""
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
        if not empty:  # the candidate has no empty samples; counting them would raise its budget
            self._add_untimed(sample.untimed_s, is_candidate=False)
        return sample

    def _add_untimed(self, seconds: float, *, is_candidate: bool) -> None:
        """Add seconds of untimed calls; raise `Fault` if the candidate exceeds its budget for them."""
        self._untimed_s[is_candidate] += seconds
        limit_s = max(_AWAKE_S, _AWAKE_FACTOR * self._untimed_s[False])
        if self._untimed_s[True] > limit_s:
            text = f"the untimed calls of a trial took longer than {limit_s:.2g} s"
            raise Fault(Status.TIMEOUT, text)

    def _alone(self, sets: Sequence[InputSet], count: int) -> list[Timed]:
        """Time the reference alone; it may see the same sets again."""
        return [self._reference(part, self.sizes.calls) for part in self._again(sets, count)]

    def _settle(self, sets: Sequence[InputSet]) -> None:
        """Make samples of the candidate that do not count, as many as the reference has made.

        The first samples of an arm take longer: on a CPU 30, 22, 11 and 9 %, on a GPU 9 % (docs/log.md). So a candidate
        without them would seem slower than the reference. Outputs and limits are those of counted samples. Nothing is
        charged for their time, so there are no more of them after `_SETTLE_S`.
        """
        end = time.monotonic() + _SETTLE_S
        for part in self._again(sets, ALONE_BEFORE):
            for chain in _parts(part, self.sizes.calls):
                if time.monotonic() < end:
                    self._of_candidate(chain)

    def _again(self, sets: Sequence[InputSet], count: int) -> list[Sequence[InputSet]]:
        """Return the sets of each of `count` samples; a set may be in several."""
        size = self.sizes.sets
        starts = [size * number % max(1, len(sets) - size + 1) for number in range(count)]
        return [sets[start : start + size] for start in starts]


def _parts(sets: Sequence[InputSet], calls: int) -> list[Sequence[InputSet]]:
    return [sets[start : start + calls] for start in range(0, len(sets), calls)]


def _net_ms(samples: Sequence[Timed], overhead: Overhead, share: float = 1.0) -> list[float]:
    """Return latencies minus `share` of each sample's own empty call; at least the resolution of the overhead."""
    return [overhead.net_ms(one.call_ms, share * one.empty_ms) for one in samples]
