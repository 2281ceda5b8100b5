"""Summaries of one arm's samples, of speedups over tasks (in the paper's columns), and of changes between two runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.records import Latency, NonNegative, Positive
from cudal1_env.stats.interval import student_quantile
from cudal1_env.stats.trial_samples import check_times

COUNTS_ABOVE = 1.01
"""A speedup must exceed this to count (paper, table 1)."""


def summarize_latency(times_ms: Sequence[float]) -> Latency:
    """Return median and quartiles of the samples of one arm, in milliseconds.

    Raises:
        ValueError: There is no sample, or a time is not positive and finite.

    >>> summarize_latency([1.0, 2.0, 3.0, 4.0, 50.0])
    Latency(median_ms=3.0, low_ms=2.0, high_ms=4.0, samples=5)
    """
    if not times_ms:
        raise ValueError("there are no samples to summarise; measure first")
    check_times(times_ms, name="times_ms")
    low_ms, median_ms, high_ms = (float(q) for q in np.quantile(np.array(times_ms), [0.25, 0.5, 0.75]))
    return Latency(median_ms=median_ms, low_ms=low_ms, high_ms=high_ms, samples=len(times_ms))


class SpeedupSummary(BaseModel):
    """Speedups over a set of tasks, in the columns of the paper's tables.

    A task without a correct program counts as 0 in `mean` and the quantiles, as in the paper's tables (where the median
    of a model that fails most tasks is 0). Only `geometric_mean` leaves such tasks out.
    """

    model_config = ConfigDict(frozen=True)

    tasks: int = Field(ge=1)
    """Number of tasks."""
    successes: int = Field(ge=0)
    """Number of tasks with a correct program."""
    mean: NonNegative
    """Arithmetic mean over all tasks."""
    geometric_mean: Positive | None
    """Geometric mean over the successes; None if there are none."""
    median: NonNegative
    """50 % quantile over all tasks."""
    quantile_75: NonNegative
    """75 % quantile over all tasks."""
    quantile_25: NonNegative
    """25 % quantile over all tasks."""
    max: NonNegative
    """Largest speedup."""
    above: int = Field(ge=0)
    """Number of tasks with a speedup above 1.01."""

    @property
    def success_share(self) -> float:
        """Share of tasks with a correct program."""
        return self.successes / self.tasks

    @property
    def above_share(self) -> float:
        """Share of all tasks with a speedup above 1.01."""
        return self.above / self.tasks


def summarize_speedups(speedups: Sequence[float | None]) -> SpeedupSummary:
    """Return the paper's columns for one speedup per task.

    Args:
        speedups: Speedup of each task's best program; None if no program was correct.

    Raises:
        ValueError: There is no task, or a speedup is not positive and finite.

    >>> print(summarize_speedups([2.0, 0.5, 1.0, None]))
    tasks=4 successes=3 mean=0.875 geometric_mean=1.0 median=0.75 quantile_75=1.25 quantile_25=0.375 max=2.0 above=1
    """
    if not speedups:
        raise ValueError("there are no tasks to summarise; pass at least one")
    _check_speedups(speedups)
    successes = [value for value in speedups if value is not None]
    values = np.array([0.0 if value is None else value for value in speedups])
    low, median, high = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return SpeedupSummary(
        tasks=len(values),
        successes=len(successes),
        mean=float(values.mean()),
        geometric_mean=math.exp(math.fsum(math.log(value) for value in successes) / len(successes))
        if successes
        else None,
        median=median,
        quantile_75=high,
        quantile_25=low,
        max=float(values.max()),
        above=sum(1 for value in successes if value > COUNTS_ABOVE),
    )


class PairedChange(BaseModel):
    """Change of speedup between two runs over the same tasks: after / before, 1.1 is 10 % faster."""

    model_config = ConfigDict(frozen=True)

    ratio: Positive | None
    """Geometric mean of after / before over tasks solved in both; None if there are none."""
    low: Positive | None
    """Lower end of its 95 % interval; None with fewer than two such tasks."""
    high: Positive | None
    """Upper end of its 95 % interval; None with fewer than two such tasks."""
    both: int = Field(ge=0)
    """Tasks solved in both runs."""
    gained: int = Field(ge=0)
    """Tasks solved only after."""
    lost: int = Field(ge=0)
    """Tasks solved only before."""


def paired_change(before: Sequence[float | None], after: Sequence[float | None]) -> PairedChange:
    """Return the change of speedup between two runs, task by task, with a 95 % interval.

    Student's t on log(after / before) over the tasks solved in both runs. Tasks gained or lost have no ratio; report
    their counts together with the interval. To count a failure as a fallback to the reference instead, pass 1.0.

    Args:
        before: One speedup per task, None if no program was correct.
        after: The same tasks in the same order.

    Raises:
        ValueError: The runs differ in length, or a speedup is not positive and finite.

    >>> change = paired_change([1.0, 2.0, None], [1.1, 2.2, 3.0])
    >>> round(change.ratio, 3), change.both, change.gained, change.lost
    (1.1, 2, 1, 0)
    """
    if len(before) != len(after):
        raise ValueError(
            f"there are {len(before)} tasks before and {len(after)} after; pass the same tasks in the same order"
        )
    _check_speedups(before)
    _check_speedups(after)
    changes = [math.log(b / a) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    gained = sum(1 for a, b in zip(before, after, strict=True) if a is None and b is not None)
    lost = sum(1 for a, b in zip(before, after, strict=True) if a is not None and b is None)
    count = len(changes)
    mean = math.fsum(changes) / count if count else None
    low = high = None
    if mean is not None and count > 1:
        variance = math.fsum((change - mean) ** 2 for change in changes) / (count - 1)
        half = student_quantile(0.975, count - 1) * math.sqrt(variance / count)
        low, high = math.exp(mean - half), math.exp(mean + half)
    ratio = None if mean is None else math.exp(mean)
    return PairedChange(ratio=ratio, low=low, high=high, both=count, gained=gained, lost=lost)


def _check_speedups(speedups: Sequence[float | None]) -> None:
    for position, value in enumerate(speedups):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise ValueError(
                f"the speedup of task {position} is {value!r}, which is not positive and finite; "
                "write None where no program was correct"
            )
