"""The stage table as text: one row for each stage and group, in the columns of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudal1_env.stats import COLUMNS, PairedChange, SpeedupSummary, aligned, cells


def stage_table(rows: Sequence[tuple[str, str, SpeedupSummary]]) -> str:
    """Return the table of (stage, group, summary) as aligned text."""
    return aligned([["stage", "tasks", *COLUMNS], *([stage, group, *cells(summary)] for stage, group, summary in rows)])


def change_text(before: str, after: str, group: str, change: PairedChange) -> str:
    """Return one sentence on how the speedup changed between two stages.

    >>> from cudal1_env.stats import paired_change
    >>> change_text("a", "b", "tasks", paired_change([1.0], [2.0]))
    'b against a on tasks: speedup x 2.000 (1 tasks solved in both, 0 gained, 0 lost)'
    """
    counts = f"{change.both} tasks solved in both, {change.gained} gained, {change.lost} lost"
    if change.ratio is None:
        return (
            f"{after} against {before} on {group}: no task solved in both ({change.gained} gained, {change.lost} lost)"
        )
    if change.low is None or change.high is None:
        return f"{after} against {before} on {group}: speedup x {change.ratio:.3f} ({counts})"
    return (
        f"{after} against {before} on {group}: speedup x {change.ratio:.3f} "
        f"(95 % interval {change.low:.3f} to {change.high:.3f}; {counts})"
    )


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
