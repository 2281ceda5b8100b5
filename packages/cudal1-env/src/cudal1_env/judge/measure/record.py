"""Builds records of candidates from their measurements."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cudal1_data.hashes import digest

from cudal1_env.errors import printable
from cudal1_env.judge.device.roofline import Roofline
from cudal1_env.judge.measure.case import Built, Tally
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.timing.overhead import TOO_SHORT, is_too_short, rewarded_low, without_constant
from cudal1_env.judge.measure.timing.trial import TrialResult
from cudal1_env.judge.oracle.pool import WARM_SETS
from cudal1_env.judge.oracle.state import Mapping
from cudal1_env.records import Evaluation, Latency, Speedup, Status
from cudal1_env.stats import summarize_latency

_WIDE = 2.0
"""Interval ends that differ by more than this factor are named as a sign of a busy machine."""


@dataclass
class Seen:
    """Measurements of one candidate."""

    commitment: str | None = None
    """Commitment to the pool's seed."""
    tally: Tally = field(default_factory=Tally)
    trials: list[TrialResult] = field(default_factory=list[TrialResult])
    mapping: Mapping | None = None
    """Where the candidate holds the reference's state, once known; None if the task has no state."""
    first_set: int = WARM_SETS
    """Number of the pool's first input set used by its trials."""
    measured_s: float = 0.0
    """Seconds of its trials so far, without the oracle's."""

    @property
    def candidate(self) -> Latency:
        """The candidate's latency over all trials."""
        return summarize_latency([ms for trial in self.trials for ms in trial.samples.candidate_ms])


def failed(built: Built, seen: Seen, fault: Fault) -> Evaluation:
    """Return the record of a candidate that failed."""
    text = fault.message
    if seen.mapping is not None and fault.status is Status.WRONG_OUTPUT:
        text += seen.mapping.note()
    if built.note and fault.status is Status.RUNTIME_ERROR:
        text += f"; on made-up inputs: {built.note}"
    return _record(built, seen, fault.status, text)


@dataclass(frozen=True)
class Verdict:
    """A record, whose reward may still be lowered by what a program could keep or omit undetected."""

    evaluation: Evaluation
    reference_ms: float | None = None
    """T_ref - L of the reward, if the reward is above 1; `limited` then makes the final record."""
    byte_ms: float = 0.0
    """The time to write a byte."""


def measured(
    built: Built,
    seen: Seen,
    speedup: Speedup,
    counted_low: float,
    *,
    roofline: Roofline | None = None,
    byte_ms: float = 0.0,
) -> Verdict:
    """Return the verdict on a correct, timed candidate.

    The record states `speedup`. Rewards use `counted_low`, the lower end with the smaller reference time of each trial.
    After an `UNSTABLE` measurement, low, point and high are the lower ones of both measurements. A reward never falls
    when all three rise, so the verdict earns no more than either.
    """
    first = built.case.unstable
    if first is not None:
        speedup = Speedup(
            low=min(speedup.low, first.low), point=min(speedup.point, first.point), high=min(speedup.high, first.high)
        )
    stealable_ms = statistics.median(trial.overhead.stealable_ms for trial in seen.trials)
    # Use the counted reference time: a slowed reference must not make the overhead look small.
    reference_ms = statistics.median(ms for trial in seen.trials for ms in trial.counted.reference_ms)
    too_short = is_too_short(reference_ms, stealable_ms)
    verb = "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else "no significant difference"
    text = f"correct; {speedup.point:.3g} x the reference's speed ({speedup.low:.3g} to {speedup.high:.3g}): {verb}"
    if speedup.low <= 1.0 <= speedup.high and speedup.high > _WIDE * speedup.low:
        text += ", because times vary too much: let nothing else run on this machine, or measure at report precision"
    if first is not None:
        text += "; the lower result of two measurements, because trials of the first disagreed"
    if too_short:
        takes, needed = (f"{1e3 * ms:.1f} us" for ms in (reference_ms, TOO_SHORT * stealable_ms))
        text += f"; calls of {takes} are too short for a reward above 1 on this machine, which needs {needed}"
    rewarded = rewarded_low(min(speedup.low, counted_low), reference_ms, stealable_ms)
    evaluation = _record(
        built,
        seen,
        Status.CORRECT,
        text,
        speedup=speedup,
        rewarded_low=rewarded,
        stealable_ms=stealable_ms,
        constant_ms=0.0,
        too_short=too_short,
        **_latencies(seen, roofline),
    )
    return Verdict(evaluation, reference_ms if rewarded > 1.0 else None, byte_ms)


def limited(verdict: Verdict, constant_ms: float, doubts: Sequence[str]) -> Evaluation:
    """Return the record with the reward that the task's constant parts and doubts allow.

    Args:
        verdict: A verdict with a reward above 1.
        constant_ms: The time to write the parts of the outputs that recur with other inputs.
        doubts: What a program could keep or omit undetected (`Case.doubts`, or else `Pool.doubts`).
    """
    one, reference_ms = verdict.evaluation, verdict.reference_ms
    assert one.rewarded_low is not None, "the verdict is on a timed program"
    assert reference_ms is not None, "the verdict's reward is above 1"
    rewarded = without_constant(one.rewarded_low, reference_ms, constant_ms)
    update = {"rewarded_low": min(rewarded, 1.0) if doubts else rewarded, "constant_ms": constant_ms}
    return one.doubted(doubts).model_copy(update=update)


def untimed(built: Built, seen: Seen) -> Evaluation:
    """Return the record of a correct candidate that was not timed."""
    return _record(built, seen, Status.CORRECT, f"correct in {seen.tally.calls} calls; not timed")


def unstable(built: Built, seen: Seen, speedup: Speedup) -> Evaluation:
    """Return the record of a candidate whose trials disagree."""
    text = "two trials disagree by more than 10 % on a speedup above 3; measure on an idle machine"
    return _record(built, seen, Status.UNSTABLE, text, speedup=speedup)


def impossible(built: Built, seen: Seen, speedup: Speedup, roofline: Roofline) -> Evaluation:
    """Return the record of a candidate faster than memory bandwidth allows; its speedup is kept as evidence."""
    text = (
        f"a call must move {roofline.moved_bytes / 1e6:.4g} MB, which takes {roofline.bound_ms:.3g} ms at best; calls "
        f"seem to take {seen.candidate.median_ms:.3g} ms, and no correct program is that fast"
    )
    return _record(built, seen, Status.IMPOSSIBLE, text, speedup=speedup, **_latencies(seen, roofline))


def _latencies(seen: Seen, roofline: Roofline | None) -> dict[str, Any]:
    candidate = seen.candidate
    reference = summarize_latency([ms for trial in seen.trials for ms in trial.samples.reference_ms])
    found: dict[str, Any] = {"reference": reference, "candidate": candidate}
    if roofline is not None:
        found |= {"roofline_ms": roofline.bound_ms, "roofline_fraction": roofline.bound_ms / candidate.median_ms}
    return found


def _record(built: Built, seen: Seen, status: Status, message: str, **measured: Any) -> Evaluation:
    case, trials = built.case, seen.trials
    return Evaluation(
        id=uuid.uuid4().hex,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        task=case.task.id,
        task_sha256=digest(case.task.source),
        task_source=case.task.source,
        source=case.source,
        source_sha256=digest(case.source),
        status=status,
        message=printable(message),
        errors=tuple(seen.tally.errors[key] for key in sorted(seen.tally.errors)),
        weights=None if seen.mapping is None else "loaded",
        precision=case.precision,
        trials=len(trials),
        pairs=sum(trial.samples.pairs for trial in trials),
        samples_ms=tuple((trial.samples.reference_ms, trial.samples.candidate_ms) for trial in trials),
        reference_alone_ms=tuple(trial.alone_ms for trial in trials),
        reference_shares=tuple(trial.reference_share for trial in trials),
        overhead_ms=statistics.median(trial.overhead.call_ms for trial in trials) if trials else None,
        calls=seen.tally.calls,
        full_checks=seen.tally.full_checks,
        seconds=case.watch.seconds(),
        machine=case.machine,
        gpu_states=tuple(trial.states for trial in trials),
        sandbox=built.layers,
        sandbox_missing=built.missing,
        seed_commitment=seen.commitment,
        first_set=seen.first_set,
        stderr=printable(built.stderr),
        **measured,
    )
