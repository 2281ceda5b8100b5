"""Watched calls look like the others and stand anywhere among them; what they see is told from a slowed reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cudal1_env.judge import JudgeSettings
from cudal1_env.judge.measure.arm import Arm, Call, Fault
from cudal1_env.judge.measure.interference import beyond_chance
from cudal1_env.judge.measure.trial import SOLO_AFTER, LaunchResult, Measurement, Tally
from cudal1_env.judge.measure.trials import Launches
from cudal1_env.judge.oracle.pool import WARM_SETS, InputSet
from cudal1_env.records import Status
from cudal1_env.stats import Launch

Go = tuple[int, bool]
"""Calls in one go, and whether they are watched."""


class Gpu:
    """Both arms of a double of a GPU, and what each did in the pairs: one list for each stay of an arm on the GPU.

    Args:
        armed: Whether the candidate's trap is set for so many calls in one go, as so many-th since the other arm ran.
    """

    def __init__(self, armed: Any = lambda count, place: False, device: str = "cuda") -> None:
        self.armed = armed
        self.device = SimpleNamespace(name=device, state=lambda: None)
        self.stays: list[tuple[str, list[Go]]] = []
        self.trapped = 0

    def arm(self, who: str) -> Arm:
        def call(sets: list[Any], *, empty: bool = False, watch: bool = False) -> Call:
            count, trapped = len(sets), False
            if not empty and sets[0].index >= WARM_SETS:
                if not self.stays or self.stays[-1][0] != who:
                    self.stays.append((who, []))
                stay = self.stays[-1][1]
                trapped = who == "C" and self.armed(count, len(stay))
                self.trapped += trapped and not watch
                stay.append((count, watch))
            taken_s = (2e-4 if trapped else 0.0) if watch else None
            elapsed_ms = 0.05 + (0.0 if empty or trapped else 1.0 * count)
            return Call(int(1e6 * elapsed_ms), ((),) * count, 0, taken_s)

        def nothing(*_: object) -> None: ...

        arm = SimpleNamespace(
            call=call, device=self.device, limit=nothing, at_most=nothing, close=nothing, describing_ns=0
        )
        return cast(Arm, arm)

    def measured(self, seed: int, *, burst: int, pairs: int = 8, turn: int = 1, closely: bool = False) -> LaunchResult:
        def sets(first: int, last: int) -> list[InputSet]:
            return [
                cast(InputSet, SimpleNamespace(index=k, answers=(), distribution="own")) for k in range(first, last)
            ]

        return Measurement(
            self.arm("R"),
            self.arm("C"),
            sets,
            lambda first, last: None,
            np.random.default_rng(seed),
            Tally(),
            reference_s=1e-3,
            most_pairs=pairs,
            calls_per_turn=turn * burst,
            burst=burst,
            closely=closely,
        ).run(lambda launch: False)

    @property
    def plans(self) -> tuple[list[Go], list[Go]]:
        """All of the pairs' calls of the reference and of the candidate, without those of the reference alone."""
        goes = {who: [go for one, stay in self.stays if one == who for go in stay] for who in "RC"}
        alone = len(goes["R"]) - len(goes["C"])
        begin = next(k for k in range(alone + 1) if goes["R"][k : k + len(goes["C"])] == goes["C"])
        return goes["R"][begin : begin + len(goes["C"])], goes["C"]


@pytest.mark.parametrize(("burst", "turn"), [(1, 1), (1, 2), (4, 1)])
def test_both_arms_follow_one_plan_and_what_is_watched_is_as_long_as_other_calls(burst: int, turn: int) -> None:
    for seed in range(20):
        gpu = Gpu()
        gpu.measured(seed, burst=burst, turn=turn)
        reference, candidate = gpu.plans
        assert reference == candidate
        watched = [count for count, watch in candidate if watch]
        assert 4 <= len(watched) <= 8
        assert set(watched) <= {1, burst}
        assert len(candidate) - len(watched) == 8 * (turn + 2 * (burst > 1))


def test_a_watched_call_is_the_first_of_its_arm_as_often_as_not() -> None:
    first = 0
    for seed in range(100):
        gpu = Gpu()
        gpu.measured(seed, burst=1, pairs=4, closely=True)
        goes = gpu.plans[1]
        assert len(goes) == 8
        first += sum(goes[k][1] for k in range(0, 8, 2))
    assert 150 < first < 250, "expected half of 400"


def test_calls_alone_and_calls_in_one_go_are_both_watched() -> None:
    watched: list[int] = []
    for seed in range(50):
        gpu = Gpu()
        gpu.measured(seed, burst=4)
        watched += [count for count, watch in gpu.plans[1] if watch]
    assert 0.2 < watched.count(4) / len(watched) < 0.5
    assert watched.count(1) + watched.count(4) == len(watched)


def test_turns_of_a_pair_are_neighbours() -> None:
    for seed in range(20):
        gpu = Gpu()
        gpu.measured(seed, burst=4)
        goes = [(who, count, watch) for who, stay in gpu.stays for count, watch in stay]
        begin = len(goes) - 2 * len(gpu.plans[1]) - SOLO_AFTER  # the reference alone comes before and behind
        turns = [(k, who) for k, (who, count, watch) in enumerate(goes[begin:-SOLO_AFTER]) if count == 4 and not watch]
        assert len(turns) == 16
        for (first, one), (second, other) in zip(turns[::2], turns[1::2], strict=True):
            assert {one, other} == {"R", "C"}
            assert all(watch for _, _, watch in goes[begin:][first + 1 : second])


def test_nothing_is_watched_on_a_cpu() -> None:
    gpu = Gpu(device="cpu")
    result = gpu.measured(0, burst=1, turn=3, closely=True)
    assert not any(watch for _, stay in gpu.stays for _, watch in stay)
    assert result.worked == (0, 0)
    assert not result.suspect


TRAPS: dict[str, tuple[int, Any]] = {
    "calls alone": (4, lambda count, place: count == 1),
    "calls in one go": (4, lambda count, place: count > 1),
    "the first after the other arm": (1, lambda count, place: place == 0),
    "all but the first after the other arm": (4, lambda count, place: place > 0),
    "a call alone that is not the first": (4, lambda count, place: count == 1 and place > 0),
    "every call": (1, lambda count, place: True),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_seen_whatever_sets_it_off(name: str) -> None:
    burst, armed = TRAPS[name]
    suspect = 0
    for seed in range(100):
        gpu = Gpu(armed)
        result = gpu.measured(seed, burst=burst, pairs=8)
        assert gpu.trapped, "expected a trap that gains something"
        assert not result.slowed
        assert result.worked[1] == 0
        suspect += result.suspect
    assert suspect >= 85, "expected what chance gives: 0.89 of launches where the trap waits for the other arm's turn"


def test_the_first_pairs_of_a_launch_that_ends_early_are_all_watched() -> None:
    assert sum(Gpu(lambda count, place: True).measured(seed, burst=1, pairs=4).suspect for seed in range(20)) == 20


def test_turns_of_several_goes_are_averaged_without_what_is_watched() -> None:
    result = Gpu(lambda count, place: False).measured(5, burst=2, turn=3, closely=True)
    assert result.launch.reference_ms == pytest.approx((1.0,) * 8, rel=1e-6)
    assert result.launch.candidate_ms == pytest.approx((1.0,) * 8, rel=1e-6)


def test_others_on_the_gpu_are_rarely_beyond_chance() -> None:
    chance = np.random.default_rng(0)
    blamed = 0
    for _ in range(4000):
        seen = chance.random((5, 12, 2)) < 0.5  # launches, watched pairs, arms
        mine, other = (np.cumsum((seen[:, :, k] & ~seen[:, :, 1 - k]).sum(1)) for k in (0, 1))
        blamed += any(beyond_chance(int(a), int(b)) for a, b in zip(mine, other, strict=True))
    assert blamed <= 4
    assert not beyond_chance(0, 0)


def result(worked: tuple[int, int] = (0, 0), *, slowed: bool = False, kept_share: float = 1.0) -> LaunchResult:
    launch = Launch((1.0,) * 4, (0.5,) * 4)
    return LaunchResult(launch, (1.0, 1.0), slowed, worked, 0.1, 0.01, kept_share=kept_share)


class Script:
    """Launches whose results are given: of the candidate, and of the reference beside itself."""

    def __init__(self, candidate: list[LaunchResult], itself: list[LaunchResult]) -> None:
        self.results = {False: iter(candidate), True: iter(itself)}
        self.launches: list[tuple[bool, bool]] = []
        self.case = SimpleNamespace(
            launches=[],
            overheads_ms=[],
            harnesses_ms=[],
            charged_ms=[],
            proven=[],
            kept_shares=[],
            states=[],
            looks=[],
            kept_s=0.0,
        )
        self.case.watch = SimpleNamespace(phases={"measure": 0.5})
        settings = SimpleNamespace(settings=None, device=SimpleNamespace(name="cuda"))
        self.one: Any = Launches(cast(Any, settings), cast(Any, None))
        self.one._launch = lambda built, pool, *, closely: self.next(False, closely)
        self.one._beside_itself = lambda case, pool, *, closely: self.next(True, closely)

    def next(self, itself: bool, closely: bool) -> LaunchResult:
        self.launches.append((itself, closely))
        if not itself:
            self.case.watch.phases["measure"] += 1.0
        return next(self.results[itself])

    def run(self) -> None:
        self.one._one_launch(SimpleNamespace(case=self.case), None)


def test_work_ahead_is_blamed_after_two_launches_that_chance_does_not_explain() -> None:
    script = Script([result((8, 0)), result((11, 0))], [result(), result((1, 1))])
    with pytest.raises(Fault, match="while the program stands still, in 2 launches") as found:
        script.run()
    assert found.value.status is Status.TAMPERING
    assert script.launches == [(False, False), (True, False), (False, True)]


def test_one_launch_is_not_enough_however_clear() -> None:
    script = Script([result((26, 0)), result()], [result()])
    script.run()
    assert len(script.case.launches) == 1


def test_a_launch_that_is_repeated_takes_no_time_from_the_one_that_counts() -> None:
    script = Script([result((8, 0)), result(), result()], [result()])
    script.run()
    assert (script.case.kept_s, script.case.watch.phases["measure"]) == (1.0, 2.5)
    script.run()
    assert script.case.kept_s == 2.0
    budget_s = JudgeSettings().budget_training_s
    for kept_s in (0.0, 2.0):
        one = SimpleNamespace(kept_s=kept_s, measuring_s=lambda: 0.5 * budget_s, precision="training")
        script.one._settings = JudgeSettings()
        assert script.one._spent(one) == (kept_s > budget_s)


@pytest.mark.parametrize(
    ("one", "itself"),
    [(result((8, 0)), result((5, 1))), (result((1, 0)), result((1, 0))), (result(slowed=True), result(slowed=True))],
)
def test_where_the_reference_beside_itself_is_busy_too_the_machine_is(one: LaunchResult, itself: LaunchResult) -> None:
    script = Script([one], [itself])
    script.run()
    assert len(script.case.launches) == 1
    assert [look.itself for look in script.case.looks] == [False, True]


@pytest.mark.parametrize("itself", [result((3, 0)), result(slowed=True), result()])
def test_a_little_of_it_beside_itself_is_no_excuse(itself: LaunchResult) -> None:
    script = Script([result((8, 0))] * 2, [itself] * 2)
    with pytest.raises(Fault, match="in 2 launches"):
        script.run()


def test_a_slowed_reference_is_not_excused_by_work() -> None:
    script = Script([result(slowed=True)] * 5, [result((2, 0))] * 5)
    with pytest.raises(Fault, match="in 5 launches it was slowed"):
        script.run()


def test_a_reference_slowed_a_little_beside_itself_does_not_excuse_one_slowed_much() -> None:
    much, little = result(slowed=True, kept_share=0.7), result(slowed=True, kept_share=0.93)
    script = Script([much] * 5, [little] * 5)
    with pytest.raises(Fault, match="in 5 launches it was slowed"):
        script.run()
    half = result(slowed=True, kept_share=0.8)
    script = Script([much], [half])
    script.run()
    assert script.case.kept_shares == [0.7]


def test_what_earlier_launches_of_an_evaluation_saw_counts() -> None:
    script = Script([result((8, 0)), result((8, 0))], [result((4, 0))])
    script.run()  # the machine was busy, it seems
    with pytest.raises(Fault, match="in 1 launches"):
        script.run()


@pytest.mark.parametrize(("one", "text"), [(result((1, 0)), "in 5 launches something"), (result(slowed=True), "5 %")])
def test_what_chance_might_explain_has_five_chances(one: LaunchResult, text: str) -> None:
    script = Script([one] * 5, [result()] * 5)
    with pytest.raises(Fault, match=text):
        script.run()
    assert len(script.launches) == 10
    script = Script([one] * 4 + [result()], [result()] * 4)
    script.run()
    assert len(script.case.launches) == 1
