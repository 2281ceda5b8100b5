"""The verdict on one candidate, as the judge returns it, the archive keeps it and the commands print it.

The JSON schema is `Evaluation.model_json_schema()`; each field is documented under its declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cudal1_env.errors import printable
from cudal1_env.records.machine import GpuState, Machine, Seconds
from cudal1_env.records.old_names import also_old
from cudal1_env.records.profile import Profile
from cudal1_env.records.speed import BaselineFault, Latency, Speedup, Strongest
from cudal1_env.records.values import PROTOCOL_VERSION, NonNegative, Positive, Precision, Status


class OutputError(BaseModel):
    """The worst element of one output on one distribution of inputs: its error and its tolerance."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    output: int = Field(ge=0)
    """Position of the output in the program's outputs."""
    error: float
    """Difference from the float64 answer, relative to the answer's largest element, to two digits. NaN if the finite
    elements differ. For integers, the share of incorrect elements.
    """
    tolerance: NonNegative
    """Tolerance of this element, on the same scale."""
    reference_error: NonNegative
    """The reference's own largest error on such inputs, on the same scale."""
    distribution: str = "own"
    """Distribution of the inputs (`cudal1_worker.oracle.distributions`); `own` is the task's."""


class KernelBench(BaseModel):
    """The verdict by KernelBench's rules (`cudal1_env.judge.add_ons.kernelbench`); it is never used as the reward."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    status: Status
    """`CORRECT` if the outputs are close on every set of inputs; otherwise `WRONG_OUTPUT`, or the way in which the
    program failed.
    """
    message: str
    """One sentence for people."""
    passed: int = Field(ge=0)
    """Number of input sets on which all outputs are close."""
    max_error: float | None = None
    """Largest absolute difference between the outputs of reference and program; None if the program failed."""


class Evaluation(BaseModel):
    """The verdict on one candidate for one task."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", populate_by_name=True)

    protocol: str = PROTOCOL_VERSION
    """Version of the protocol that made this record."""
    id: str
    """Unique id of this evaluation."""
    created_at: str
    """UTC time at which the evaluation ended, ISO 8601."""
    task: str
    """Task id."""
    task_sha256: str
    """Hash of the reference program."""
    task_source: str
    """The reference program at the size that was judged."""
    source: str
    """The candidate's program."""
    source_sha256: str
    """Hash of the candidate's program."""
    status: Status
    """Outcome of the evaluation."""
    message: str
    """One sentence for people: the fault with its value, and what to do about it."""
    speedup: Speedup | None = None
    """Speedup over `eager`. None unless CORRECT (or UNSTABLE or IMPOSSIBLE, where it is evidence), and None at
    `correct` precision. After an UNSTABLE measurement the record is the second one's, and each end is the lower one of
    both measurements.
    """
    rewarded_low: Positive | None = None
    """Lower end that rewards use: `speedup.low` with `stealable_ms` and `constant_ms` added to the candidate's
    latency. At most 1 if outputs may not show all work; `message` says why. Set only with CORRECT.
    None in records of protocol 1, where `speedup.low` is this end.
    """
    too_short: bool = False
    """Whether the reference takes less than three times `stealable_ms`; if so, `rewarded_low` is at most 1."""
    speedups: dict[str, Speedup] = Field(default_factory=dict[str, Speedup])
    """Speedup over each other baseline that was measured."""
    strongest: Strongest | None = None
    """The strongest baseline, `eager` included; None if no other baseline was requested."""
    baselines_failed: dict[str, BaselineFault] = Field(default_factory=dict[str, BaselineFault])
    """Requested baselines whose program failed on this task."""
    reference: Latency | None = None
    """Latency of the reference."""
    candidate: Latency | None = None
    """Latency of the candidate."""
    roofline_ms: Positive | None = Field(default=None, validation_alias=also_old("roofline_ms"))
    """Lower bound of an honest program's latency: the time to move the bytes that must move (outputs, and inputs whose
    influence an audit measured, minus the L2 cache) at this GPU's memory bandwidth; None if unknown (CPU)."""
    roofline_fraction: NonNegative | None = Field(default=None, validation_alias=also_old("roofline_fraction"))
    """Roofline divided by the candidate's latency."""
    errors: tuple[OutputError, ...] = ()
    """The worst element of each output tensor."""
    weights: Literal["loaded", "seeded"] | None = None
    """`loaded`: the judge's own values were loaded into both arms. None if the reference has no state, or the program
    failed earlier. `seeded` occurs in old records only: names differed, so both arms kept the constructor's values.
    """
    precision: Precision
    """Requested precision of the interval; at `correct` the judge times nothing and there is no interval."""
    trials: int = Field(default=0, ge=0, validation_alias=also_old("trials"))
    """Number of trials (fresh worker pairs) that were measured."""
    pairs: int = Field(default=0, ge=0, validation_alias=also_old("pairs"))
    """Number of paired samples that were measured."""
    samples_ms: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = Field(
        default=(), validation_alias=also_old("samples_ms")
    )
    """For each trial, the mean latency of a call in each sample: the reference's samples, then the candidate's, paired
    by position.
    """
    reference_alone_ms: tuple[tuple[float, float], ...] = ()
    """For each trial, the reference's median latency when it runs alone: before the pairs, and after the candidate has
    exited.
    """
    reference_shares: tuple[float, ...] = ()
    """For each trial, the share of the reference's paired latency that counts; below 1 if the reference was faster
    alone.
    """
    overhead_ms: NonNegative | None = None
    """Harness overhead L (release, flag and read), subtracted from every call of both arms; estimated on the
    reference, median over trials.
    """
    stealable_ms: NonNegative | None = None
    """Stealable overhead h: maximum part of L that a candidate could use for its own work; added to its latency in
    `rewarded_low`.
    """
    constant_ms: NonNegative | None = None
    """Milliseconds for moving the part of the outputs that is the same for other inputs. Also added in `rewarded_low`,
    because a program may keep prepared outputs that already hold this part.
    """
    calls: int = Field(default=0, ge=0)
    """Timed calls of the candidate, each checked on a secret sample. At `correct` precision, its compared calls, none
    of them timed.
    """
    full_checks: int = Field(default=0, ge=0)
    """Number of these calls whose whole outputs were compared."""
    profile: Profile | None = None
    """Kernels of one untimed call of the candidate; None if it was not profiled or the profile failed."""
    profile_note: str = ""
    """Why a requested profile is missing."""
    kernelbench: KernelBench | None = None
    """The verdict by KernelBench's rules; None if it was not requested or the program could not be imported."""
    seconds: Seconds = Field(default_factory=Seconds)
    """Seconds spent in each phase, over all measurements of the program."""
    machine: Machine | None = None
    """The machine; None if the candidate was rejected before it ran."""
    gpu_states: tuple[tuple[GpuState, ...], ...] = ()
    """For each trial, the state of the GPU after each pair; empty on a CPU."""
    foreign_gpu_processes: int = Field(default=0, ge=0, validation_alias=also_old("foreign_gpu_processes"))
    """Number of foreign processes on the GPU at the start; if non-zero, treat timings as unreliable."""
    sandbox: tuple[str, ...] = ()
    """Sandbox layers that were active."""
    sandbox_missing: tuple[str, ...] = ()
    """Sandbox layers that this machine does not offer."""
    seed_commitment: str | None = None
    """SHA-256 of the seed, published before the seed is."""
    seed: str | None = None
    """The seed (hex), disclosed once it will never be used again; see `Judge.retire`."""
    first_set: int = Field(default=2, ge=2)
    """Number of the first input set under the seed on which this verdict's trials were timed; other trials used the
    earlier sets.
    """
    salt: str | None = None
    """Salt that a service's client sent with the request: another salt gives a new verdict. None without a service."""
    ordinal: int | None = Field(default=None, ge=1)
    """Number of this verdict among those that the service gave to the same client for the same task, program and
    precision. Above 1, the client asked again. None without a service.
    """
    marks: tuple[str, ...] = ()
    """Marks of the program's origin. `trained_on_test`: its policy was trained on test data."""
    stderr: str = ""
    """The end of what the candidate wrote to its error stream (untrusted text)."""

    @model_validator(mode="after")
    def _status_fits(self) -> Self:
        measured = (self.speedup, self.rewarded_low, self.reference, self.candidate)
        if self.precision == "correct":
            if any(one is not None for one in measured) or self.speedups:
                raise ValueError(
                    "a record at `correct` precision, which times nothing, has neither speedups nor latencies"
                )
        elif self.status is Status.CORRECT and (
            self.speedup is None or self.reference is None or self.candidate is None
        ):
            raise ValueError("a CORRECT record needs a speedup and both latencies")
        evidence = (Status.CORRECT, Status.IMPOSSIBLE, Status.UNSTABLE, Status.TAMPERING)
        if self.status not in evidence and (self.speedup is not None or self.speedups):
            raise ValueError(f"a record with status {self.status} has no speedup")
        if self.strongest is not None and self.speedup is None:
            raise ValueError("a record with a speedup against the strongest baseline needs one against eager")
        return self

    def __repr__(self) -> str:
        """Return one line: the task, the status, and if timed the speedup and the rewarded end."""
        facts = [self.task, str(self.status)]
        if self.speedup is not None:
            facts.append(str(self.speedup))
        if self.rewarded_low is not None:
            facts.append(f"rewarded_low={self.rewarded_low:.3g}")
        return f"Evaluation({', '.join(facts)})"

    __str__ = __repr__

    @property
    def correct(self) -> bool:
        """Whether the status is `CORRECT`."""
        return self.status is Status.CORRECT

    @property
    def counted_low(self) -> float | None:
        """The speedup's lower end or its rewarded end, whichever is less. Programs are chosen by this value."""
        if self.speedup is None:
            return None
        return self.speedup.low if self.rewarded_low is None else min(self.speedup.low, self.rewarded_low)

    def doubted(self, doubts: Sequence[str]) -> Self:
        """Return the record with a reward of at most 1, and why; the record itself if it earns no more or none doubts.

        Args:
            doubts: What a program could keep or omit undetected.
        """
        if not doubts or not self.correct or (self.counted_low or 0.0) <= 1.0:
            return self
        found = "; ".join(doubts)
        text = f"no reward above 1 unless an audit calls the task sound: outputs may not show all work ({found})"
        return self.model_copy(update={"rewarded_low": 1.0, "message": printable(f"{self.message}; {text}")})
