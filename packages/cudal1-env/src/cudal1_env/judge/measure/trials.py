"""Measures one built candidate: fresh pairs of workers, launch after launch, until the rule is satisfied."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Sequence

import numpy as np
from cudal1_worker import protocol as wire

from cudal1_env.errors import TaskError, TooLargeError
from cudal1_env.judge.device.roofline import Floor
from cudal1_env.judge.measure.arm import Arm, Fault
from cudal1_env.judge.measure.builder import Builder, Built
from cudal1_env.judge.measure.case import Case, printable
from cudal1_env.judge.measure.headroom import Room
from cudal1_env.judge.measure.host_memory import check_host_memory
from cudal1_env.judge.measure.interference import beyond_chance
from cudal1_env.judge.measure.trial import (
    SETS_BESIDE,
    SETS_BY_CALL,
    SINGLES,
    LaunchResult,
    Longer,
    Measurement,
)
from cudal1_env.judge.oracle.client import Anatomy
from cudal1_env.judge.oracle.pool import WARM_SETS, InputSet, Pool, WeightsMode
from cudal1_env.records import Evaluation, Look, Precision, Status
from cudal1_env.stats import RULES, Launch, Spread, centre, conclude, decide

_SLOWED_LAUNCHES = 5
"""Launches in which the reference must be slowed, and as many beside itself in which it must not, each after one of
the former, before that is called tampering. What is slowed half the time by chance is blamed in 1 of 1024 evaluations.
Two are enough where what runs before the candidate's calls is beyond chance.
"""

_WARM_REPEATS = 3
"""Further untimed calls of the reference, which tell how long it takes once all is compiled and allocated."""
_RECHECKED_ABOVE = 3.0
"""Speedups of which this much is certain must be found in two launches (DESIGN.md, protocol 9)."""
_MOST_LAUNCHES_TO_AGREE = 3
_NOTICEABLE_S = 0.03
"""More than handing over an untimed call and comparing what it gave takes."""
_MUCH_BYTES = 2 << 30
"""More of a GPU's memory than a program that was only imported needs: a context takes some 0.5 GiB."""
_BLAME_TRIES = 4
_BLAME_PAUSE_S = 0.5


class Launches:
    """Measures built candidates. What is leased is the caller's to see to.

    Args:
        builder: Makes workers.
        spread: The machine's, from launch to launch.
    """

    def __init__(self, builder: Builder, spread: Spread) -> None:
        self._builder = builder
        self._settings, self._device = builder.settings, builder.device
        self._spread = spread

    def measure(self, built: Built, pool: Pool) -> Evaluation:
        """Measure launches until the rule is satisfied and, for large speedups, two of them agree."""
        case, rule = built.case, RULES[built.case.precision]
        case.first_set = pool.fresh
        while decide(case.launches, rule, spread=self._spread, spent=self._spent(case)) != "stop":
            self._one_launch(built, pool)
        speedup = conclude(case.launches, rule, spread=self._spread)
        if speedup.low > _RECHECKED_ABOVE:
            while not confirmed(case.launches):
                if len(case.launches) >= max(_MOST_LAUNCHES_TO_AGREE, rule.min_launches):
                    return case.unstable(speedup)
                self._one_launch(built, pool)
            speedup = conclude(case.launches, rule, spread=self._spread)
        if (single_ms := self._forbidden(built, pool)) is not None and case.floor is not None:
            return case.impossible(speedup, case.floor, single_ms)
        return case.measured(speedup)

    def _forbidden(self, built: Built, pool: Pool) -> float | None:
        """Return the latency of single calls if it is below what the task's floor allows; None if all is well.

        Nothing rests on one look: the device's peaks are measured again, then the candidate in new processes, without
        bursts. A floor that the reference itself breaks is none.

        Raises:
            Fault: The candidate fails.
        """
        case = built.case
        reference = [ms for launch in case.launches for ms in launch.reference_ms]
        candidate = [ms for launch in case.launches for ms in launch.candidate_ms]
        if case.floor is None or not case.floor.forbids(candidate):
            return None
        case.floor = self.floor(case, pool, again=True)
        if case.floor is not None and case.floor.is_broken_by(reference):
            case.floor = None
        if case.floor is None or not case.floor.forbids(candidate):
            return None
        single = self._launch(built, pool, bursts=False)
        times = single.launch.candidate_ms
        return float(np.median(times)) if case.floor.forbids(times, resolution_ms=single.resolution_ms) else None

    def floor(self, case: Case, pool: Pool, *, again: bool = False) -> Floor | None:
        """The speed of light of a case's task; the device's peaks are measured where they are not known."""
        anatomy = pool.anatomy
        return self._device.floor(anatomy.tensor_bytes, anatomy.written_bytes, case.shares, again=again)

    def _one_launch(self, built: Built, pool: Pool) -> None:
        """Add one launch to the case, in new processes; repeat it while the candidate seems to work beside its turns.

        After each such launch, one of the reference beside itself tells whose fault that is. They take turns, because a
        machine is busy for seconds at a time. All but the first are watched closely. What the evaluation's earlier
        launches saw counts too where work is weighed against chance.

        Raises:
            Fault: The candidate fails, or slows the reference each time, or works while it stands still.
        """
        case, message = built.case, ""
        for number in range(_SLOWED_LAUNCHES):
            before_s = case.watch.phases.get("measure", 0.0)
            result = self._launch(built, pool, closely=number > 0)
            measured_s = case.watch.phases["measure"] - before_s
            case.looks.append(result.look(itself=False))
            if result.suspect and ahead(case.looks):
                message = suspect_text(result, number + 1)
                break
            twin = self._beside_itself(case, pool, closely=number > 0) if result.suspect else None
            if twin is not None:
                case.looks.append(twin.look(itself=True))
            if twin is None or twin.excuses(result):
                case.launches.append(result.launch)
                case.kept_s += measured_s
                case.overheads_ms.append(result.overhead_ms)
                case.harnesses_ms.append(result.harness_ms)
                case.charged_ms.append(result.charged_ms)
                case.proven.append(result.proven)
                if self._device.name != "cpu":
                    case.kept_shares.append(result.kept_share)
                case.states.append(result.states)
                return
            message = suspect_text(result, number + 1)
        raise Fault(Status.TAMPERING, message)

    def _beside_itself(self, case: Case, pool: Pool, *, closely: bool) -> LaunchResult:
        """Measure one launch with the reference in the candidate's place."""
        twin = Case(case.task, f"{case.task.source}\n\nModelNew = Model\n", case.precision)
        built = self._builder.build(twin, pool, leased=True)
        try:
            with _of_reference(pool):
                if built.fault is not None:
                    raise built.fault
                return self._launch(built, pool, closely=closely)
        finally:
            self._builder.drop(built)

    def _launch(self, built: Built, pool: Pool, *, bursts: bool = True, closely: bool = False) -> LaunchResult:
        """Measure one fresh pair of workers; both are dead afterwards.

        Args:
            built: The candidate.
            pool: Of its task.
            bursts: Whether short calls may be made several in one go; if not, their inputs are in no cache either.
            closely: Whether calls of each pair are watched.
        """
        case, candidate = built.case, self._builder.again(built, pool)
        reference = self._builder.reference(case, pool)
        room = Room(self._device)
        try:
            pool.rest()  # what is only kept for later is not there for the arms
            self._construct_reference(case, pool, reference)
            room.begin()
            mode = self._construct(case, pool, reference, candidate)
            self._check_room(room, candidate)
            reference_s = self._warm_reference(case, pool, mode, reference)
            candidate_s = self._warm_candidate(case, pool, mode, candidate)
            self._check_room(room, candidate)
            pairs, calls, burst, most = self._size(case.precision, reference_s, pool.anatomy, pool.room, bursts=bursts)
            if candidate_s > 2 * reference_s + _NOTICEABLE_S:  # plainly slower: no need to try more calls in one go
                most = burst
            with case.watch.phase("warmup"):
                warm = pool.sets(mode, WARM_SETS - 1, WARM_SETS)[0].inputs
                with _of_reference(pool):
                    reference.open(most, warm, cold=not bursts)
                candidate.open(most, warm, cold=not bursts)
            pool.fit(self._device.free_bytes(), 2 * max(most, calls) + SINGLES)
            own = _OwnSets(case, pool, mode)
            measurement = Measurement(
                reference,
                candidate,
                own.sets,
                own.prepare,
                np.random.default_rng(),  # by the system: one order for all launches of a pool would favour an arm
                case.tally,
                reference_s=reference_s,
                most_pairs=pairs,
                calls_per_turn=calls,
                burst=burst,
                longer=Longer(most, self._settings.burst_below_us * 1e-3, self._settings.burst_ms),
                closely=closely,
            )
            case.measuring = (time.perf_counter(), case.watch.phases.get("oracle", 0.0))
            try:
                return measurement.run(lambda launch: self._enough(case, launch))
            finally:
                own.spend()
                case.watch.add("measure", case.measuring_s())
                case.measuring = None
        except (TaskError, *self._device.faults) as error:
            room.check()  # if the candidate left none, it is to blame
            if not room.begun or isinstance(error, TooLargeError) or self._device.out_of_room(error):
                self._blame(case, pool, reference, candidate, beside=room.begun)
            raise
        finally:
            case.stderr = printable(candidate.worker.log)
            reference.close()
            candidate.close()
            built.arm = None

    def _check_room(self, room: Room, candidate: Arm) -> None:
        """See whether a candidate left others the memory of the device, and of the host where no limit binds it.

        Raises:
            Fault: It did not.
        """
        room.check()
        if self._device.name == "cuda":
            check_host_memory(candidate.worker.pid, self._settings.memory_bytes)

    def _blame(self, case: Case, pool: Pool, reference: Arm, candidate: Arm, *, beside: bool) -> None:
        """Find out whether something fails because a candidate took the device's memory when it was imported.

        Args:
            case: The candidate's.
            pool: Of its task.
            reference: Its arm.
            candidate: Its arm.
            beside: Whether the reference worked beside the candidate, and there was no room for what came then.

        Raises:
            Fault: The candidate held much, and the reference works once it is dead, or worked and held much less.
        """
        if (first := self._device.free_bytes()) is None:
            return
        reference.close()
        free = first
        for _ in range(_BLAME_TRIES):
            time.sleep(_BLAME_PAUSE_S)  # memory of the dead comes back within a moment
            before, free = free, self._device.free_bytes() or 0
            if free == before:
                break
        references = free - first if beside else 0
        candidate.close()
        for _ in range(_BLAME_TRIES):
            time.sleep(_BLAME_PAUSE_S)
            more = (self._device.free_bytes() or 0) - free - references
            if more < _MUCH_BYTES:
                continue
            seen = f"there was no room beside it, which held {more / 2**30:.3g} GiB more than the reference"
            if not beside:
                alone = self._builder.reference(case, pool)
                try:
                    self._construct_reference(case, pool, alone)
                except (TaskError, *self._device.faults):
                    continue
                finally:
                    alone.close()
                seen = "the reference works only without it"
            text = f"expected a program to leave the GPU's memory to others when it is imported, {seen}"
            raise Fault(Status.OUT_OF_MEMORY, text)

    def _sets(self, case: Case, pool: Pool, mode: WeightsMode, first: int, last: int) -> list[InputSet]:
        with case.watch.phase("oracle"):
            return pool.sets(mode, first, last)

    def _construct_reference(self, case: Case, pool: Pool, reference: Arm) -> None:
        """Make the reference's model; on a GPU call it, too, so that it holds its memory before the candidate comes."""
        sets = self._sets(case, pool, pool.usual_mode, 0, 1) if self._device.free_bytes() is not None else []
        with case.watch.phase("warmup"), _of_reference(pool):
            reference.build(pool.task.source)
            reference.construct(pool.construct_seed)
            for one in sets:
                reference.warm(one, writable=False)
            reference.freeze()

    def _construct(self, case: Case, pool: Pool, reference: Arm, candidate: Arm) -> WeightsMode:
        with case.watch.phase("warmup"):
            candidate.thaw()
            same = candidate.construct(pool.construct_seed)
            candidate.freeze()
            with _of_reference(pool):
                reference.thaw()
        if not pool.anatomy.state:
            case.weights = None if same else "seeded"
            return "seeded"
        if not same and pool.anatomy.defaults:
            raise Fault(
                Status.WRONG_CONTRACT,
                f"expected the reference's names and shapes in state_dict(), so that the judge can load weights: "
                f"{', '.join(pool.anatomy.defaults[:4])} hold defaults when made, which a program must not rely on",
            )
        case.weights = "loaded" if same else "seeded"
        return case.weights

    def _warm_reference(self, case: Case, pool: Pool, mode: WeightsMode, reference: Arm) -> float:
        sets = self._sets(case, pool, mode, 0, WARM_SETS)
        with case.watch.phase("warmup"), _of_reference(pool):
            if mode == "loaded":
                reference.load(pool.weights())
            elapsed_s = [reference.warm(one, writable=False)[0] for one in [*sets, *sets[-1:] * _WARM_REPEATS]]
            if self._device.bursts and min(elapsed_s[1:]) < 2e-6 * self._settings.burst_below_us:
                elapsed_s.append(reference.pace())  # a hundred calls: short ones only
            reference.freeze()
        return min(elapsed_s[1:])

    def _warm_candidate(self, case: Case, pool: Pool, mode: WeightsMode, candidate: Arm) -> float:
        """Make the candidate's untimed calls; return the seconds of the fastest, with its comparison."""
        elapsed_s: list[float] = []
        with case.watch.phase("warmup"):
            candidate.thaw()
            if mode == "loaded":
                candidate.load(pool.weights())
            for number, one in enumerate(pool.sets(mode, 0, WARM_SETS)):
                began = time.perf_counter()
                _, comparisons = candidate.warm(one, writable=number == 0)
                elapsed_s.append(time.perf_counter() - began)
                case.tally.check(one, comparisons)
            candidate.freeze()
        return min(elapsed_s)

    def _size(
        self, precision: Precision, reference_s: float, anatomy: Anatomy, set_room: int, *, bursts: bool
    ) -> tuple[int, int, int, int]:
        """Return how many pairs of turns a launch may have, and how many calls a turn.

        Then how many are made in one go, and how many may be if the candidate turns out to be faster.

        Args:
            precision: Of the evaluation.
            reference_s: What a call of the reference takes.
            anatomy: Of the task.
            set_room: How many input sets are kept.
            bursts: Whether several may be made in one go at all.
        """
        rule, settings = RULES[precision], self._settings
        most = settings.sets_training if precision == "training" else settings.sets_report
        call_bytes = max(anatomy.input_bytes, sum(out.size * out.item_bytes for out in anatomy.outputs))
        burst_bytes = min(settings.burst_bytes, self._device.most_burst_bytes)
        burst = longest = 1
        if bursts and self._device.bursts:
            limit = min(
                settings.burst_training if precision == "training" else settings.burst_report,
                wire.MAX_DESCRIPTORS // len(anatomy.outputs),
                max(1, burst_bytes // call_bytes),
                max(1, (set_room - SETS_BESIDE) // SETS_BY_CALL),
            )
            if reference_s < settings.burst_below_us * 1e-6:
                burst = min(limit, math.ceil(settings.burst_ms * 1e-3 / reference_s))
            longest = max(burst, min(limit, int(settings.burst_reference_ms * 1e-3 / reference_s)))
        wanted = round(settings.turn_ms * 1e-3 / max(reference_s * burst, 1e-6))
        room = burst_bytes // (burst * call_bytes)
        calls = max(1, min(wanted, most // (rule.pairs_in_launch * burst), room))
        affordable = int(self._budget_s(precision) / (2 * reference_s * burst))
        return max(2 * rule.min_pairs, min(rule.pairs_in_launch, affordable)), calls * burst, burst, longest

    def _budget_s(self, precision: Precision) -> float:
        settings = self._settings
        if precision == "training":
            return settings.budget_training_s
        return settings.budget_report_gpu_s if self._device.name == "cuda" else settings.budget_report_s

    def _spent(self, case: Case) -> bool:
        """Whether the time is over; launches that were repeated are not held against the one that counts."""
        return case.kept_s + case.measuring_s() > self._budget_s(case.precision)

    def _enough(self, case: Case, launch: Launch) -> bool:
        rule = RULES[case.precision]
        step = decide([*case.launches, launch], rule, spread=self._spread, spent=self._spent(case))
        return step != "pair"


@contextlib.contextmanager
def _of_reference(pool: Pool) -> Generator[None]:
    """Within, the reference is at work, and what fails is not the candidate's.

    Raises:
        TooLargeError: There is too little memory for it.
        TaskError: It fails in another way.
    """
    try:
        yield
    except Fault as fault:
        text = f"{pool.task.id}: expected the reference to run, got {fault.message}"
        if fault.status is Status.OUT_OF_MEMORY:
            raise TooLargeError(text) from fault
        raise TaskError(text) from fault


class _OwnSets:
    """A launch's sets: those for untimed calls, and behind them the first of the pool's that no candidate has met."""

    def __init__(self, case: Case, pool: Pool, mode: WeightsMode) -> None:
        self._case, self._pool = case, pool
        self._mode: WeightsMode = mode
        self._shift = pool.fresh - WARM_SETS
        self._last = pool.fresh

    def sets(self, first: int, last: int) -> list[InputSet]:
        """Return the sets of a range of numbers, which begin anew with each launch."""
        if last <= WARM_SETS:
            return self._pool.sets(self._mode, first, last)
        self._last = max(self._last, last + self._shift)
        with self._case.watch.phase("oracle"):
            return self._pool.sets(self._mode, first + self._shift, last + self._shift)

    def prepare(self, first: int, last: int) -> None:
        """Make sets that will be wanted, as far as they can be kept."""
        with self._case.watch.phase("oracle"):
            self._pool.prepare(self._mode, first + self._shift, last + self._shift)

    def spend(self) -> None:
        """No launch gets these sets again."""
        self._pool.spend(self._last)


def ahead(looks: Sequence[Look]) -> bool:
    """Whether work before the candidate's calls, over all of its launches, is more than chance explains.

    No launch beside itself is asked: whoever else uses the device meets both arms alike. One launch is not enough.
    """
    own = [look for look in looks if not look.itself]
    mine, other = sum(look.candidate_only for look in own), sum(look.reference_only for look in own)
    return len(own) > 1 and beyond_chance(mine, other)


def suspect_text(result: LaunchResult, launches: int) -> str:
    """Say what was seen in the last of several launches that were suspect."""
    if not result.slowed:
        return (
            f"expected nothing to run on the GPU while the program stands still, in {launches} launches something did "
            f"more often than before the reference's calls, or slowed them; beside itself the reference caused less of "
            f"it (last: in {result.worked[0]} pairs before the program's calls only, in {result.worked[1]} before "
            f"the reference's only)"
        )
    beside = float(np.median(result.launch.reference_ms))
    return (
        f"expected the reference to keep its speed beside the candidate, in {launches} launches it was slowed by over "
        f"5 % or something ran meanwhile, beside itself it was not (last: {beside:.4g} ms beside, "
        f"{min(result.alone_ms):.4g} ms alone)"
    )


def confirmed(launches: Sequence[Launch]) -> bool:
    """Whether some two launches agree on how fast the candidate is.

    They agree unless their log ratios differ by more than log(1.1), the 10 % of protocol 9 (DESIGN.md), plus two
    standard errors of the difference: what a busy machine blurs is for the interval to say, and rewards follow it.
    """
    centres = [centre(launch) for launch in launches]
    return any(
        abs(one.log_ratio - other.log_ratio) <= math.log(1.1) + 2.0 * math.sqrt(one.variance + other.variance)
        for i, one in enumerate(centres)
        for other in centres[:i]
    )
