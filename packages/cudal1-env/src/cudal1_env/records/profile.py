"""Profile of a program: the kernels of one untimed call."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.records.values import NonNegative, Positive

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
    """Kernels of one call made for profiling only. The worker reports them; they decide nothing."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["kernels", "operators"]
    """Kernels by time on the GPU; on a CPU operators by their own time, without what they call."""
    call_us: Positive
    """Microseconds of all kernels in one call: idle time and launches are not in it."""
    kernels: tuple[Kernel, ...]
    """Those that took longest, longest first."""
    rest_share: NonNegative = Field(le=1.0)
    """Share of those that are not listed."""
