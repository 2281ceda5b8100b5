"""One launch: turns of both arms in random order, each call on inputs never seen, the idle arm frozen.

Order of a launch: the empty turns that tell the overhead, the reference alone, pairs of turns, the candidate's
death, the reference alone again.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from cudal1_env.errors import TaskError
from cudal1_env.judge.measure.arm import Arm, Call, Fault
from cudal1_env.judge.measure.interference import beyond_usual, kept_share, median_and_error, slowed
from cudal1_env.judge.measure.overhead import Overhead, of_cpu, of_gpu, overstated_ms
from cudal1_env.judge.oracle.pool import WARM_SETS, InputSet
from cudal1_env.records import GpuState, Look, OutputError, Status
from cudal1_env.stats import Launch

SOLO_TURNS, SOLO_AFTER = 4, 8
"""Turns of the reference alone, before and after. It can be trusted with the sets of the pairs, and with one twice."""
_FIRST_PAIRS, _MORE_PAIRS = 8, 6
"""Pairs whose sets are made before the first turn, and when those are used up: the looks at the interval are there."""
_SETTLING_TURNS = 2
"""Turns of each arm that are not timed, before the first pair and when the oracle had the device to make sets."""
SETS_BY_CALL, SETS_BESIDE = 7, 16
"""How many sets a launch's first four pairs take, for each call of a turn, and beside that: in three of them a whole
turn is watched, which chance exceeds in 1 of 81 launches, and calls are made alone. Later pairs' may not be kept."""
_EMPTY_CALLS = 7
_SLOPES = 6
"""Turns of some calls, and of twice as many, that tell a GPU's overhead."""
_LONG_S, _LONG_SLOPES = 10e-3, 2
"""Where calls are made one by one and take longer than this, so many of these turns are not empty: they would use up
the time for the pairs, and what they tell is held to within `FIRST_CALL_MS`."""
SINGLES = 2
"""Calls for each pair that are made alone, where turns consist of several calls in one go."""
_WATCHED_FIRST, _WATCHED = 4, 0.5
"""Pairs in which somebody looks what else runs on a GPU: the first ones, which every launch has, and this share of the
others."""
_RESOLUTION = 0.02
"""Latencies below this share of the overhead, or below its spread, cannot be told from it: taken as that long."""

Kind = Literal["turn", "single", "watch"]
"""What calls in one go are for: a turn's latency, a call's alone, or to see what else runs on the device meanwhile."""
Stays = Sequence[Sequence[tuple[int, Kind]]]
"""What each arm does in a pair: for each of its stays on the device, how many calls it makes in one go, one such number
after another, and what for. Both arms make the calls of a stay before either comes to those of the next."""


@dataclass
class Tally:
    """What has been seen of a candidate's outputs."""

    calls: int = 0
    full_checks: int = 0
    errors: dict[tuple[int, str], OutputError] = field(default_factory=dict[tuple[int, str], OutputError])
    """The worst by output and distribution."""

    def check(self, one: InputSet, comparisons: Sequence[object], *, names: str = "candidate") -> None:
        """Count a call's comparisons.

        Raises:
            Fault: One of them is wrong.
        """
        self.calls += 1
        for position, (comparison, answer) in enumerate(zip(comparisons, one.answers, strict=True)):
            seen = OutputError(
                output=position,
                # Two digits: the program chooses this number, and could tell its author about inputs with more.
                error=float(f"{comparison.error:.1e}"),  # type: ignore[attr-defined]
                tolerance=float(f"{comparison.tolerance:.1e}"),  # type: ignore[attr-defined]
                reference_error=answer.reference_error,
                distribution=one.distribution,
            )
            worst = self.errors.get((position, one.distribution))
            wrong = not comparison.right  # type: ignore[attr-defined]
            if wrong or worst is None or seen.error * worst.tolerance > worst.error * seen.tolerance:
                self.errors[position, one.distribution] = seen
            if wrong:
                raise Fault(
                    Status.WRONG_OUTPUT,
                    f"expected each element of output {position} within its tolerance, one is {seen.error:.2g} from "
                    f"the float64 answer, {seen.tolerance:.2g} is allowed there (both over the largest element) on "
                    f"{one.distribution} inputs",
                )


@dataclass(frozen=True)
class Longer:
    """How many calls may be made in one go where the candidate is faster than the reference."""

    most: int
    below_ms: float
    """Calls that take longer are made one by one."""
    turn_ms: float
    """What calls in one go should take together."""


@dataclass(frozen=True)
class LaunchResult:
    """What one launch measured."""

    launch: Launch
    alone_ms: tuple[float, float]
    """Median latency of the reference alone, before and after the candidate."""
    slowed: bool
    """Whether the reference was slower beside the candidate than alone, beyond noise."""
    worked: tuple[int, int]
    """In how many pairs something ran on the device before the candidate's watched calls only, and before the
    reference's only. On a GPU that tells of work that goes on though the process stands still, set off by the inputs'
    arrival."""
    overhead_ms: float
    """What was subtracted from every call of both arms."""
    harness_ms: float
    """How much of it is the worker's own code, which a program could replace by less."""
    states: tuple[GpuState, ...] = ()
    """What the driver told after each pair."""
    resolution_ms: float = 0.0
    """Latencies that differ by less cannot be told apart."""
    proven: float = math.inf
    """Largest speedup that calls made alone bear out, where turns consist of several calls in one go."""
    kept_share: float = 1.0
    """How much of the reference's time beside the candidate it takes alone, too; at most 1."""
    charged_ms: float = 0.0
    """What was added to the candidate's calls, on average, because it ran longer before them than is usual."""

    @property
    def suspect(self) -> bool:
        """Whether the candidate seems to do something while it stands still."""
        return self.slowed or self._excess > 0

    @property
    def _excess(self) -> int:
        return self.worked[0] - self.worked[1]

    def excuses(self, suspect: LaunchResult) -> bool:
        """Whether this launch, of the reference beside itself, shows what a suspect one of the candidate shows.

        A slowed reference excuses one that was slowed at most twice as much. Work in a pair or two is no excuse for
        work in most: it must be seen at least half as often.
        """
        as_slow = self.slowed and self.kept_share**2 <= suspect.kept_share
        return (as_slow or not suspect.slowed) and 2 * self._excess >= suspect._excess

    def look(self, *, itself: bool) -> Look:
        """For the record.

        Args:
            itself: Whether the reference stood in the candidate's place.
        """
        return Look(
            itself=itself,
            candidate_only=self.worked[0],
            reference_only=self.worked[1],
            slowed=self.slowed,
            kept_share=self.kept_share,
        )


class Measurement:
    """Measures one launch.

    Args:
        reference: The reference's arm, warmed, in the timed loop.
        candidate: The candidate's arm, likewise.
        sets: Gives the input sets of a range of numbers, made when first wanted; the first `WARM_SETS` are for untimed
            calls, the others are this launch's own.
        prepare: Makes the sets of a range of numbers, as far as they can be kept.
        random: Order of the arms, and which turns are watched.
        tally: Counts the candidate's calls.
        reference_s: What a call of the reference takes, by and large.
        most_pairs: Pairs of turns after which the launch ends.
        calls_per_turn: Calls that a turn averages over, a multiple of `burst`.
        burst: Calls that are made in one go.
        longer: How many there may be where the candidate is faster.
        closely: Whether all pairs have watched calls, or on a CPU untimed ones, because a launch before gave reason to.
    """

    def __init__(
        self,
        reference: Arm,
        candidate: Arm,
        sets: Callable[[int, int], list[InputSet]],
        prepare: Callable[[int, int], None],
        random: np.random.Generator,
        tally: Tally,
        *,
        reference_s: float,
        most_pairs: int,
        calls_per_turn: int,
        burst: int,
        longer: Longer | None = None,
        closely: bool = False,
    ) -> None:
        self.reference = reference
        self.candidate = candidate
        self.sets = sets
        self.prepare = prepare
        self.random = random
        self.tally = tally
        self.reference_s = reference_s
        self.most_pairs = most_pairs
        self.calls_per_turn = calls_per_turn
        self.burst = burst
        self.longer = longer
        self.closely = closely
        self._taken_s: dict[bool, list[float]] = {False: [], True: []}
        self._single_ms: dict[bool, list[float]] = {False: [], True: []}
        self._ran_ms = {False: 0.0, True: 0.0}
        self._awake_ms: dict[bool, list[float]] = {False: [], True: []}
        self._overhead = Overhead(0.0, 0.0, 0.0)
        self._empty_ms: list[float] = []
        self._resolution_ms = 1e-3

    def run(self, enough: Callable[[Launch], bool]) -> LaunchResult:
        """Measure until `enough` says so or the launch is full; the candidate is dead afterwards.

        Args:
            enough: Looks at the launch after each pair.

        Raises:
            Fault: The candidate fails.
            TaskError: The reference fails.
        """
        arms = (self.reference, self.candidate)
        for arm in arms:
            arm.limit(self.reference_s)
        self._lengthen()
        burst = self.burst
        for arm in arms:
            arm.at_most(self._longest)
        plans = [self._plan(pair) for pair in range(self.most_pairs)]
        sizes = (sum(count for stay in plan for count, _ in stay) for plan in plans)
        begins = list(itertools.accumulate(sizes, initial=WARM_SETS))
        ready = min(_FIRST_PAIRS, self.most_pairs)
        self.prepare(WARM_SETS, begins[ready])  # made now, not between turns
        solo = self.sets(WARM_SETS, WARM_SETS + max(2, SOLO_TURNS * burst))
        (warm,) = self.sets(WARM_SETS - 1, WARM_SETS)
        self._measure_overhead(solo, warm)
        solo = solo[: SOLO_TURNS * burst]
        before = self._alone(solo)
        for arm in arms:
            arm.limit(statistics.median(before) * 1e-3)
        for _ in range(SOLO_TURNS):  # the reference has settled by now; so must the candidate
            self._turn([warm] * burst, is_candidate=True)
        launch, states = Launch(), list[GpuState]()
        order = (True, False) if self.random.random() < 0.5 else (False, True)
        self._settle(warm, order)
        for pair in range(self.most_pairs):
            if pair == ready:
                ready = min(pair + _MORE_PAIRS, self.most_pairs)
                self.prepare(begins[pair], begins[ready])
                self._settle(warm, order)
            if pair % 2 == 1 or self.random.random() < 0.5:
                order = self._swapped(order, warm)
            # The sets have no name here: those that are not kept must be gone before the next ones are made.
            times = self._pair(self.sets(begins[pair], begins[pair + 1]), plans[pair], order, warm)
            launch = launch.add(times[False], times[True])
            if (state := self.reference.device.state()) is not None:
                states.append(state)
            if enough(launch):
                break
        self.candidate.close()
        if over_ms := self._overstated_ms(warm):
            launch, before = launch.longer(over_ms), [time + over_ms for time in before]
        beside_ms, charged_ms = launch.reference_ms, self._charged_ms()
        launch, most = launch.charged(*charged_ms), math.inf
        if burst > 1:
            launch = believed(launch, self._single_ms[False], self._single_ms[True])
            most = proven(launch, self._single_ms[False], self._single_ms[True])
        again = SOLO_AFTER // SOLO_TURNS if self.reference_s <= _LONG_S else 1
        after = self._alone(solo * again)
        alone_ms = (statistics.median(before), statistics.median(after))
        return LaunchResult(
            launch,
            alone_ms,
            slowed(beside_ms, before, after),
            self._worked(),
            self._overhead.of_turn(burst),
            self._overhead.harness_ms,
            tuple(states),
            self._resolution_ms,
            most,
            kept_share(beside_ms, before, after),
            statistics.fmean(charged_ms[1]),
        )

    def _charged_ms(self) -> list[list[float]]:
        """What is added to the calls of each pair on a CPU: by how much either arm ran longer before than is usual.

        It runs there to drop its last outputs. A program that reads its weights then finds them near, and takes at
        least as long for it as that saves. On a GPU the judge empties the cache that counts.
        """
        calls = self.calls_per_turn if self.reference.device.name == "cpu" else math.inf
        over_ms = [beyond_usual(self._awake_ms[False], times) for times in self._awake_ms.values()]
        return [[time / calls for time in times] for times in over_ms]

    def _swapped(self, order: tuple[bool, bool], warm: InputSet) -> tuple[bool, bool]:
        """Return the other order of the arms, in which the first turn comes behind one of the same arm.

        Such a turn takes less time. So either arm has as many of them: each odd pair swaps, the others do by chance,
        and settling turns end like the pair before them. On a CPU, where a turn costs little, one of the other arm
        comes in between.
        """
        second, first = order
        if self.reference.device.name == "cpu":
            self._turn([warm] * self.burst, is_candidate=second)
        return first, second

    def _settle(self, warm: InputSet, order: tuple[bool, bool]) -> None:
        """Make turns that are not timed: the first ones after a break take longer."""
        for is_candidate in order * _SETTLING_TURNS:
            self._turn([warm] * self.burst, is_candidate=is_candidate)

    def _lengthen(self) -> None:
        """Make more calls in one go where the candidate's take less time than the reference's.

        The reference's latency says how many calls make a turn long enough. A candidate that is five times as fast
        would have turns a fifth as long, and the same uncertainty at their ends. How long its calls take the judge sees
        by its own clock, in turns that are not used for anything else.
        """
        if self.longer is None or self.longer.most <= self.burst:
            return
        turn = self.sets(WARM_SETS - 1, WARM_SETS) * self.burst
        empty = [self._trusted(turn, empty=True).elapsed_ns * 1e-6 for _ in range(SOLO_TURNS)]
        beside = statistics.median(empty)
        full: list[float] = []
        for number in range(SOLO_TURNS):
            full.append(self._elapsed_ms(turn, is_candidate=True))
            if number and min(full) - beside > 2 * self.longer.below_ms * self.burst:  # no need to look again
                return
        call_ms = max(statistics.median(full) - beside, 1e-3) / self.burst
        wanted = min(self.longer.most, math.ceil(self.longer.turn_ms / call_ms))
        if call_ms < self.longer.below_ms and wanted > self.burst:
            self.burst = wanted
            self.calls_per_turn = max(wanted, self.calls_per_turn // wanted * wanted)

    @property
    def _longest(self) -> int:
        """Most calls that are made in one go, those among them that tell the overhead."""
        return max(2, self.burst)

    def _plan(self, pair: int) -> Stays:
        """What each arm does in a pair: the turn, then calls made alone; the same for both arms.

        Turns of the two arms are neighbours in time: what changes within tens of milliseconds then falls on both alike.
        On a GPU calls of some pairs are watched. The number of calls is on the control page before the worker is
        stopped, so what is watched is as long as one of the others, and stands before or behind that one.
        """
        stays: list[list[tuple[int, Kind]]] = [[(self.burst, "turn")] * (self.calls_per_turn // self.burst)]
        if self.burst > 1:
            stays.append([(1, "single")] * SINGLES)
        watches = self.closely or pair < _WATCHED_FIRST or self.random.random() < _WATCHED
        if watches and self.reference.device.name != "cpu":
            places = [(stay, place) for stay in stays for place in range(len(stay))]
            stay, place = places[int(self.random.integers(len(places)))]
            stay.insert(place + int(self.random.integers(2)), (stay[place][0], "watch"))
        return stays

    def _pair(self, sets: list[InputSet], plan: Stays, order: Sequence[bool], warm: InputSet) -> dict[bool, float]:
        """Make a plan's calls with both arms; return the mean latency of a call of their turns in milliseconds.

        On a CPU large temporaries put what the reference needs out of the cache that cores share. So where it seemed
        slowed before, each arm begins with an untimed call, which brings its own back.
        """
        total_ms = {False: 0.0, True: 0.0}
        self._ran_ms = {False: 0.0, True: 0.0}
        unused = iter(sets)
        for stay in plan:
            parts = [(list(itertools.islice(unused, count)), kind) for count, kind in stay]
            for is_candidate in order:
                if self.closely and self.reference.device.name == "cpu":
                    self._turn([warm], is_candidate=is_candidate)
                for part, kind in parts:
                    elapsed_ms = self._elapsed_ms(part, is_candidate=is_candidate, watch=kind == "watch")
                    if kind == "turn":
                        total_ms[is_candidate] += self._net_ms(elapsed_ms, len(part))
                    elif kind == "single":
                        self._single_ms[is_candidate].append(elapsed_ms)
        for is_candidate, ran_ms in self._ran_ms.items():
            self._awake_ms[is_candidate].append(ran_ms)
        return {is_candidate: total / self.calls_per_turn for is_candidate, total in total_ms.items()}

    def _worked(self) -> tuple[int, int]:
        """See `LaunchResult.worked`."""
        both = [(mine > 0, other > 0) for mine, other in zip(self._taken_s[True], self._taken_s[False], strict=True)]
        return both.count((True, False)), both.count((False, True))

    def _measure_overhead(self, sets: list[InputSet], warm: InputSet) -> None:
        """Learn from the reference what a turn takes beside its calls; outputs of empty calls are those on `warm`."""
        if self.reference.device.name == "cpu":
            self._empty_ms = self._empty_turns(warm, _EMPTY_CALLS)
            self._overhead = of_cpu(self._empty_ms, self.reference.describing_ns * 1e-6)
        else:
            n = self._longest
            m = n // 2
            slopes = _LONG_SLOPES if self.burst == 1 and self.reference_s > _LONG_S else _SLOPES
            empty: dict[int, list[float]] = {m: [], n: []}
            full: dict[int, list[float]] = {m: [], n: []}
            for number in range(_SLOPES):
                for count in (m, n):
                    empty[count].append(self._trusted([warm] * count, empty=True).elapsed_ns * 1e-6)
                    if number < slopes:
                        full[count].append(self._trusted(sets[:count]).elapsed_ns * 1e-6)
            self._empty_ms = empty[n]
            self._overhead = of_gpu(empty, full)
        turn_ms = self._overhead.of_turn(self.burst)
        self._resolution_ms = max(self._overhead.spread_ms, _RESOLUTION * turn_ms) / self.burst

    def _empty_turns(self, warm: InputSet, number: int) -> list[float]:
        """Times of as many empty turns of the reference, on a GPU of the length that its overhead is learnt from."""
        count = 1 if self.reference.device.name == "cpu" else self._longest
        return [self._trusted([warm] * count, empty=True).elapsed_ns * 1e-6 for _ in range(number)]

    def _overstated_ms(self, warm: InputSet) -> float:
        """By how much a call's overhead was learnt too large, now that the candidate is dead; 0 within noise."""
        over = overstated_ms(self._empty_ms, self._empty_turns(warm, len(self._empty_ms)))
        self._overhead = replace(self._overhead, fixed_ms=self._overhead.fixed_ms - over)
        return over / self.burst

    def _alone(self, sets: list[InputSet]) -> list[float]:
        return [self._turn(part, is_candidate=False) for part in _groups(sets, self.burst)]

    def _turn(self, sets: list[InputSet], *, is_candidate: bool) -> float:
        """Call an arm once on each set; return the mean latency of a call in milliseconds."""
        total = 0.0
        for part in _groups(sets, self.burst):
            total += self._net_ms(self._elapsed_ms(part, is_candidate=is_candidate), len(part))
        return total / len(sets)

    def _net_ms(self, elapsed_ms: float, count: int) -> float:
        """What so many calls in one go took, without the overhead."""
        return max(elapsed_ms - self._overhead.of_turn(self.burst), self._resolution_ms * count)

    def _elapsed_ms(self, part: list[InputSet], *, is_candidate: bool, watch: bool = False) -> float:
        """Make calls in one go, compare their outputs, and return the milliseconds that the judge's clock saw."""
        if is_candidate:
            call = self.candidate.call(part, watch=watch)
            for one, comparisons in zip(part, call.comparisons, strict=True):
                self.tally.check(one, comparisons)
            self.tally.full_checks += call.full_checks
        else:
            call = self._trusted(part, watch=watch)
        self._ran_ms[is_candidate] += call.awake_ns * 1e-6
        if call.taken_s is not None:
            self._taken_s[is_candidate].append(call.taken_s)
        return call.elapsed_ns * 1e-6

    def _trusted(self, sets: list[InputSet], *, empty: bool = False, watch: bool = False) -> Call:
        try:
            call = self.reference.call(sets, empty=empty, watch=watch)
        except Fault as fault:
            raise TaskError(f"expected the reference to answer, got {fault.status}: {fault.message}") from fault
        if not all(comparison.right for one in call.comparisons for comparison in one):
            errors = [comparison.error for one in call.comparisons for comparison in one]
            raise TaskError(f"expected the reference to agree with its own float64 answer, errors over scale: {errors}")
        return call


def _groups(sets: list[InputSet], size: int) -> list[list[InputSet]]:
    return [sets[start : start + size] for start in range(0, len(sets), size)]


def proven(launch: Launch, reference_ms: Sequence[float], candidate_ms: Sequence[float]) -> float:
    """Return the speedup that calls made alone show, at least 1: no more than that is certain of calls in one go.

    What a call takes in one go, less what it saves alone: r / (r - max(0, d)), d the difference of the medians.

    Args:
        launch: Turns of several calls in one go.
        reference_ms: Calls made alone, with all that a turn takes beside its call.
        candidate_ms: The same of the candidate.
    """
    whole = statistics.median(launch.reference_ms)
    saved = max(0.0, statistics.median(reference_ms) - statistics.median(candidate_ms))
    return whole / max(whole - saved, 1e-3 * whole)


def believed(launch: Launch, reference_ms: Sequence[float], candidate_ms: Sequence[float]) -> Launch:
    """Return a launch in which the candidate saves no more than calls made alone allow.

    Calls that are made in one go find all their inputs at once: a program could do their work together. Made alone it
    cannot. So what it saves on a call is at most what it saves there, plus three standard errors.

    Args:
        launch: Turns of several calls in one go.
        reference_ms: Calls made alone, with all that a turn takes beside its call.
        candidate_ms: The same of the candidate.
    """
    reference, candidate = median_and_error(reference_ms), median_and_error(candidate_ms)
    most = reference[0] - candidate[0] + 3.0 * math.hypot(reference[1], candidate[1])
    result = Launch()
    for mine, other in zip(launch.reference_ms, launch.candidate_ms, strict=True):
        result = result.add(mine, max(other, mine - max(most, 0.0)))
    return result
