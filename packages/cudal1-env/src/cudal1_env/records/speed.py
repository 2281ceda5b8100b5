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
    samples: int = Field(ge=1, validation_alias=also_old("samples"))
    """How many samples."""


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
