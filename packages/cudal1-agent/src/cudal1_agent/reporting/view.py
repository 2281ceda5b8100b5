"""Content of the page for one run, as numbers and texts: the template only lays it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_data.techniques import TechniqueRow, top_techniques
from cudal1_env.archive_reader import Entry
from cudal1_env.records import Status

from cudal1_agent.data.tasks import GROUPS, HELD_OUT_TASKS
from cudal1_agent.evaluation.tables import (
    Row,
    changes,
    contamination_notes,
    family_rows,
    group_name,
    headings,
    row_cells,
    rows_of,
    summary_of,
)
from cudal1_agent.reporting.charts import Chart, Part, parts
from cudal1_agent.reporting.curves import CHEATS, archive_charts, kind_of, training_charts
from cudal1_agent.reporting.programs import Line, Printer
from cudal1_agent.reporting.rows import MAX_NAME, TaskRow, best_entries, scale_of, task_rows
from cudal1_agent.reporting.run_data import RunData
from cudal1_agent.reporting.text import short
from cudal1_agent.run.meter import PARTS, throughput_text
from cudal1_agent.run.metrics import Record

SHOWN_CHEATS = 25
"""Maximum number of rejected programs that are shown of each run."""


@dataclass(frozen=True)
class Figure:
    """A headline figure."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class StatusRow:
    """A status, its count, and its most frequent message."""

    status: str
    count: int
    share: float
    message: str
    kind: str


@dataclass(frozen=True)
class Rejected:
    """A program that was rejected as a cheat."""

    task: str
    status: str
    message: str
    lines: list[Line] | None


@dataclass(frozen=True)
class PhaseRow:
    """Time of a phase, by part."""

    name: str
    wall_s: float
    measured: int
    parts: list[Part]


@dataclass(frozen=True)
class StageTable:
    """A stage table on the page."""

    columns: list[str]
    """Headings after those of stage and tasks."""
    cells: list[tuple[str, str, list[str]]]
    """Stage, tasks and figures of each row."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> StageTable:
        """Return the table of rows."""
        return cls(headings(rows)[2:], [(stage, tasks, rest) for stage, tasks, *rest in row_cells(rows)])


@dataclass(frozen=True)
class RunView:
    """A run on the page."""

    data: RunData
    state: str
    figures: list[Figure]
    stages: StageTable
    families: StageTable
    changes: list[str]
    warnings: list[str]
    ticks: list[tuple[float, str]]
    rows: list[TaskRow]
    archive: list[Chart]
    training: list[Chart]
    statuses: list[StatusRow]
    rejected: list[Rejected]
    techniques: tuple[TechniqueRow, ...]
    phases: list[PhaseRow]
    totals: list[Part]
    throughput: str


def view_run(data: RunData, printer: Printer, prefix: str = "") -> RunView:
    """Return what the page shows of a run.

    Args:
        data: The run.
        printer: Converts its programs while the page has room.
        prefix: Prefix of the run's anchors.
    """
    champions = {record["task"]: record for record in data.of_event("champion")}
    best = best_entries(data.entries, {task: record["source_sha256"] for task, record in champions.items()})
    rows, tagged = task_rows(data, best, champions, printer, prefix)
    phases = _phases(data.of_event("seconds"))
    totals = {part: sum(record.get(f"{part}_s", 0.0) for record in data.of_event("seconds")) for part in PARTS}
    tables = _tables(data)
    return RunView(
        data=data,
        state=_state(data),
        figures=_figures(data, best, champions, tables),
        stages=StageTable.of([row for record in tables for row in rows_of(record)]),
        families=StageTable.of(
            [row for record in tables if record["group"] == HELD_OUT_TASKS for row in family_rows(record)]
        ),
        changes=changes(data.records),
        warnings=contamination_notes([one for one in data.of_event("table") if one["group"] in GROUPS], GROUPS),
        ticks=scale_of(data, best).ticks(),
        rows=rows,
        archive=archive_charts(data.entries),
        training=training_charts(data),
        statuses=_statuses(data.entries),
        rejected=_rejected(data, printer),
        techniques=top_techniques(tagged),
        phases=phases,
        totals=parts(totals, sum(totals.values()), " s"),
        throughput=throughput_text(data.of_event("seconds")),
    )


def _state(data: RunData) -> str:
    if data.finished:
        return "finished"
    last = data.records[-1] if data.records else None
    if last is None:
        return "not finished: nothing is recorded yet"
    place = last.get("phase") or last.get("stage") or last["event"]
    step = f", step {last['step']}" if "step" in last else ""
    return f"not finished: the last record is of {short(str(place), 60)}{step}"


def _tables(data: RunData) -> list[Record]:
    """Return the `table` records, group by group."""
    order = list(GROUPS)
    return sorted(
        data.of_event("table"), key=lambda one: order.index(one["group"]) if one["group"] in GROUPS else len(order)
    )


def _figures(
    data: RunData,
    best: dict[str, Entry],
    champions: dict[str, Record],
    tables: Sequence[Record],
) -> list[Figure]:
    figures: list[Figure] = []
    last = {record["group"]: record for record in tables}
    for group, record in last.items():
        stage, summary = record["stage"], summary_of(record)
        if summary is None:
            continue
        mean, solved = summary.geometric_mean, f"{summary.successes} of {summary.tasks}"
        if mean is None:
            figures.append(Figure(solved, f"solved, {group_name(group)}", f"after {stage}"))
        else:
            label = f"geometric mean, {group_name(group)}"
            figures.append(Figure(f"{mean:.2f} x", label, f"{solved} solved after {stage}"))
    confirmed = [one["confirmed"]["point"] for one in champions.values() if one.get("confirmed")]
    if confirmed:
        figures.append(Figure(f"{max(confirmed):.2f} x", "fastest program, confirmed", "on inputs that chose nothing"))
    entries = data.entries
    correct = sum(entry.status == Status.CORRECT for entry in entries)
    if entries:
        tasks = len({entry.task for entry in entries})
        figures.append(Figure(f"{len(entries):,}", "programs judged", f"{correct / len(entries):.0%} correct"))
        figures.append(Figure(f"{len(best)} of {tasks}", "tasks with a correct, timed program"))
        cheats = sum(entry.status in CHEATS for entry in entries)
        figures.append(Figure(f"{cheats:,}", "rejected as cheats", "TAMPERING or IMPOSSIBLE"))
    wall_s = sum(record["wall_s"] for record in data.of_event("seconds"))
    if wall_s:
        judging_s = sum(record.get("judging_s", 0.0) for record in data.of_event("seconds"))
        note = f"{judging_s / wall_s:.0%} of it judging"
        figures.append(Figure(f"{wall_s / 60:.1f} min" if wall_s >= 60 else f"{wall_s:.0f} s", "time", note))
    return figures


def _statuses(entries: Sequence[Entry]) -> list[StatusRow]:
    counts = Counter(entry.status for entry in entries)
    messages: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        messages[entry.status][entry.message] += 1
    return [
        StatusRow(
            status, count, 100 * count / len(entries), short(messages[status].most_common(1)[0][0]), kind_of(status)
        )
        for status, count in counts.most_common()
    ]


def _rejected(data: RunData, printer: Printer) -> list[Rejected]:
    found: list[Rejected] = []
    for entry in data.entries:
        if entry.status in CHEATS and len(found) < SHOWN_CHEATS and data.reader is not None:
            texts = data.reader.texts(entry.position)
            lines = printer.program(texts[1]) if texts is not None else None
            found.append(Rejected(short(entry.task, MAX_NAME), entry.status, short(entry.message), lines))
    return found


def _phases(records: Sequence[Record]) -> list[PhaseRow]:
    longest = max((record["wall_s"] for record in records), default=0.0)
    return [
        PhaseRow(
            record["phase"],
            record["wall_s"],
            record.get("measured", 0),
            parts({part: record.get(f"{part}_s", 0.0) for part in PARTS}, longest, " s"),
        )
        for record in records
    ]
