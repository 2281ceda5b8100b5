"""From what was seen to the record."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from cudal1_data import Task

from cudal1_env.judge.device.roofline import Floor
from cudal1_env.judge.measure.arm import Fault
from cudal1_env.judge.measure.trial import Tally
from cudal1_env.judge.oracle.pool import WARM_SETS
from cudal1_env.records import Evaluation, GpuState, Latency, Look, Machine, Precision, Seconds, Speedup, Status
from cudal1_env.stats import Launch, summarize_latency

Role = Literal["candidate", "baseline", "profile"]
"""What a program is judged for: its own verdict, a baseline of its task, or only what it runs."""


@dataclass
class Stopwatch:
    """Adds up seconds by phase."""

    began: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the time of a block towards a phase; `name` is a field of `Seconds` without its unit."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - start

    def add(self, name: str, seconds: float) -> None:
        """Count seconds towards a phase."""
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    def seconds(self) -> Seconds:
        """Everything so far."""
        total = time.perf_counter() - self.began
        return Seconds(total_s=total, **{f"{name}_s": value for name, value in self.phases.items()})


@dataclass
class Case:
    """Everything seen of one candidate while it is judged."""

    task: Task
    source: str
    precision: Precision
    role: Role = "candidate"
    watch: Stopwatch = field(default_factory=Stopwatch)
    tally: Tally = field(default_factory=Tally)
    launches: list[Launch] = field(default_factory=list[Launch])
    overheads_ms: list[float] = field(default_factory=list[float])
    harnesses_ms: list[float] = field(default_factory=list[float])
    charged_ms: list[float] = field(default_factory=list[float])
    proven: list[float] = field(default_factory=list[float])
    kept_shares: list[float] = field(default_factory=list[float])
    states: list[tuple[GpuState, ...]] = field(default_factory=list[tuple[GpuState, ...]])
    looks: list[Look] = field(default_factory=list[Look])
    strangers: int = 0
    shares: tuple[float, ...] = ()
    """How much of each input tensor matters at least; empty where nobody knows."""
    floor: Floor | None = None
    """The task's speed of light, where one is known."""
    weights: Literal["loaded", "seeded"] | None = None
    machine: Machine | None = None
    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    commitment: str | None = None
    first_set: int = WARM_SETS
    """Number of the pool's first input set that its launches were timed on."""
    stderr: str = ""
    kept_s: float = 0.0
    """Seconds of measurement that went into `launches`."""
    measuring: tuple[float, float] | None = None
    """When the launch that is being measured began, and the oracle's seconds by then."""

    def measuring_s(self) -> float:
        """Seconds of the launch that is being measured, the oracle's share left out."""
        if self.measuring is None:
            return 0.0
        began, oracle_s = self.measuring
        return time.perf_counter() - began - (self.watch.phases.get("oracle", 0.0) - oracle_s)

    def failed(self, fault: Fault) -> Evaluation:
        """Return the record of a candidate that failed."""
        return self._record(fault.status, fault.message)

    def measured(self, speedup: Speedup) -> Evaluation:
        """Return the record of a candidate that was right and was measured.

        The low end allows for the harness's share of a call, which is subtracted from both arms, and which a program
        that puts less in its place does not have: 1 / low grows by that share of the reference's latency. Nor is it
        above what calls made alone bear out, where turns consist of several calls (`rounds.proven`). And on a GPU,
        where work outlives a stopped process, only that of the reference's time counts which it takes alone, too
        (`suspicion.kept_share`).
        """
        reference = summarize_latency([ms for launch in self.launches for ms in launch.reference_ms])
        candidate = summarize_latency([ms for launch in self.launches for ms in launch.candidate_ms])
        share = statistics.median(self.harnesses_ms) / reference.median_ms
        kept = math.exp(statistics.fmean(math.log(one) for one in self.kept_shares)) if self.kept_shares else 1.0
        low = 1 / (1 / (kept * speedup.low) + share)
        speedup = speedup.model_copy(update={"low": min(low, statistics.median(self.proven))})
        verb = "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else "not told apart"
        text = f"right; {speedup.point:.3g} x the reference's speed ({speedup.low:.3g} to {speedup.high:.3g}): {verb}"
        if self.strangers:
            text += f"; {self.strangers} processes of others were on the GPU: measure again on an idle one"
        return self._record(Status.CORRECT, text, speedup=speedup, reference=reference, candidate=candidate)

    def unstable(self, speedup: Speedup) -> Evaluation:
        """Return the record of a candidate whose launches do not agree."""
        text = (
            "expected two launches to agree within 10 % on a speedup above 3, they do not; measure on an idle machine"
        )
        return self._record(Status.UNSTABLE, text, speedup=speedup)

    def impossible(self, speedup: Speedup, floor: Floor, single_ms: float) -> Evaluation:
        """Return the record of a candidate that is faster than its bytes can move.

        Args:
            speedup: As evidence.
            floor: What forbids it.
            single_ms: Median latency of single calls.
        """
        text = (
            f"expected a call to take the {floor.floor_ms:.3g} ms in which the {floor.moved_bytes / 1e6:.4g} MB that "
            f"it must move can move at best, single calls seem to take {single_ms:.3g} ms; nothing right is that fast"
        )
        reference = summarize_latency([ms for launch in self.launches for ms in launch.reference_ms])
        candidate = summarize_latency([ms for launch in self.launches for ms in launch.candidate_ms])
        return self._record(Status.IMPOSSIBLE, text, speedup=speedup, reference=reference, candidate=candidate)

    def _record(
        self,
        status: Status,
        message: str,
        *,
        speedup: Speedup | None = None,
        reference: Latency | None = None,
        candidate: Latency | None = None,
    ) -> Evaluation:
        floor_ms = None if self.floor is None or candidate is None else self.floor.floor_ms
        return Evaluation(
            id=uuid.uuid4().hex,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            task=self.task.id,
            task_sha256=sha256(self.task.source),
            task_source=self.task.source,
            source=self.source,
            source_sha256=sha256(self.source),
            status=status,
            message=printable(message),
            speedup=speedup,
            reference=reference,
            candidate=candidate,
            floor_ms=floor_ms,
            floor_fraction=None if floor_ms is None or candidate is None else floor_ms / candidate.median_ms,
            errors=tuple(self.tally.errors[key] for key in sorted(self.tally.errors)),
            weights=self.weights,
            precision=self.precision,
            launches=len(self.launches),
            rounds=sum(launch.pairs for launch in self.launches),
            turns_ms=tuple((launch.reference_ms, launch.candidate_ms) for launch in self.launches),
            charged_ms=max(self.charged_ms, default=0.0),
            overhead_ms=sorted(self.overheads_ms)[len(self.overheads_ms) // 2] if self.overheads_ms else None,
            calls=self.tally.calls,
            full_checks=self.tally.full_checks,
            seconds=self.watch.seconds(),
            machine=self.machine,
            gpu_states=tuple(self.states),
            looks=tuple(self.looks),
            strangers=self.strangers,
            sandbox=self.layers,
            sandbox_missing=self.missing,
            seed_commitment=self.commitment,
            first_set=self.first_set,
            stderr=printable(self.stderr),
        )


def sha256(text: str) -> str:
    """Hash of a program."""
    return hashlib.sha256(text.encode()).hexdigest()


def printable(text: str) -> str:
    """Return text that UTF-8 can hold: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()
