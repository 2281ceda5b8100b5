"""Records of candidates, from what was measured of them."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from cudal1_data.hashes import digest

from cudal1_env.judge.device.roofline import Roofline
from cudal1_env.judge.measure.case import Case, Tally
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.timing.overhead import is_too_short, rewarded_low
from cudal1_env.judge.measure.timing.trial import TrialResult
from cudal1_env.judge.oracle.pool import WARM_SETS
from cudal1_env.judge.oracle.state import Mapping
from cudal1_env.records import Evaluation, Latency, Speedup, Status
from cudal1_env.stats import summarize_latency


@dataclass
class Seen:
    """What was measured of one candidate."""

    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    stderr: str = ""
    tally: Tally = field(default_factory=Tally)
    trials: list[TrialResult] = field(default_factory=list[TrialResult])
    roofline: Roofline | None = None
    """The task's bound by memory bandwidth, where one is known."""
    constant_ms: float = 0.0
    """Milliseconds for moving what of the outputs comes again with other inputs."""
    doubts: Sequence[str] = ()
    """Why correct outputs do not show that all work was done."""
    weights: Literal["loaded"] | None = None
    mapping: Mapping | None = None
    """Where the reference's state is in the candidate."""
    commitment: str | None = None
    """Of the seed."""
    first_set: int = WARM_SETS
    """Number of the pool's first input set that its trials were timed on."""

    @property
    def candidate(self) -> Latency:
        """Latency of the candidate, over all trials."""
        return summarize_latency([ms for trial in self.trials for ms in trial.samples.candidate_ms])


def failed(case: Case, seen: Seen, fault: Fault, *, note: str = "") -> Evaluation:
    """Return the record of a candidate that failed."""
    text = fault.message
    if seen.mapping is not None and fault.status is Status.WRONG_OUTPUT:
        text += seen.mapping.note()
    if note and fault.status is Status.RUNTIME_ERROR:
        text += f"; on made-up inputs: {note}"
    return _record(case, seen, fault.status, text)


def measured(case: Case, seen: Seen, speedup: Speedup) -> Evaluation:
    """Return the record of a candidate that was correct and was measured."""
    stealable_ms = statistics.median(trial.overhead.stealable_ms for trial in seen.trials)
    # What counts of the reference: one that was slowed must not make the overhead look small.
    reference_ms = statistics.median(ms for trial in seen.trials for ms in trial.counted.reference_ms)
    too_short = is_too_short(reference_ms, stealable_ms)
    verb = "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else "not told apart"
    text = f"correct; {speedup.point:.3g} x the reference's speed ({speedup.low:.3g} to {speedup.high:.3g}): {verb}"
    if too_short:
        text += f"; calls of {1e3 * reference_ms:.2g} us are too short for a reward above 1 on this machine"
    rewarded = rewarded_low(speedup.low, reference_ms, stealable_ms, seen.constant_ms)
    if seen.doubts:
        rewarded = min(rewarded, 1.0)
        text += f"; no reward above 1 unless an audit calls the task sound: {'; '.join(seen.doubts)}"
    return _record(
        case,
        seen,
        Status.CORRECT,
        text,
        speedup=speedup,
        rewarded_low=rewarded,
        stealable_ms=stealable_ms,
        constant_ms=seen.constant_ms,
        too_short=too_short,
        **_latencies(seen),
    )


def untimed(case: Case, seen: Seen) -> Evaluation:
    """Return the record of a candidate that was correct and was not timed."""
    return _record(case, seen, Status.CORRECT, f"correct in {seen.tally.calls} calls; not timed")


def unstable(case: Case, seen: Seen, speedup: Speedup) -> Evaluation:
    """Return the record of a candidate whose trials do not agree."""
    text = "two trials disagree by more than 10 % on a speedup above 3; measure on an idle machine"
    return _record(case, seen, Status.UNSTABLE, text, speedup=speedup)


def impossible(case: Case, seen: Seen, speedup: Speedup, roofline: Roofline) -> Evaluation:
    """Return the record of a candidate that is faster than its bytes can move; its speedup is evidence."""
    text = (
        f"a call must move {roofline.moved_bytes / 1e6:.4g} MB, which takes {roofline.bound_ms:.3g} ms at best; calls "
        f"seem to take {seen.candidate.median_ms:.3g} ms, and no correct program is that fast"
    )
    return _record(case, seen, Status.IMPOSSIBLE, text, speedup=speedup, **_latencies(seen))


def _latencies(seen: Seen) -> dict[str, Any]:
    candidate = seen.candidate
    reference = summarize_latency([ms for trial in seen.trials for ms in trial.samples.reference_ms])
    found: dict[str, Any] = {"reference": reference, "candidate": candidate}
    if seen.roofline is not None:
        bound_ms = seen.roofline.bound_ms
        found |= {"roofline_ms": bound_ms, "roofline_fraction": bound_ms / candidate.median_ms}
    return found


def _record(case: Case, seen: Seen, status: Status, message: str, **measured: Any) -> Evaluation:
    trials = seen.trials
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
        weights=seen.weights,
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
        sandbox=seen.layers,
        sandbox_missing=seen.missing,
        seed_commitment=seen.commitment,
        first_set=seen.first_set,
        stderr=printable(seen.stderr),
        **measured,
    )


def printable(text: str) -> str:
    """Return text that UTF-8 can hold: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()
