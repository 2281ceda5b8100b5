"""The machine of an evaluation, and the seconds of each phase."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.records.values import Device, NonNegative


class Machine(BaseModel):
    """The machine of an evaluation."""

    model_config = ConfigDict(frozen=True)

    device: Device
    """Kind of device."""
    name: str
    """CPU or GPU model."""
    cores: int = Field(ge=1)
    """CPU cores that the judge may use."""
    core: int | None = None
    """Core to which both arms were pinned; None if they could not be."""
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


class GpuState(BaseModel):
    """State of a GPU, as its driver reported it between two samples."""

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
    """Reasons for which the clocks were throttled."""


class Seconds(BaseModel):
    """Seconds of each phase of one evaluation."""

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
    """Time that the lease was held. It covers all the phases below, the time that this evaluation waited for the
    oracle while it held the lease, and the health check of the device.
    """
    oracle_s: NonNegative = 0.0
    """Time that this evaluation waited for the oracle to make inputs and float64 answers."""
    warmup_s: NonNegative = 0.0
    """Constructors, weights and first calls."""
    measure_s: NonNegative = 0.0
    """Timed samples and the full comparison of their outputs."""
    baselines_s: NonNegative = 0.0
    """Measuring those baselines of the task that were not stored yet."""
    profile_s: NonNegative = 0.0
    """Profiling the candidate."""
    kernelbench_s: NonNegative = 0.0
    """The additional verdict by KernelBench's rules."""
