"""The report of a run: one HTML file with tables and plots in it, to be opened without a network."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from cudal1_data.techniques import Tags, classify, top_techniques
from cudal1_env import Archive, Evaluation
from cudal1_env.stats import PairedChange

from cudal1_agent.data.tasks import GROUPS, HELD_OUT_TASKS
from cudal1_agent.evaluation.tables import (
    change_text,
    contamination_notes,
    family_rows,
    headings,
    row_cells,
    rows_of,
    stage_table,
)
from cudal1_agent.run.files import write_aside
from cudal1_agent.run.folder import ARCHIVE, METRICS, REPORT, is_finished, read_settings
from cudal1_agent.run.meter import throughput_text
from cudal1_agent.run.metrics import Record, read_metrics


def report(run_dir: Path) -> Path:
    """Write the report of a run, finished or under way, and return its path.

    Raises:
        RunError: The directory holds no run.
    """
    from jinja2 import Environment

    settings = read_settings(run_dir)
    records = read_metrics(run_dir / METRICS)
    with Archive(run_dir / ARCHIVE) as archive:
        counts = archive.counts()
        best = [found for task in counts if (found := archive.best(task)) is not None]
        champions = [
            (record, archive.program(record["task"], record["source_sha256"])[-1].source)
            for record in of_event(records, "champion")
        ]
    statuses: dict[str, int] = {}
    for found in counts.values():
        for status, count in found.items():
            statuses[status.value] = statuses.get(status.value, 0) + count
    tables = of_event(records, "table")
    rows = [row for record in tables for row in rows_of(record, GROUPS)]
    families = [row for record in tables if record["group"] == HELD_OUT_TASKS for row in family_rows(record)]
    template = Environment(autoescape=True).from_string(
        files("cudal1_agent.evaluation").joinpath("report.html").read_text(encoding="utf-8")
    )
    html = template.render(
        name=run_dir.name,
        finished=is_finished(run_dir),
        settings=settings.model_dump_json(indent=2),
        columns=headings(rows),
        rows=row_cells(rows),
        families=row_cells(families),
        family_columns=headings(families),
        changes=_changes(records),
        contamination=contamination_notes(tables, GROUPS),
        plots=plots(records),
        seconds=of_event(records, "seconds"),
        statuses=sorted(statuses.items(), key=lambda item: -item[1]),
        techniques=top_techniques(_tagged(best)),
        champions=champions,
        throughput=throughput_text(of_event(records, "seconds")),
        tasks=len(counts),
    )
    write_aside(run_dir / REPORT, html)
    return run_dir / REPORT


def summary_text(run_dir: Path) -> str:
    """Return the stage table of a run as text, with the changes between its stages.

    Raises:
        RunError: The directory holds no run.
    """
    read_settings(run_dir)
    records = read_metrics(run_dir / METRICS)
    rows = [row for record in of_event(records, "table") for row in rows_of(record, GROUPS)]
    notes = contamination_notes(of_event(records, "table"), GROUPS)
    return "\n".join([stage_table(rows), *_changes(records), *notes, throughput_text(of_event(records, "seconds"))])


def of_event(records: Sequence[Record], event: str) -> list[Record]:
    """Return the records of one kind."""
    return [record for record in records if record["event"] == event]


def plots(records: Sequence[Record]) -> list[str]:
    """Return the plots of a run as SVG texts."""
    steps = of_event(records, "step")
    drawn: list[str] = []
    for stage, names in (
        ("sft", (("loss", "loss"), ("mean_token_accuracy", "token accuracy"))),
        ("self_train", (("loss", "loss"),)),
        ("contrast", (("raw_reward", "reward"), ("speedup", "speedup of the correct"), ("correct", "share correct"))),
    ):
        lines = {label: _line(steps, stage, name) for name, label in names}
        lines = {label: line for label, line in lines.items() if line}
        if lines:
            drawn.append(_plot(stage, lines))
    bars = _speedups(of_event(records, "answer"))
    return [*drawn, bars] if bars else drawn


def _line(steps: Sequence[Record], stage: str, name: str) -> list[float]:
    return [record[name] for record in steps if record["stage"] == stage and record.get(name) is not None]


def _plot(stage: str, lines: Mapping[str, Sequence[float]]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(lines), 2.6), layout="constrained")
    for position, (label, values) in enumerate(lines.items(), start=1):
        axes = figure.add_subplot(1, len(lines), position)
        axes.plot(range(1, len(values) + 1), values, linewidth=1.2)
        axes.set_title(f"{stage}: {label}", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    return _svg(figure)


def _speedups(answers: Sequence[Record]) -> str | None:
    """Return the speedups of each stage on each group, sorted, as one plot."""
    from matplotlib.figure import Figure

    groups = [group for group in GROUPS if any(record["group"] == group for record in answers)]
    if not groups:
        return None
    figure = Figure(figsize=(3.6 * len(groups), 3.0), layout="constrained")
    for position, group in enumerate(groups, start=1):
        axes = figure.add_subplot(1, len(groups), position)
        for stage in dict.fromkeys(record["stage"] for record in answers):
            found = [record for record in answers if record["group"] == group and record["stage"] == stage]
            values = sorted((one["speedup"]["point"] if one["speedup"] else 0.0 for one in found), reverse=True)
            axes.plot(range(1, len(values) + 1), values, marker=".", linewidth=1.0, label=stage)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_title(f"speedups, sorted: {GROUPS[group]}", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.legend(fontsize=7)
    return _svg(figure)


def _svg(figure: Any) -> str:
    text = io.StringIO()
    # No date: the same run gives the same report.
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _tagged(best: Sequence[Evaluation]) -> list[tuple[Tags, float | None]]:
    """Return tags and speedup of the best program of each task."""
    found = [(classify(one.source, one.task_source), one.speedup) for one in best]
    return [(tags, speedup.point) for tags, speedup in found if tags is not None and speedup is not None]


def _changes(records: Sequence[Record]) -> list[str]:
    return [
        change_text(
            record["before"],
            record["stage"],
            GROUPS[record["group"]],
            PairedChange.model_validate({name: record[name] for name in PairedChange.model_fields}),
            PairedChange.model_validate(record["with_failures"]) if "with_failures" in record else None,
        )
        for record in of_event(records, "change")
    ]
