"""Measures one built candidate: trials with fresh pairs of workers until the stopping rule is satisfied."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np

from cudal1_env.errors import TaskError, TooLargeError
from cudal1_env.judge.device.roofline import Roofline
from cudal1_env.judge.measure import record
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.headroom import check_memory
from cudal1_env.judge.measure.prepare import construct, load_weights
from cudal1_env.judge.measure.record import Seen, Verdict
from cudal1_env.judge.measure.timing.interference import reference_share
from cudal1_env.judge.measure.timing.trial import Sizes, Trial, TrialResult, TrialSets
from cudal1_env.judge.oracle.pool import WARM_SETS, Pool
from cudal1_env.judge.oracle.samples import InputSet
from cudal1_env.records import Precision, Status
from cudal1_env.stats import RULES, Spread, TrialSamples, centre, conclude, decide

_MAX_SETS: dict[Precision, int] = {"training": 40, "report": 78}
"""On a CPU, input sets for the timed pairs of one trial; each is used once for each arm."""
_SAMPLE_S = 8e-3
"""On a CPU, a pair repeats one-call samples until those of an arm take about this long together."""
_MAX_CHAIN: dict[Precision, int] = {"training": 16, "report": 24}
"""Maximum calls of a chain; each call needs its own inputs and answers."""
_WARM_REPEATS = 3
"""Further untimed calls of the reference that estimate its latency after compilation and allocation."""
_RECHECKED_ABOVE = 3.0
"""If a speedup's lower end exceeds this, two trials must agree (docs/decisions/006-surprising-speedups.md)."""
_MAX_TRIALS_TO_AGREE = 3
_MAX_UNTIMED = 4
"""Maximum untimed calls at the start of a chain; the next call takes no longer than later ones (docs/log.md)."""
_UNTIMED_S = 0.5e-3
"""Time for the reference's untimed calls of a chain, of which there is at least one."""


class Trials:
    """Measures built candidates. The caller holds the lease."""

    def __init__(self, builder: Builder, spread: Spread) -> None:
        self._builder = builder
        self._settings, self._device = builder.settings, builder.device
        self._spread = spread

    def measure(self, built: Built, pool: Pool) -> Verdict:
        """Return the verdict on a built candidate and kill its workers."""
        seen = Seen(pool.secrets.commitment, first_set=pool.fresh)
        try:
            if built.fault is not None:
                raise built.fault
            return self._measured(built, pool, seen)
        except Fault as fault:
            return Verdict(record.failed(built, seen, fault))

    def _measured(self, built: Built, pool: Pool, seen: Seen) -> Verdict:
        """Measure trials until the stopping rule is satisfied and, for large speedups, two trials agree."""
        case, rule = built.case, RULES[built.case.precision]
        while decide(_counted(seen), rule, spread=self._spread, spent=self._is_spent(case, seen)) != "stop":
            self._trial(built, pool, seen)
        speedup = conclude(_counted(seen), rule, spread=self._spread)
        if speedup.low > _RECHECKED_ABOVE:
            most = max(_MAX_TRIALS_TO_AGREE, rule.min_trials)
            while not (agree := confirmed(_counted(seen))) and len(seen.trials) < most:
                self._trial(built, pool, seen)
            speedup = conclude(_counted(seen), rule, spread=self._spread)
            if not agree:
                return Verdict(record.unstable(built, seen, speedup))
        roofline = self._device.roofline(pool.io_spec.tensor_bytes, pool.io_spec.written_bytes, case.sensitivity)
        if roofline is not None and _is_below(roofline, seen):
            if not roofline.is_broken_by([ms for trial in seen.trials for ms in trial.samples.reference_ms]):
                return Verdict(record.impossible(built, seen, speedup, roofline))
            roofline = None  # the reference breaks it, too: the bound is incorrect
        stated = conclude(_stated(seen), rule, spread=self._spread)
        byte_ms = self._device.write_ms(1)
        return record.measured(built, seen, stated, speedup.low, roofline=roofline, byte_ms=byte_ms)

    # --- one trial ---------------------------------------------------------------------------------------------

    def _trial(self, built: Built, pool: Pool, seen: Seen) -> None:
        """Add one trial with a fresh pair of workers."""
        case, candidate = built.case, self._builder.again(built, pool)
        reference = self._builder.reference(case, pool)
        try:
            check_prepared(built, candidate)
            self._construct(case, pool, seen, reference, candidate)
            seen.trials.append(self._beside(case, pool, seen, reference, candidate))
        except (TaskError, *self._device.faults):
            check_memory(self._device, candidate)  # blames the candidate if it holds the missing memory
            raise
        finally:
            built.stderr = built.stderr or candidate.worker.log  # later trials have no call whose text may be shown
            built.prepared_s += candidate.prepared_s
            reference.close()
            candidate.close()
            built.arm = None

    def _construct(self, case: Case, pool: Pool, seen: Seen, reference: Arm, candidate: Arm) -> None:
        """Construct both models side by side, and make further input sets meanwhile.

        Making a context, and drawing weights on one core, take a second and more. If both fail, the candidate's fault
        counts, unless memory ran out: a program may take the memory and end.
        """
        pool.make_way()  # leaves cached memory to the arms
        with case.watch.phase("oracle"):
            sets = pool.sets(0, WARM_SETS)
        first = [] if self._device.free_bytes() is None else sets[:1]
        alone = threading.Lock()
        with case.watch.phase("warmup"), pool.making_ahead(), ThreadPoolExecutor(1) as executor:
            constructing = executor.submit(construct, case, pool, candidate, seen, alone)
            try:
                self._construct_reference(pool, reference, first, alone)
                constructing.result()
            except (TaskError, *self._device.faults):
                self._raise_own_fault(constructing)
                raise
            finally:
                del constructing  # its exception holds this frame: a cycle that would keep both arms' memory

    def _raise_own_fault(self, constructing: Future[None]) -> None:
        """Wait for the candidate's construction; raise its `Fault` unless it lacked memory."""
        try:
            constructing.result()
        except Fault as fault:
            if fault.status is not Status.OUT_OF_MEMORY:
                raise
        except (TaskError, *self._device.faults):
            pass

    def _beside(self, case: Case, pool: Pool, seen: Seen, reference: Arm, candidate: Arm) -> TrialResult:
        """Make both arms' untimed calls, then measure."""
        check_memory(self._device, candidate)
        reference_s = self._warm_reference(case, pool, reference)
        self._warm_candidate(case, pool, candidate, seen)
        check_memory(self._device, candidate)
        sizes = self._sizes(case.precision, reference_s, pool)
        with case.watch.phase("warmup"):
            with of_reference(pool):
                reference.open()
            candidate.open()
        pool.fit(self._device.free_bytes(), 3 * sizes.sets)
        sets = TrialSets(case, pool)
        trial = Trial(reference, candidate, sets, sizes, seen.tally, np.random.default_rng())
        try:
            return trial.run(reference_s, lambda samples: self._enough(case, seen, sets, samples))
        finally:
            seen.measured_s += sets.measured_s
            case.watch.add("measure", sets.measured_s)
            pool.spend(sets.next)

    def _construct_reference(
        self, pool: Pool, reference: Arm, sets: Sequence[InputSet], alone: AbstractContextManager[object]
    ) -> None:
        """Construct the reference's model and call it while `alone` is held, so that it takes its memory."""
        with of_reference(pool):
            reference.build(pool.task.source)
            reference.construct(pool.construct_seed)
            for one in sets:
                with alone:
                    reference.call_uncompared(one, 0)
            reference.freeze()

    def _warm_reference(self, case: Case, pool: Pool, reference: Arm) -> float:
        """Make the reference's untimed calls; return the seconds of the fastest after the first, as it reports them."""
        with case.watch.phase("oracle"):
            sets = pool.sets(0, WARM_SETS)
        with case.watch.phase("warmup"), of_reference(pool):
            if pool.io_spec.state:
                reference.load(pool.weights())
            calls = [*enumerate(sets), *[(WARM_SETS - 1, sets[-1])] * _WARM_REPEATS]
            elapsed_s = [reference.call_uncompared(one, slot) for slot, one in calls]
            reference.freeze()
        return min(elapsed_s[1:])

    def _warm_candidate(self, case: Case, pool: Pool, candidate: Arm, seen: Seen) -> None:
        """Load the judge's weights and make one untimed call at each input address of timed calls."""
        with case.watch.phase("warmup"):
            load_weights(pool, candidate, seen)
            for slot, one in enumerate(pool.sets(0, WARM_SETS)):
                seen.tally.check(one, candidate.warm(one, slot))

    # --- how much ----------------------------------------------------------------------------------------------

    def _sizes(self, precision: Precision, reference_s: float, pool: Pool) -> Sizes:
        """Return the size of a trial, from the latency of the reference."""
        rule, untimed = RULES[precision], 0
        if self._device.chained:
            limit = self._device.chain_limit(pool.io_spec.input_bytes)
            untimed = max(1, min(_MAX_UNTIMED, limit - 1, round(_UNTIMED_S / reference_s)))
            most = max(1, min(_MAX_CHAIN[precision], limit - untimed, pool.room // (2 * rule.min_pairs)))
            calls, repeats = max(1, min(most, math.ceil(self._settings.chain_ms * 1e-3 / reference_s))), 1
        else:
            wanted = round(_SAMPLE_S / max(reference_s, 1e-6))
            calls, repeats = 1, max(1, min(wanted, _MAX_SETS[precision] // rule.pairs_in_trial))
        affordable = int(self._budget_s(precision) / (2 * reference_s * (calls + untimed) * repeats))
        return Sizes(max(2 * rule.min_pairs, min(rule.pairs_in_trial, affordable)), calls, repeats, untimed)

    def _budget_s(self, precision: Precision) -> float:
        settings = self._settings
        if precision == "training":
            return settings.budget_training_s
        return settings.budget_report_gpu_s if self._device.name == "cuda" else settings.budget_report_s

    def _is_spent(self, case: Case, seen: Seen, trial_s: float = 0.0) -> bool:
        """Return whether earlier trials plus `trial_s` seconds of the current one exceed the measurement's budget."""
        return seen.measured_s + trial_s > self._budget_s(case.precision)

    def _enough(self, case: Case, seen: Seen, sets: TrialSets, samples: TrialSamples) -> bool:
        rule, spent = RULES[case.precision], self._is_spent(case, seen, sets.measured_s)
        return decide([*_counted(seen), samples], rule, spread=self._spread, spent=spent) != "pair"


@contextlib.contextmanager
def of_reference(pool: Pool) -> Generator[None]:
    """Turn faults inside the block into errors of the task, because only the reference runs there.

    Raises:
        TooLargeError: The reference has too little memory.
        TaskError: The reference fails in another way.
    """
    try:
        yield
    except Fault as fault:
        text = f"{pool.task.id}: the reference failed: {fault.message}"
        if fault.status is Status.OUT_OF_MEMORY:
            raise TooLargeError(text) from fault
        raise TaskError(text) from fault


def _is_below(roofline: Roofline, seen: Seen) -> bool:
    """Return whether the candidate's latencies are below the memory-bandwidth bound."""
    candidate = [ms for trial in seen.trials for ms in trial.samples.candidate_ms]
    return roofline.forbids(candidate, resolution_ms=max(trial.overhead.stealable_ms for trial in seen.trials))


def _counted(seen: Seen) -> list[TrialSamples]:
    """Return the samples that rewards use: in each trial the smaller reference time counts."""
    return [trial.counted for trial in seen.trials]


def _stated(seen: Seen) -> list[TrialSamples]:
    """Return the samples that a record states: scaled by the reference share of all trials together."""
    share = reference_share([trial.alone for trial in seen.trials], allowed=seen.trials[0].allowed)
    return [trial.samples.scaled_reference(share) for trial in seen.trials]


def check_prepared(built: Built, candidate: Arm) -> None:
    """Raise `Fault` if earlier trials spent the budget of all imports, constructors and untimed calls.

    So a program holds the device for a bounded time, however many trials it needs.
    """
    limit_s = candidate.settings.build_timeout_s + candidate.settings.warmup_timeout_s
    if built.prepared_s > limit_s:
        text = "imports, constructors and untimed calls of all trials"
        raise Fault(Status.TIMEOUT, f"{text} took {built.prepared_s:.3g} s; at most {limit_s:g} s are allowed")


def confirmed(trials: Sequence[TrialSamples]) -> bool:
    """Return whether any two trials agree on the speedup.

    Two trials agree unless their log ratios differ by more than 10 % (docs/decisions/006-surprising-speedups.md) plus
    two standard errors of the difference. Noise of a busy machine widens the interval, which rewards follow.
    """
    centres = [centre(trial) for trial in trials]
    return any(
        abs(one.log_ratio - other.log_ratio) <= math.log(1.1) + 2.0 * math.sqrt(one.variance + other.variance)
        for i, one in enumerate(centres)
        for other in centres[:i]
    )
