"""Text tables of speedup summaries, in the columns of the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence

from cudal1_env.stats.summary import SpeedupSummary

COLUMNS = ("success", "mean", "geo. mean", "median", "75 %", "25 %", "max", "> 1.01")
"""Column headings of `cells`."""


def cells(summary: SpeedupSummary) -> list[str]:
    """Return the cells of one summary.

    >>> from cudal1_env.stats.summary import summarize_speedups
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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as aligned text; the first two columns are left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
