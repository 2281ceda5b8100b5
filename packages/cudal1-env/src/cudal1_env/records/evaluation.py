"""The verdict on one candidate: what the judge returns, the archive keeps and the commands print.

The JSON schema is `Evaluation.model_json_schema()`; each field is documented under its declaration.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cudal1_env.records.machine import GpuState, Machine, Seconds
from cudal1_env.records.old_names import also_old
from cudal1_env.records.profile import Profile
from cudal1_env.records.speed import BaselineFault, Latency, Speedup, Strongest
from cudal1_env.records.values import PROTOCOL_VERSION, NonNegative, Positive, Precision, Status


class OutputError(BaseModel):
    """The worst element of one output on one distribution of inputs: its error and its tolerance."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    output: int = Field(ge=0)
    """Position among the outputs."""
    error: float
    """Its difference from the float64 answer, over the answer's largest element, in two digits; NaN where finite masks
    differ. The share of incorrect elements for integers."""
    tolerance: NonNegative
    """Tolerance of this element, on the same scale."""
    reference_error: NonNegative
    """The reference's own largest error on such inputs, on the same scale."""
    distribution: str = "own"
    """Distribution of the inputs (`cudal1_worker.oracle.distributions`); `own` is the task's."""


class KernelBench(BaseModel):
    """The verdict by KernelBench's rules (`cudal1_env.judge.add_ons.kernelbench`); it is never the reward."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    status: Status
    """`CORRECT` if the outputs are close on every set of inputs; `WRONG_OUTPUT`, or how the program failed."""
    message: str
    """One human sentence."""
    passed: int = Field(ge=0)
    """Sets of inputs on which all outputs are close."""
    max_error: float | None = None
    """Largest absolute difference between outputs of reference and program; None where the program failed."""


class Evaluation(BaseModel):
    """The verdict on one candidate for one task."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", populate_by_name=True)

    protocol: str = PROTOCOL_VERSION
    """Version of the protocol that made this record."""
    id: str
    """Unique id of this evaluation."""
    created_at: str
    """UTC time at which it ended, ISO 8601."""
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
    """One sentence for people: what is wrong, with its value, and what to do."""
    speedup: Speedup | None = None
    """Against `eager`; None unless CORRECT (or UNSTABLE, IMPOSSIBLE, where it is evidence), and None at `correct`
    precision."""
    rewarded_low: Positive | None = None
    """Lower end that rewards use: `speedup.low` with `stealable_ms` and `constant_ms` added to the candidate's latency.
    With CORRECT;
    None in records of protocol 1, where `speedup.low` is this end."""
    too_short: bool = False
    """Whether the reference takes less than three times `stealable_ms`; `rewarded_low` is at most 1 then."""
    speedups: dict[str, Speedup] = Field(default_factory=dict[str, Speedup])
    """Against each other baseline that was measured."""
    strongest: Strongest | None = None
    """The strongest baseline, `eager` among them; None where no other was asked for."""
    baselines_failed: dict[str, BaselineFault] = Field(default_factory=dict[str, BaselineFault])
    """Baselines that were asked for and whose program did not work on this task."""
    reference: Latency | None = None
    """Latency of the reference."""
    candidate: Latency | None = None
    """Latency of the candidate."""
    roofline_ms: Positive | None = Field(default=None, validation_alias=also_old("roofline_ms"))
    """Latency that the task's bytes need at this GPU's memory bandwidth; None where it is not known (CPU)."""
    roofline_fraction: NonNegative | None = Field(default=None, validation_alias=also_old("roofline_fraction"))
    """Roofline over the candidate's latency: 1.0 is bound by memory bandwidth."""
    errors: tuple[OutputError, ...] = ()
    """The worst element of each output tensor."""
    weights: Literal["loaded", "seeded"] | None = None
    """`loaded`: values of the judge's choice went into both arms; None where the reference has no state, or the program
    failed before. `seeded` is in old records only: names differed, both arms kept the constructor's values."""
    precision: Precision
    """Precision of the interval; at `correct` nothing is timed, and there is no interval."""
    trials: int = Field(default=0, ge=0, validation_alias=also_old("trials"))
    """Trials (fresh worker pairs) that were measured."""
    pairs: int = Field(default=0, ge=0, validation_alias=also_old("pairs"))
    """Paired samples that were measured."""
    samples_ms: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = Field(
        default=(), validation_alias=also_old("samples_ms")
    )
    """For each trial the mean latency of a call in each sample: reference's, then candidate's, paired by position."""
    reference_alone_ms: tuple[tuple[float, float], ...] = ()
    """For each trial the reference's median latency alone: before the pairs, and after the candidate's death."""
    reference_shares: tuple[float, ...] = ()
    """For each trial the share of the reference's latency in the pairs that counts; below 1 if it was faster alone."""
    overhead_ms: NonNegative | None = None
    """L: subtracted from every call of both arms: release, flag and read, estimated on the reference (median trial)."""
    stealable_ms: NonNegative | None = None
    """h: maximum part of L that a candidate could use for its own work; added to its latency in `rewarded_low`."""
    constant_ms: NonNegative | None = None
    """Milliseconds for moving what of the outputs comes again with other inputs; added as well, since a program may
    keep a stock of outputs that hold it already."""
    calls: int = Field(default=0, ge=0)
    """Timed calls of the candidate, each checked on a secret sample; at `correct` precision its compared calls,
    none of them timed."""
    full_checks: int = Field(default=0, ge=0)
    """Of these, the calls whose whole outputs were compared."""
    profile: Profile | None = None
    """Kernels of one untimed call of the candidate; None if it was not profiled or the profile failed."""
    profile_note: str = ""
    """Why a requested profile is missing."""
    kernelbench: KernelBench | None = None
    """The verdict by KernelBench's rules; None where it was not asked for, or the program could not be imported."""
    seconds: Seconds = Field(default_factory=Seconds)
    """Where the time went."""
    machine: Machine | None = None
    """The machine; None if the candidate was rejected before it ran."""
    gpu_states: tuple[tuple[GpuState, ...], ...] = ()
    """For each trial the state of the GPU after each pair; empty on a CPU."""
    foreign_gpu_processes: int = Field(default=0, ge=0, validation_alias=also_old("foreign_gpu_processes"))
    """Number of foreign processes on the GPU at the start; if non-zero, treat timings as unreliable."""
    sandbox: tuple[str, ...] = ()
    """Sandbox layers that were active."""
    sandbox_missing: tuple[str, ...] = ()
    """Sandbox layers that this machine does not offer."""
    seed_commitment: str | None = None
    """SHA-256 of the seed."""
    seed: str | None = None
    """The seed (hex), once it will never be used again; see `Judge.retire`."""
    first_set: int = Field(default=2, ge=2)
    """Number of the first input set under the seed that its trials were timed on: other trials had the earlier ones."""
    salt: str | None = None
    """What the client of a service drew this verdict with; None where no service was asked."""
    ordinal: int | None = Field(default=None, ge=1)
    """Number of this verdict among those that the service made for the same client, task, program and precision:
    above 1 it was drawn again. None where no service was asked."""
    marks: tuple[str, ...] = ()
    """Provenance of the program; `trained_on_test`: its policy was trained on test data."""
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

    @property
    def correct(self) -> bool:
        """Whether the status is `CORRECT`."""
        return self.status is Status.CORRECT

    @property
    def counted_low(self) -> float | None:
        """Lower end of the speedup, or its rewarded end where that is less: what programs are chosen by."""
        if self.speedup is None:
            return None
        return self.speedup.low if self.rewarded_low is None else min(self.speedup.low, self.rewarded_low)
