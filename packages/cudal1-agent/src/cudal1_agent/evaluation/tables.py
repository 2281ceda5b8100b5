"""The stage table as text: one row for each stage and group, in the columns of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cudal1_env.reward import LOG_FLOOR
from cudal1_env.stats import COLUMNS, PairedChange, SpeedupSummary, aligned, cells

from cudal1_agent.data.tasks import GROUPS


def stage_table(rows: Sequence[tuple[str, str, SpeedupSummary]]) -> str:
    """Return the table of (stage, group, summary) as aligned text."""
    return aligned([["stage", "tasks", *COLUMNS], *([stage, group, *cells(summary)] for stage, group, summary in rows)])


FAILURE = math.exp(LOG_FLOOR)
"""Speedup as which a failure counts: that of the reward `log`."""


def with_failures(speedups: Sequence[float | None]) -> list[float]:
    """Return the speedups with failures counted as `FAILURE`, and none lower than that.

    >>> [round(value, 3) for value in with_failures([2.0, None, 0.01])]
    [2.0, 0.1, 0.1]
    """
    return [FAILURE if speedup is None else max(speedup, FAILURE) for speedup in speedups]


def change_text(before: str, after: str, group: str, change: PairedChange, whole: PairedChange | None = None) -> str:
    """Return a sentence on how the speedup changed between two stages.

    Args:
        before: The earlier stage.
        after: The later stage.
        group: What its tasks are called.
        change: The change on the tasks that both solve.
        whole: The change on all tasks, with failures counted as `FAILURE`.

    >>> from cudal1_env.stats import paired_change
    >>> change_text("a", "b", "tasks", paired_change([1.0], [2.0]))
    'b against a on tasks: speedup x 2.000 (1 tasks solved in both, 0 gained, 0 lost)'
    """
    counts = f"{change.both} tasks solved in both, {change.gained} gained, {change.lost} lost"
    if change.ratio is None:
        text = f"no task solved in both ({change.gained} gained, {change.lost} lost)"
    else:
        text = f"speedup {_ratio(change, counts)}"
    if whole is not None and whole.ratio is not None:
        text += f"; with a failure as {FAILURE:.2g} x: {_ratio(whole, f'{whole.both} tasks')}"
    return f"{after} against {before} on {group}: {text}"


def group_name(group: str) -> str:
    """Return what a group of tasks is called."""
    return GROUPS.get(group, group)


def changes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each `change` record of a run's metrics."""
    return [
        change_text(
            record["before"],
            record["stage"],
            group_name(record["group"]),
            PairedChange.model_validate({name: record[name] for name in PairedChange.model_fields}),
            PairedChange.model_validate(record["with_failures"]) if record.get("with_failures") else None,
        )
        for record in records
        if record["event"] == "change"
    ]


def _ratio(change: PairedChange, counts: str) -> str:
    if change.low is None or change.high is None:
        return f"x {change.ratio:.3f} ({counts})"
    return f"x {change.ratio:.3f} (95 % interval {change.low:.3f} to {change.high:.3f}; {counts})"


def summary_of(record: Mapping[str, object]) -> SpeedupSummary:
    """Return the summary in a `table` record of the metrics."""
    return SpeedupSummary.model_validate({name: record[name] for name in SpeedupSummary.model_fields})


def contamination_notes(records: Sequence[Mapping[str, Any]], groups: Mapping[str, str]) -> list[str]:
    """Return warnings about test data in training for readers of the stage table, one sentence a line.

    Args:
        records: The `table` records of a run's metrics.
        groups: What groups are called.
    """
    lines: list[str] = []
    if any(record.get("trained_on_test") for record in records):
        lines.append("trained_on_test: this run was trained on test data; its figures are no test results")
    last = {record["group"]: record for record in records}
    for group, record in last.items():
        overlaps: dict[str, str] = record.get("overlaps") or {}
        if overlaps and "@" not in next(iter(overlaps)):  # at other sizes the same tasks again
            named = ", ".join(f"{task} ({other})" for task, other in overlaps.items())
            lines.append(
                f"{groups[group]}: {len(overlaps)} overlap a KernelBench task; --test-suite kernelbench leaves them "
                f"out of training: {named}"
            )
    return lines
