"""What fields of records may hold: versions, kinds of device, precisions, statuses, ranges of numbers."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

PROTOCOL_VERSION = "2"
"""Raised by every change after which the same program could get another status, speedup or reward: how calls are
released and timed, which inputs and weights there are, tolerances, the rewarded end, what is rejected. Records of
different versions are readable, and never compared, pooled or shown beside each other. Version 2 has not been released,
so until then its records name their commit instead (docs/results/README.md)."""

Device = Literal["cpu", "cuda"]
Precision = Literal["training", "report", "correct"]
"""How narrow the interval of a speedup must be; `correct` asks for a verdict on correctness alone, without a clock."""

Positive = Annotated[float, Field(gt=0.0, lt=math.inf, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, lt=math.inf, allow_inf_nan=False)]


class Status(StrEnum):
    """What became of a candidate."""

    CORRECT = "CORRECT"
    """Every compared output was correct; `speedup` says how fast, except at `correct` precision."""
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
