"""The frozen record of a verdict, and the parts that it is made of.

`Evaluation` is what the judge returns, the archive keeps and the commands print. Its JSON schema is
`Evaluation.model_json_schema()`; each field is documented under its declaration.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

PROTOCOL_VERSION = "2"
"""Raised by every change after which the same program could get another status, speedup or reward: how calls are
released and timed, which inputs and weights there are, tolerances, the rewarded end, what is rejected. Records of
different versions are readable, and never compared, pooled or shown beside each other."""

Device = Literal["cpu", "cuda"]
Precision = Literal["training", "report", "correct"]
"""How narrow the interval of a speedup must be; `correct` asks for a verdict on correctness alone, without a clock."""

Positive = Annotated[float, Field(gt=0.0, lt=math.inf, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, lt=math.inf, allow_inf_nan=False)]


class Status(StrEnum):
    """What became of a candidate."""

    CORRECT = "CORRECT"
    """Every output that was looked at was right; `speedup` says how fast, except at `correct` precision."""
    NO_CODE = "NO_CODE"
    """The answer holds no program, or the program defines no `ModelNew`."""
    SYNTAX_ERROR = "SYNTAX_ERROR"
    """The program is no Python."""
    BUILD_ERROR = "BUILD_ERROR"
    """Importing the program, or compiling what it compiles, failed."""
    RUNTIME_ERROR = "RUNTIME_ERROR"
    """`ModelNew(...)` or a call raised an exception."""
    WRONG_OUTPUT = "WRONG_OUTPUT"
    """An output differs from the float64 answer by more than rounding explains."""
    WRONG_CONTRACT = "WRONG_CONTRACT"
    """Shape, dtype, device, number or aliasing of the outputs is not the reference's."""
    TIMEOUT = "TIMEOUT"
    """A phase outlasted its limit."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """The program asked for more memory than its limit."""
    CRASH = "CRASH"
    """The worker died (signal, `os._exit`) without an exception."""
    TAMPERING = "TAMPERING"
    """The program attacked the judge, or slowed the reference."""
    IMPOSSIBLE = "IMPOSSIBLE"
    """Faster than the bytes of the task can move."""
    UNSTABLE = "UNSTABLE"
    """Two processes disagree by more than 10 %."""


class Speedup(BaseModel):
    """Reference latency over candidate latency, with a 95 % interval. 2.0 is twice as fast."""

    model_config = ConfigDict(frozen=True)

    low: Positive
    """Lower end of the interval."""
    point: Positive
    """Best estimate."""
    high: Positive
    """Upper end of the interval."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.point <= self.high:
            raise ValueError(f"expected low <= point <= high, got {self.low}, {self.point}, {self.high}")
        return self


class Latency(BaseModel):
    """Milliseconds of one call, over the samples that were measured."""

    model_config = ConfigDict(frozen=True)

    median_ms: Positive
    """Median over samples."""
    low_ms: Positive
    """25 % quantile over samples."""
    high_ms: Positive
    """75 % quantile over samples."""
    samples: int = Field(ge=1, validation_alias=AliasChoices("samples", "turns"))
    """How many samples."""


class OutputError(BaseModel):
    """The worst element seen of one output on one distribution of inputs: its error next to what it may err."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    output: int = Field(ge=0)
    """Position among the outputs."""
    error: float
    """Its difference from the float64 answer, over the answer's largest element, in two digits; NaN where finite masks
    differ. The share of wrong elements for integers."""
    tolerance: NonNegative
    """What this element may err, on the same scale."""
    reference_error: NonNegative
    """The reference's own largest error on such inputs, on the same scale."""
    distribution: str = "own"
    """Distribution of the inputs (`cudal1_worker.oracle.distributions`); `own` is the task's."""


class Strongest(BaseModel):
    """The baseline that leaves a candidate the smallest speedup."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its name; `eager` where nothing beats the reference as it is."""
    speedup: Speedup
    """The candidate's speedup against it."""


class BaselineFault(BaseModel):
    """Why there is no speedup against a baseline."""

    model_config = ConfigDict(frozen=True)

    status: Status
    """What became of the baseline's program."""
    message: str
    """What was expected and what came."""


Origin = Literal["own", "triton", "inductor", "cublas", "cudnn", "aten", "library", "memory"]
"""Whose code a kernel is: the program's own CUDA or C++ (`own`), a kernel it wrote in Triton, one that torch.compile
made, NVIDIA's cuBLAS (with cuBLASLt) or cuDNN, PyTorch's, another library's (cuFFT, NCCL, oneDNN ...), or a copy or
fill by the driver (`memory`)."""


class Kernel(BaseModel):
    """A kernel that a profiled call ran, or on a CPU an operator."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(min_length=1, max_length=200)
    """Its name as the profiler in the worker gave it, cut (untrusted text)."""
    origin: Origin
    """Whose code it is, by its name."""
    share: NonNegative = Field(le=1.0)
    """Its share of the time of all kernels."""
    call_us: NonNegative
    """Microseconds in one call of the program."""
    launches: NonNegative
    """How often one call runs it."""


class Profile(BaseModel):
    """What ran in a call that was made for this alone. It is the worker's word and decides nothing."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["kernels", "operators"]
    """Kernels by time on the GPU; on a CPU operators by their own time, without what they call."""
    call_us: Positive
    """Microseconds of all kernels in one call: idle time and launches are not in it."""
    kernels: tuple[Kernel, ...]
    """Those that took longest, longest first."""
    rest_share: NonNegative = Field(le=1.0)
    """Share of those that are not listed."""


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


class Seconds(BaseModel):
    """Where the time of one evaluation went, in seconds."""

    model_config = ConfigDict(frozen=True)

    total_s: NonNegative = 0.0
    """Wall time of the whole evaluation."""
    start_s: NonNegative = 0.0
    """Forking workers and entering sandboxes."""
    build_s: NonNegative = 0.0
    """Importing the candidate, compilation included."""
    wait_s: NonNegative = 0.0
    """Waiting for the device's lease."""
    lease_s: NonNegative = 0.0
    """Holding it: everything below, oracle included as far as this evaluation waited for it then, and the check that
    the device is as it was."""
    oracle_s: NonNegative = 0.0
    """Making inputs and float64 answers that this evaluation had to wait for."""
    warmup_s: NonNegative = 0.0
    """Constructors, weights and first calls."""
    measure_s: NonNegative = 0.0
    """Timed samples and their full comparison."""
    baselines_s: NonNegative = 0.0
    """Measuring baselines of this task that were not kept yet."""
    profile_s: NonNegative = 0.0
    """Finding out what ran."""
    kernelbench_s: NonNegative = 0.0
    """Judging by KernelBench's rules, too."""


class GpuState(BaseModel):
    """A GPU as its driver saw it between two samples."""

    model_config = ConfigDict(frozen=True)

    sm_mhz: int
    """Clock of the multiprocessors."""
    memory_mhz: int
    """Clock of the memory."""
    power_w: NonNegative
    """Power drawn, averaged by the driver over its own window."""
    celsius: int
    """Temperature."""
    throttled: tuple[str, ...] = ()
    """What held the clocks back."""


class Machine(BaseModel):
    """What the evaluation ran on."""

    model_config = ConfigDict(frozen=True)

    device: Device
    """Kind of device."""
    name: str
    """CPU or GPU model."""
    cores: int = Field(ge=1)
    """CPU cores that the judge may use."""
    core: int | None = None
    """Core to which both arms were held; None where it could not be done."""
    kernel: str
    """Operating system kernel."""
    python: str
    """Python version of judge and workers."""
    torch: str
    """torch version of the workers."""
    driver: str | None = None
    """GPU driver version."""
    cuda: str | None = None
    """CUDA version of torch."""


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
    """What became of it."""
    message: str
    """One human sentence: what was expected, what came, what to do."""
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
    roofline_ms: Positive | None = Field(default=None, validation_alias=AliasChoices("roofline_ms", "floor_ms"))
    """Latency that the task's bytes need at this GPU's memory bandwidth; None where it is not known (CPU)."""
    roofline_fraction: NonNegative | None = Field(
        default=None, validation_alias=AliasChoices("roofline_fraction", "floor_fraction")
    )
    """Roofline over the candidate's latency: 1.0 is bound by memory bandwidth."""
    errors: tuple[OutputError, ...] = ()
    """Largest error seen for each output tensor."""
    weights: Literal["loaded", "seeded"] | None = None
    """`loaded`: values of the judge's choice went into both arms; None where the reference has no state, or the program
    failed before. `seeded` is in old records only: names differed, both arms kept the constructor's values."""
    precision: Precision
    """How narrow the interval had to be; at `correct` nothing was timed, and there is none."""
    trials: int = Field(default=0, ge=0, validation_alias=AliasChoices("trials", "launches"))
    """Trials (fresh worker pairs) that were measured."""
    pairs: int = Field(default=0, ge=0, validation_alias=AliasChoices("pairs", "rounds"))
    """Paired samples that were measured."""
    samples_ms: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = Field(
        default=(), validation_alias=AliasChoices("samples_ms", "turns_ms")
    )
    """For each trial the mean latency of a call in each sample: reference's, then candidate's, paired by position."""
    reference_alone_ms: tuple[tuple[float, float], ...] = ()
    """For each trial the reference's median latency alone: before the pairs, and after the candidate's death."""
    reference_shares: tuple[float, ...] = ()
    """For each trial how much of the reference's latency in the pairs counts; below 1 where it was faster alone."""
    overhead_ms: NonNegative | None = None
    """L: subtracted from every call of both arms: release, flag and read, estimated on the reference (median trial)."""
    stealable_ms: NonNegative | None = None
    """h: how much of it a candidate could use for its own work at most; added to its latency in `rewarded_low`."""
    constant_ms: NonNegative | None = None
    """How long writing takes what is the same in each call's outputs; added as well, since a program may keep a stock
    of outputs in which it stands already."""
    calls: int = Field(default=0, ge=0)
    """Timed calls of the candidate, each checked on a secret sample; at `correct` precision its compared calls,
    none of them timed."""
    full_checks: int = Field(default=0, ge=0)
    """Of these, the calls whose whole outputs were compared."""
    profile: Profile | None = None
    """What a call of the candidate ran, from a call that was not timed; None where none was made or it failed."""
    profile_note: str = ""
    """Why a profile that was to be made is missing."""
    kernelbench: KernelBench | None = None
    """The verdict by KernelBench's rules; None where it was not asked for, or the program could not be imported."""
    seconds: Seconds = Field(default_factory=Seconds)
    """Where the time went."""
    machine: Machine | None = None
    """What it ran on; None when the candidate never got that far."""
    gpu_states: tuple[tuple[GpuState, ...], ...] = ()
    """For each trial what the driver said after each pair; empty on a CPU."""
    foreign_gpu_processes: int = Field(
        default=0, ge=0, validation_alias=AliasChoices("foreign_gpu_processes", "strangers")
    )
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
    marks: tuple[str, ...] = ()
    """What must be known of where the program comes from; `trained_on_test`: its writer learnt from test data."""
    stderr: str = ""
    """The end of what the candidate wrote to its error stream (untrusted text)."""

    @model_validator(mode="after")
    def _status_fits(self) -> Self:
        measured = (self.speedup, self.rewarded_low, self.reference, self.candidate)
        if self.precision == "correct":
            if any(one is not None for one in measured) or self.speedups:
                raise ValueError("expected neither speedups nor latencies at `correct` precision, which times nothing")
        elif self.status is Status.CORRECT and (
            self.speedup is None or self.reference is None or self.candidate is None
        ):
            raise ValueError("expected speedup and both latencies with CORRECT")
        evidence = (Status.CORRECT, Status.IMPOSSIBLE, Status.UNSTABLE, Status.TAMPERING)
        if self.status not in evidence and (self.speedup is not None or self.speedups):
            raise ValueError(f"expected no speedup with {self.status}")
        if self.strongest is not None and self.speedup is None:
            raise ValueError("expected a speedup against eager beside one against the strongest baseline")
        return self

    @property
    def correct(self) -> bool:
        """Whether the status is `CORRECT`."""
        return self.status is Status.CORRECT
