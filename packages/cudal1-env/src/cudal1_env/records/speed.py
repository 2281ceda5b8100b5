"""How fast a program is: latencies, speedups with intervals, and baselines."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cudal1_env.records.old_names import also_old
from cudal1_env.records.values import Positive, Status


class Speedup(BaseModel):
    """Reference latency over candidate latency, with a 95 % interval. 2.0 is twice as fast."""

    model_config = ConfigDict(frozen=True)

    low: Positive
    """Lower end of the interval."""
    point: Positive
    """Best estimate."""
    high: Positive
    """Upper end of the interval."""

    def __str__(self) -> str:
        """Return the estimate and its interval, as in `1.9 x (1.8 to 2)`."""
        return f"{self.point:.3g} x ({self.low:.3g} to {self.high:.3g})"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.point <= self.high:
            raise ValueError(f"expected low <= point <= high, got {self.low}, {self.point}, {self.high}")
        return self


class Latency(BaseModel):
    """Milliseconds of one call, over the measured samples."""

    model_config = ConfigDict(frozen=True)

    median_ms: Positive
    """Median over samples."""
    low_ms: Positive
    """25 % quantile over samples."""
    high_ms: Positive
    """75 % quantile over samples."""
    samples: int = Field(ge=1, validation_alias=also_old("samples"))
    """Number of samples."""


class Strongest(BaseModel):
    """The baseline over which the candidate's speedup is smallest."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name of the baseline; `eager` if no other baseline beats the unchanged reference."""
    speedup: Speedup
    """Speedup of the candidate over it."""


class BaselineFault(BaseModel):
    """Reason why there is no speedup over a baseline."""

    model_config = ConfigDict(frozen=True)

    status: Status
    """Outcome of the baseline's program."""
    message: str
    """The expectation and the actual outcome."""
