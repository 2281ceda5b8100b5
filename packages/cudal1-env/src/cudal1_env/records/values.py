"""Allowed values of record fields: versions, kinds of device, precisions, statuses, ranges of numbers."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

PROTOCOL_VERSION = "2"
"""Version of the protocol. It is raised by every change after which the same program could get another status, speedup
or reward: how calls are released and timed, which inputs and weights are used, tolerances, the rewarded end, which
programs are rejected. Records of different versions are readable, but are never compared, pooled or shown side by side.
Version 2 has not been released, so until then its records name their commit instead (docs/results/README.md).
"""

Device = Literal["cpu", "cuda"]
Precision = Literal["training", "report", "correct"]
"""How narrow the interval of a speedup must be; `correct` requests a verdict on correctness alone, without timing."""

Positive = Annotated[float, Field(gt=0.0, lt=math.inf, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, lt=math.inf, allow_inf_nan=False)]


class Status(StrEnum):
    """Outcome of a candidate's evaluation."""

    CORRECT = "CORRECT"
    """Every compared output was correct; `speedup` holds the measured speedup, except at `correct` precision."""
    NO_CODE = "NO_CODE"
    """The answer holds no program, or the program defines no `ModelNew`."""
    SYNTAX_ERROR = "SYNTAX_ERROR"
    """The program is not valid Python."""
    BUILD_ERROR = "BUILD_ERROR"
    """Importing the program, or compiling its kernels, failed."""
    RUNTIME_ERROR = "RUNTIME_ERROR"
    """`ModelNew(...)` or a call raised an exception."""
    WRONG_OUTPUT = "WRONG_OUTPUT"
    """An output differs from the float64 answer by more than rounding errors explain."""
    WRONG_CONTRACT = "WRONG_CONTRACT"
    """Shape, dtype, device, number or aliasing of the outputs differs from the reference's."""
    TIMEOUT = "TIMEOUT"
    """A phase exceeded its time limit."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """The program requested more memory than its limit."""
    CRASH = "CRASH"
    """The worker died without an exception (signal, `os._exit`)."""
    TAMPERING = "TAMPERING"
    """The program attacked the judge, or slowed the reference."""
    IMPOSSIBLE = "IMPOSSIBLE"
    """The program is faster than the task's bytes can be moved."""
    UNSTABLE = "UNSTABLE"
    """The speedup is above 3, and processes disagree by more than 10 %, also when the judge measures once more."""
