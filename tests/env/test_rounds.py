"""Who comes first, when launches confirm each other."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cudal1_env.judge.device.cuda_memory import STAGED_BYTES, CudaMemory
from cudal1_env.judge.measure.arm import Arm, Call
from cudal1_env.judge.measure.trial import SOLO_AFTER, SOLO_TURNS, LaunchResult, Longer, Measurement, Tally
from cudal1_env.judge.measure.trials import confirmed
from cudal1_env.judge.oracle.pool import WARM_SETS, InputSet
from cudal1_env.stats import Launch


def test_launches_confirm_each_other_within_ten_percent_and_their_noise() -> None:
    steady = Launch((4.0,) * 8, (1.0,) * 8)
    assert confirmed([steady, Launch((4.2,) * 8, (1.0,) * 8)])
    assert not confirmed([steady, Launch((8.0,) * 8, (1.0,) * 8)])
    assert not confirmed([steady])
    assert confirmed([steady, Launch((8.0,) * 8, (1.0,) * 8), Launch((8.1,) * 8, (1.0,) * 8)])
    noise = random.Random(1)
    blurred = Launch((4.0,) * 8, tuple(noise.lognormvariate(0.2, 0.5) for _ in range(8)))
    assert confirmed([steady, blurred])


class StillArm:
    """An arm whose calls take a millisecond, and that notes who was called."""

    def __init__(self, who: str, log: list[str], call_ms: float = 1.0) -> None:
        self.who, self.log, self.call_ms = who, log, call_ms
        self.device = SimpleNamespace(name="cpu", state=lambda: None)
        self.describing_ns = 0

    def call(self, sets: list[object], *, empty: bool = False, watch: bool = False) -> Call:
        if not empty and cast(SimpleNamespace, sets[0]).index >= WARM_SETS:
            self.log.append(self.who)
        elapsed_ms = 0.05 + (0 if empty else self.call_ms * len(sets))
        return Call(int(1e6 * elapsed_ms), ((),) * len(sets), 0, None)

    def limit(self, reference_s: float) -> None: ...

    def at_most(self, calls: int) -> None: ...

    def close(self) -> None: ...


def sets(first: int, last: int) -> list[InputSet]:
    return [cast(InputSet, SimpleNamespace(index=k, answers=(), distribution="own")) for k in range(first, last)]


@pytest.mark.parametrize("seed", range(8))
def test_each_arm_comes_first_equally_often(seed: int) -> None:
    log: list[str] = []
    measurement = Measurement(
        cast(Arm, StillArm("R", log)),
        cast(Arm, StillArm("C", log)),
        sets,
        lambda first, last: None,
        np.random.default_rng(seed),
        Tally(),
        reference_s=1e-3,
        most_pairs=20,
        calls_per_turn=1,
        burst=1,
    )
    launch = measurement.run(lambda launch: False).launch
    assert launch.pairs == 20
    begin = len(log) - SOLO_AFTER - 40
    pairs = [log[begin + 2 * pair : begin + 2 * pair + 2] for pair in range(20)]
    assert all(sorted(pair) == ["C", "R"] for pair in pairs)
    first = "".join(pair[0] for pair in pairs)
    assert all(first[k] != first[k + 1] for k in range(0, 20, 2)), first
    assert first not in ("RC" * 10, "CR" * 10), "expected an order that cannot be foreseen"


@pytest.mark.parametrize(
    ("reference_ms", "candidate_ms", "burst", "expected"),
    [(1.3, 0.2, 1, 15), (0.5, 0.1, 6, 20), (0.5, 0.4, 6, 8), (0.5, 0.5, 6, 6), (0.5, 1.0, 6, 6), (4.0, 2.0, 1, 1)],
    ids=["much faster", "faster", "a little faster", "as fast", "slower", "long calls"],
)
def test_a_faster_candidate_makes_more_calls_in_one_go(
    reference_ms: float, candidate_ms: float, burst: int, expected: int
) -> None:
    measurement = Measurement(
        cast(Arm, StillArm("R", [], reference_ms)),
        cast(Arm, StillArm("C", [], candidate_ms)),
        sets,
        lambda first, last: None,
        np.random.default_rng(0),
        Tally(),
        reference_s=1e-3,
        most_pairs=8,
        calls_per_turn=burst,
        burst=burst,
        longer=Longer(20, 1.0, 3.0),
    )
    launch = measurement.run(lambda launch: False).launch
    assert measurement.burst == measurement.calls_per_turn == expected
    assert launch.reference_ms == pytest.approx((reference_ms,) * 8, rel=1e-3)
    assert launch.candidate_ms == pytest.approx((candidate_ms,) * 8, rel=1e-3)


def measured(
    reference: StillArm,
    candidate: StillArm,
    *,
    burst: int,
    pairs: int = 8,
    reference_s: float = 1e-3,
    longer: Longer | None = None,
    make: Callable[[int, int], list[InputSet]] = sets,
    prepare: Callable[[int, int], None] = lambda first, last: None,
    seed: int = 0,
    closely: bool = False,
) -> LaunchResult:
    """Measure one launch of turns of `burst` calls."""
    return Measurement(
        cast(Arm, reference),
        cast(Arm, candidate),
        make,
        prepare,
        np.random.default_rng(seed),
        Tally(),
        reference_s=reference_s,
        most_pairs=pairs,
        calls_per_turn=burst,
        burst=burst,
        longer=longer,
        closely=closely,
    ).run(lambda launch: False)


def run_logged(device: str) -> tuple[list[list[int]], list[list[int]], list[tuple[int, int]]]:
    """Return the sets of each turn of the reference and of the candidate, and the ranges that were prepared."""

    class Noting(StillArm):
        def __init__(self, who: str) -> None:
            super().__init__(who, [])
            self.device = SimpleNamespace(name=device, state=lambda: None)
            self.turns: list[list[int]] = []

        def call(self, sets: list[object], *, empty: bool = False, watch: bool = False) -> Call:
            if not empty:
                self.turns.append([cast(SimpleNamespace, one).index for one in sets])
            return super().call(sets, empty=empty, watch=watch)

    reference, candidate = Noting("R"), Noting("C")
    prepared: list[tuple[int, int]] = []
    measured(reference, candidate, burst=4, pairs=20, prepare=lambda first, last: prepared.append((first, last)))
    return reference.turns, candidate.turns, prepared


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_candidate_meets_no_set_twice_but_those_of_untimed_calls(device: str) -> None:
    _, turns, prepared = run_logged(device)
    met = [index for turn in turns for index in turn if index >= WARM_SETS]
    assert len(met) == len(set(met))
    assert set(met) == set(range(WARM_SETS, prepared[-1][1])), "expected that nothing is made for nothing"
    watched = len(met) - 20 * (4 + 2)
    assert 4 <= watched <= 80 if device == "cuda" else watched == 0


def test_sets_are_made_for_some_pairs_at_a_time_and_both_arms_settle_behind() -> None:
    reference, candidate, prepared = run_logged("cpu")
    assert [first for first, _ in prepared] == [WARM_SETS, *(last for _, last in prepared[:-1])]
    assert len(prepared) == 3
    for turns in (reference, candidate):
        for first, _ in prepared[1:]:
            place = next(place for place, turn in enumerate(turns) if turn[0] == first)
            if turns is reference:  # it met the first sets before, alone
                place = max(place for place, turn in enumerate(turns) if turn[0] == first)
            assert all(set(turn) == {WARM_SETS - 1} for turn in turns[place - 2 : place])


def in_order(device: str, seed: int, *, closely: bool = False) -> list[tuple[str, int]]:
    """Who made a call, and on which set, of a launch of ten pairs from the candidate's first call on."""
    calls: list[tuple[str, int]] = []

    class Told(StillArm):
        def __init__(self, who: str) -> None:
            super().__init__(who, [])
            self.device = SimpleNamespace(name=device, state=lambda: None)

        def call(self, sets: list[object], *, empty: bool = False, watch: bool = False) -> Call:
            if not empty:
                calls.append((self.who, cast(SimpleNamespace, sets[0]).index))
            return super().call(sets, empty=empty, watch=watch)

    measured(Told("R"), Told("C"), burst=1, pairs=10, seed=seed, closely=closely)
    first = next(place for place, (who, _) in enumerate(calls) if who == "C")
    return calls[first : len(calls) - SOLO_AFTER]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_either_arm_may_be_the_last_one_before_the_first_pair(device: str) -> None:
    last = set[str]()
    for seed in range(16):
        calls = in_order(device, seed)
        last.add(calls[next(place for place, (_, index) in enumerate(calls) if index >= WARM_SETS) - 1][0])
    assert last == {"R", "C"}


@pytest.mark.parametrize("seed", range(4))
def test_on_a_cpu_no_timed_call_follows_one_of_its_own_arm(seed: int) -> None:
    calls = in_order("cpu", seed)
    assert all(before != who for (before, _), (who, index) in pairwise(calls) if index >= WARM_SETS)


@pytest.mark.parametrize(("device", "closely", "warmed"), [("cpu", True, 20), ("cpu", False, 0), ("cuda", True, 0)])
def test_where_the_reference_seemed_slowed_on_a_cpu_each_arm_begins_with_a_call_of_its_own(
    device: str, warmed: int, *, closely: bool
) -> None:
    calls = in_order(device, 0, closely=closely)
    assert (
        sum(before == (who, WARM_SETS - 1) for before, (who, index) in pairwise(calls) if index >= WARM_SETS) >= warmed
    )
    if not warmed and device == "cpu":
        assert all(before[0] != who for before, (who, index) in pairwise(calls) if index >= WARM_SETS)


@pytest.mark.parametrize(("device", "charged"), [("cpu", True), ("cuda", False)])
def test_what_a_candidate_does_before_its_calls_on_a_cpu_is_its_own_time(device: str, *, charged: bool) -> None:
    class Busy(StillArm):
        """Runs for a tenth of a millisecond before its calls, at times for two."""

        def __init__(self, who: str, often: float) -> None:
            super().__init__(who, [])
            self.device = SimpleNamespace(name=device, state=lambda: None)
            self.random, self.often = random.Random(who), often

        def call(self, sets: list[object], *, empty: bool = False, watch: bool = False) -> Call:
            long = self.random.random() < self.often
            return replace(
                super().call(sets, empty=empty), awake_ns=2_000_000 if long else self.random.randrange(90_000, 110_000)
            )

    def run(often: float, otherwise: float = 0.0) -> LaunchResult:
        return measured(Busy("R", otherwise), Busy("C", often), burst=1, pairs=20)

    honest, always, now_and_then = run(0.0), run(1.0), run(0.1)
    assert honest.charged_ms < 0.01
    assert honest.launch.reference_ms == pytest.approx((1.0,) * 20, abs=0.1)
    assert not always.slowed
    if charged:  # by as much as it does there
        assert always.charged_ms == pytest.approx(1.9, rel=0.05)
        assert min(always.launch.candidate_ms) > 2.7
        assert 0.1 < now_and_then.charged_ms < 0.5 * always.charged_ms
        both = run(0.05, 0.05)  # what a busy machine does falls on either arm
        assert 0.5 < np.mean(both.launch.candidate_ms) / np.mean(both.launch.reference_ms) < 2.0
        assert not both.slowed
    else:
        assert always.charged_ms == 0.0
        assert always.launch.candidate_ms == honest.launch.candidate_ms


class StrictArm(StillArm):
    """An arm that is not called before it knows its limit, and notes how many calls it makes in one go."""

    def __init__(self, who: str, device: str = "cuda") -> None:
        super().__init__(who, [])
        self.device = SimpleNamespace(name=device, state=lambda: None)
        self.limits_s: list[float] = []
        self.longest: int | None = None
        self.full: list[int] = []
        """Calls in one go before anything else was called than this arm."""

    def limit(self, reference_s: float) -> None:
        self.limits_s.append(reference_s)

    def at_most(self, calls: int) -> None:
        self.longest = calls
        self.full = []

    def call(self, sets: list[object], *, empty: bool = False, watch: bool = False) -> Call:
        assert self.limits_s, "expected a time limit before the first call"
        assert self.longest is None or len(sets) <= self.longest
        if not empty:
            self.full.append(len(sets))
        return super().call(sets, empty=empty, watch=watch)


def test_no_arm_is_called_before_its_time_limit_is_set() -> None:
    reference, candidate = StrictArm("R"), StrictArm("C")
    measured(reference, candidate, burst=6, reference_s=0.5e-3, longer=Longer(20, 1.0, 3.0))
    assert reference.limits_s[0] == candidate.limits_s[0] == 0.5e-3


@pytest.mark.parametrize(("burst", "most", "longest"), [(1, 1, 2), (6, 6, 6), (6, 20, 20)])
def test_both_arms_learn_the_longest_go_before_anything_is_learnt_from_them(
    burst: int, most: int, longest: int
) -> None:
    reference, candidate = StrictArm("R"), StrictArm("C")
    candidate.call_ms = 0.1
    measured(reference, candidate, burst=burst, longer=Longer(most, 2.0, 3.0))
    assert reference.longest == candidate.longest == longest
    assert max(reference.full) == longest
    assert max(candidate.full) == max(burst, most)


@pytest.mark.parametrize(("most", "staged"), [(1, True), (2, True), (3, False)])
@pytest.mark.parametrize("count", [1, 2])
def test_how_inputs_come_is_the_same_for_all_calls_of_a_launch(most: int, count: int, *, staged: bool) -> None:
    done: list[str] = []
    memory = cast(Any, object.__new__(CudaMemory))
    memory.cold, memory.most_calls, memory._input_bytes = False, most, STAGED_BYTES // 2
    memory._device = SimpleNamespace(reset=lambda: None, flush=lambda: done.append("flush"))
    memory._copies = SimpleNamespace(copy=lambda *_: done.append("copy"))
    memory._staged = memory._sizes = memory._slot = lambda number: SimpleNamespace(data_ptr=lambda: 0)
    memory._open_gate = lambda turn: done.append("gate")
    memory.supply(1, 0, [SimpleNamespace(data_ptr=lambda: 0)] * count, watch=False)
    assert done == (["copy", "flush", "gate", "copy"] if staged else ["gate", "copy", "flush"])


@pytest.mark.parametrize(("reference_s", "slopes"), [(36e-3, 2), (5e-3, 6)])
def test_little_of_the_time_for_long_calls_goes_into_learning_the_overhead(reference_s: float, slopes: int) -> None:
    reference = StrictArm("R")
    measured(reference, StrictArm("C"), burst=1, reference_s=reference_s)
    assert reference.full.count(2) == slopes, "only there two calls are made in one go"


def test_a_pairs_sets_are_let_go_of_before_the_next_ones_are_made() -> None:
    class Set:
        answers, distribution = (), "own"

        def __init__(self, index: int) -> None:
            self.index = index

    alive: weakref.WeakSet[Set] = weakref.WeakSet()
    most = 0

    def unkept(first: int, last: int) -> list[InputSet]:
        nonlocal most
        made = [Set(index) for index in range(first, last)]
        alive.update(made)
        most = max(most, len(alive))
        return cast(list[InputSet], made)

    measured(StrictArm("R"), StrictArm("C"), burst=50, pairs=20, make=unkept)
    assert most <= SOLO_TURNS * 50 + 1 + 2 * 50 + 2, "expected those for turns alone, a warm one, and a pair's"
