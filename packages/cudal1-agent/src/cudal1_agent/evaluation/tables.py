"""The stage table as text: one row for each stage and group, in the columns of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cudal1_env.reward import LOG_FLOOR
from cudal1_env.stats import COLUMNS, PairedChange, SpeedupSummary, aligned, cells

from cudal1_agent.data.tasks import GROUPS
from cudal1_agent.evaluation.success import Success


class Row(NamedTuple):
    """A row of the stage table."""

    stage: str
    tasks: str
    """Name of its tasks."""
    summary: SpeedupSummary | None
    """None if nothing was timed."""
    success: Success | None = None
    """None in records of earlier versions."""


def stage_table(rows: Sequence[Row]) -> str:
    """Return the table as aligned text."""
    return aligned([headings(rows), *row_cells(rows)])


def headings(rows: Sequence[Row]) -> list[str]:
    """Return the headings of a table, with correct@k if tasks have several answers.

    own@1 counts correct answers that are not copies of their reference.
    """
    drawn = [f"correct@{k} (95 %)" for k in _drawn(rows)]
    return ["stage", "tasks", "correct@1 (95 %)", "own@1 (95 %)", *drawn, *COLUMNS]


def row_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of each row, as many as there are headings."""
    return [
        [
            row.stage,
            row.tasks,
            _share(row.success, 1),
            "-" if row.success is None or row.success.own is None else row.success.own.text(),
            *(_share(row.success, k) for k in _drawn(rows)),
            *(cells(row.summary) if row.summary is not None else ["-"] * len(COLUMNS)),
        ]
        for row in rows
    ]


def _drawn(rows: Sequence[Row]) -> list[int]:
    return sorted({row.success.k for row in rows if row.success is not None and row.success.k is not None})


def _share(success: Success | None, k: int) -> str:
    if success is None:
        return "-"
    share = success.at_1 if k == 1 else success.at_k if k == success.k else None
    return "-" if share is None else share.text()


def rows_of(record: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a `table` record: the group, and the group without answers of learnt skeletons, if any.

    Args:
        record: The record, in metrics or of `evaluate`.
    """
    name = group_name(record["group"])
    rows = [_row(record["stage"], name, record)]
    other = record.get("unlearnt")
    if other is not None and other["success"]["answers"] < record["success"]["answers"]:
        rows.append(_row(record["stage"], f"{name}, without learnt skeletons", record["unlearnt"]))
    return rows


def family_rows(record: Mapping[str, Any]) -> list[Row]:
    """Return a row for each family of a `table` record, none if there is only one family."""
    families: Mapping[str, Mapping[str, Any]] = record.get("families") or {}
    if len(families) < 2:
        return []
    return [_row(record["stage"], f"  {name}", figures) for name, figures in families.items()]


def _row(stage: str, tasks: str, figures: Mapping[str, Any]) -> Row:
    given = figures.get("success")
    return Row(stage, tasks, summary_of(figures), None if given is None else Success.model_validate(given))


FAILURE = math.exp(LOG_FLOOR)
"""Speedup that a failure counts as, taken from the reward `log`."""


def with_failures(speedups: Sequence[float | None]) -> list[float]:
    """Return the speedups with failures counted as `FAILURE`, which is also the minimum.

    >>> [round(value, 3) for value in with_failures([2.0, None, 0.01])]
    [2.0, 0.1, 0.1]
    """
    return [FAILURE if speedup is None else max(speedup, FAILURE) for speedup in speedups]


def change_text(before: str, after: str, group: str, change: PairedChange, whole: PairedChange | None = None) -> str:
    """Return a sentence on how the speedup changed between two stages.

    Args:
        before: The earlier stage.
        after: The later stage.
        group: Name of the group of tasks.
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
    """Return the name of a group of tasks."""
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


def summary_of(record: Mapping[str, object]) -> SpeedupSummary | None:
    """Return the summary in a `table` record of the metrics, None if nothing was timed."""
    if "mean" not in record:
        return None
    return SpeedupSummary.model_validate({name: record[name] for name in SpeedupSummary.model_fields})


def contamination_notes(records: Sequence[Mapping[str, Any]], groups: Mapping[str, str]) -> list[str]:
    """Return warnings about test data in training for readers of the stage table.

    Args:
        records: The `table` records of a run's metrics.
        groups: Names of the groups.
    """
    lines: list[str] = []
    if any(record.get("trained_on_test") for record in records):
        lines.append("trained_on_test: this run was trained on test data; its figures are no test results")
    last = {record["group"]: record for record in records}
    for group, record in last.items():
        overlaps: dict[str, str] = record.get("overlaps") or {}
        if overlaps and "@" not in next(iter(overlaps)):  # other sizes repeat the same tasks
            named = ", ".join(f"{task} ({other})" for task, other in overlaps.items())
            lines.append(
                f"{groups[group]}: {len(overlaps)} overlap a KernelBench task; --test-suite kernelbench leaves them "
                f"out of training: {named}"
            )
    return lines
