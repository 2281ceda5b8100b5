"""The stage table as text: one row for each stage and group, in the columns of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cudal1_env.stats import PairedChange, SpeedupSummary

COLUMNS = ("success", "mean", "geo. mean", "median", "75 %", "25 %", "max", "> 1.01")
"""Columns of the stage table behind stage and group."""


def cells(summary: SpeedupSummary) -> list[str]:
    """Return one row of the stage table.

    >>> from cudal1_env.stats import summarize_speedups
    >>> cells(summarize_speedups([2.0, None]))
    ['1/2 (50 %)', '1.00', '2.00', '1.00', '1.50', '0.50', '2.00', '1/2 (50 %)']
    """
    geometric_mean = summary.geometric_mean
    return [
        f"{summary.successes}/{summary.tasks} ({100 * summary.success_share:.0f} %)",
        f"{summary.mean:.2f}",
        "-" if geometric_mean is None else f"{geometric_mean:.2f}",
        f"{summary.median:.2f}",
        f"{summary.quantile_75:.2f}",
        f"{summary.quantile_25:.2f}",
        f"{summary.max:.2f}",
        f"{summary.above}/{summary.tasks} ({100 * summary.above_share:.0f} %)",
    ]


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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as text, each column as wide as its widest cell; the first two to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def summary_of(record: Mapping[str, object]) -> SpeedupSummary:
    """Return the summary in a `table` record of the metrics."""
    return SpeedupSummary.model_validate({name: record[name] for name in SpeedupSummary.model_fields})
