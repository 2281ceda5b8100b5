"""What the page shows of one run, as numbers and texts: the template only lays it out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cudal1_data.techniques import Tags, TechniqueRow, classify, top_techniques
from cudal1_env.archive import Entry
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
from cudal1_agent.reporting.charts import Chart, Part, Scale, area_chart, line_chart, parts, speedup_scale
from cudal1_agent.reporting.programs import Compared, Line, Printer
from cudal1_agent.reporting.run_data import RunData
from cudal1_agent.reporting.text import short
from cudal1_agent.run.meter import PARTS, throughput_text
from cudal1_agent.run.metrics import Record

CHEATS = (Status.TAMPERING, Status.IMPOSSIBLE)
"""Statuses of programs that tried to be paid for what they did not do."""
MAX_TASKS = 1500
"""Tasks of a run that the page shows, those with the best programs first."""
MAX_NAME = 200
"""Characters of a task's name that the page shows."""
SHOWN_CHEATS = 25
"""Rejected programs that are shown of each run."""
KINDS = ("correct", "rejected", "unstable", "incorrect")
"""Kinds of outcome in the charts, from the bottom."""


@dataclass(frozen=True)
class Figure:
    """A headline figure."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Interval:
    """A speedup with its interval, and their places on the chart in per cent."""

    low: float
    point: float
    high: float
    left: float
    middle: float
    right: float

    @property
    def text(self) -> str:
        """The speedup in words."""
        return f"{self.point:.2f} x ({self.low:.2f} to {self.high:.2f})"

    @classmethod
    def on(cls, scale: Scale, low: float | None, point: float | None, high: float | None) -> Interval | None:
        """Return an interval on a scale; a missing upper end is the point, a missing point no interval."""
        if point is None or not math.isfinite(point) or point <= 0:
            return None
        low, high = point if low is None else low, point if high is None else high
        return cls(low, point, high, scale(low), scale(point), scale(high))


@dataclass(frozen=True)
class Exemplar:
    """A program that the prompt showed from which another came."""

    title: str
    lines: list[Line] | None


@dataclass(frozen=True)
class TaskRow:
    """A task in the chart of speedups, and its best program."""

    task: str
    anchor: str
    group: str
    programs: int
    correct: int
    answer: Interval | None
    """Its answer after the last stage."""
    best: Interval | None = None
    origin: str = ""
    """Where the best program came from."""
    confirmed: str = ""
    """What the second measurement of a champion found."""
    techniques: tuple[str, ...] = ()
    compared: Compared | None = None
    exemplars: list[Exemplar] = field(default_factory=list[Exemplar])

    @property
    def solved(self) -> bool:
        """Whether there is a speedup to show."""
        return self.best is not None or self.answer is not None


@dataclass(frozen=True)
class StatusRow:
    """A status, how often it came, and its most frequent message."""

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
    """Where the time of a phase went."""

    name: str
    wall_s: float
    measured: int
    parts: list[Part]


@dataclass(frozen=True)
class StageTable:
    """A stage table on the page."""

    columns: list[str]
    """Headings behind those of stage and tasks."""
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


def kind_of(status: str) -> str:
    """Return the kind of outcome that a status is."""
    if status == Status.CORRECT:
        return "correct"
    if status in CHEATS:
        return "rejected"
    return "unstable" if status == Status.UNSTABLE else "incorrect"


def view_run(data: RunData, printer: Printer, prefix: str = "") -> RunView:
    """Return what the page shows of a run.

    Args:
        data: The run.
        printer: Prints its programs while the page has room.
        prefix: Begins the anchors of the run.
    """
    champions = {record["task"]: record for record in data.of_event("champion")}
    best = best_entries(data.entries, {task: record["source_sha256"] for task, record in champions.items()})
    rows, tagged = _rows(data, best, champions, printer, prefix)
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
        ticks=_scale(data, best).ticks(),
        rows=rows,
        archive=_archive_charts(data.entries),
        training=_training_charts(data),
        statuses=_statuses(data.entries),
        rejected=_rejected(data, printer),
        techniques=top_techniques(tagged),
        phases=phases,
        totals=parts(totals, sum(totals.values()), " s"),
        throughput=throughput_text(data.of_event("seconds")),
    )


def best_entries(entries: Sequence[Entry], champions: Mapping[str, str]) -> dict[str, Entry]:
    """Return the verdict on the best program of each task.

    Args:
        entries: Verdicts in order of arrival.
        champions: Hash of the program that was measured again at the end, by task: its last verdict counts. For any
            other task it is the verdict with the highest lower end, the first of equals.
    """
    best: dict[str, Entry] = {}
    for entry in entries:
        if entry.status != Status.CORRECT or entry.low is None or entry.point is None:
            continue
        known = best.get(entry.task)
        champion = champions.get(entry.task)
        better = known is None or entry.low > (known.low or 0.0)
        if entry.source_sha256 == champion or (better and (known is None or known.source_sha256 != champion)):
            best[entry.task] = entry
    return best


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
    """The `table` records, group by group."""
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
    last = {record["group"]: (record["stage"], summary_of(record)) for record in tables}
    for group, (stage, summary) in last.items():
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


def _scale(data: RunData, best: dict[str, Entry]) -> Scale:
    points = [entry.point for entry in best.values() if entry.point is not None]
    points += [record["speedup"]["point"] for record in data.of_event("answer") if record.get("speedup")]
    return speedup_scale(points)


def _rows(
    data: RunData, best: dict[str, Entry], champions: dict[str, Record], printer: Printer, prefix: str
) -> tuple[list[TaskRow], list[tuple[Tags, float | None]]]:
    scale = _scale(data, best)
    programs = Counter(entry.task for entry in data.entries)
    correct = Counter(entry.task for entry in data.entries if entry.status == Status.CORRECT)
    answers = {record["task"]: record for record in data.of_event("answer")}
    shown_for = _lineage(data)
    stages = {(one["task"], one.get("source_sha256")): one["stage"] for one in reversed(data.of_event("answer"))}
    known = {(entry.task, entry.source_sha256): entry for entry in reversed(data.entries)}
    names = sorted({*programs, *answers}, key=lambda task: (-(best[task].low or 0.0) if task in best else 0.0, task))
    rows: list[TaskRow] = []
    tagged: list[tuple[Tags, float | None]] = []
    if len(names) > MAX_TASKS:
        data.notes.append(f"{len(names) - MAX_TASKS} of {len(names)} tasks are not shown: the page is full")
    for number, task in enumerate(names[:MAX_TASKS]):
        answer = answers.get(task)
        speedup = (answer.get("speedup") or {}) if answer is not None else {}
        row = TaskRow(
            task=short(task, MAX_NAME),
            anchor=f"{prefix}task-{number}",
            group=group_name(answer["group"]) if answer is not None else "",
            programs=programs[task],
            correct=correct[task],
            answer=Interval.on(scale, *(speedup.get(end) for end in ("low", "point", "high"))),
        )
        entry = best.get(task)
        texts = data.reader.texts(entry.position) if entry is not None and data.reader is not None else None
        if entry is None or texts is None:
            rows.append(row)
            continue
        tags = classify(texts[1], texts[0])
        if tags is not None:
            tagged.append((tags, entry.point))
        exemplars = shown_for.get((task, entry.source_sha256))
        rows.append(
            replace(
                row,
                best=Interval.on(scale, entry.low, entry.point, entry.high),
                origin=_origin(stages.get((task, entry.source_sha256)), exemplars),
                confirmed=_confirmed(champions.get(task)),
                techniques=(*tags.techniques, tags.backend) if tags is not None else (),
                compared=printer.compared(*texts),
                exemplars=[_exemplar(data, known.get((task, sha256)), sha256, printer) for sha256 in exemplars or ()],
            )
        )
    return rows, tagged


def _lineage(data: RunData) -> dict[tuple[str, str], list[str]]:
    """Return the hashes of the exemplars that a prompt showed, by task and by hash of a correct answer to it."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in data.of_event("batch"):
        for task, programs in record.get("correct", {}).items():
            for program in programs:
                found.setdefault((task, program), record.get("shown", {}).get(task, []))
    return found


def _origin(stage: str | None, exemplars: list[str] | None) -> str:
    if exemplars is not None:
        many = f"shown {len(exemplars)} exemplars" if exemplars else "shown no exemplar"
        return f"answer of stage contrast, {many}"
    if stage is not None:
        return f"answer after stage {short(stage, MAX_NAME)}"
    return "a known program (variant or template), or an answer of self-training"


def _confirmed(record: Record | None) -> str:
    if record is None:
        return ""
    seen = f"Chosen at {record['chosen']['point']:.2f} x."
    if not record.get("confirmed"):
        return f"Not confirmed ({record['status']}). {seen}"
    return "Confirmed at {point:.2f} x ({low:.2f} to {high:.2f}). ".format(**record["confirmed"]) + seen


def _exemplar(data: RunData, entry: Entry | None, sha256: str, printer: Printer) -> Exemplar:
    texts = data.reader.texts(entry.position) if entry is not None and data.reader is not None else None
    if entry is None or texts is None or entry.point is None:
        return Exemplar(f"program {sha256[:12]}, which the archive does not hold", None)
    return Exemplar(f"measured at {entry.point:.2f} x", printer.program(texts[1]))


def _archive_charts(entries: Sequence[Entry]) -> list[Chart]:
    """Return outcomes and best speedups as the archive grew."""
    counts: Counter[str] = Counter()
    best: dict[str, float] = {}
    logs = 0.0
    layers: dict[str, list[float]] = {kind: [] for kind in KINDS}
    means: list[tuple[float, float]] = []
    solved: list[tuple[float, float]] = []
    every = max(len(entries) // 400, 1)
    xs: list[float] = []
    for number, entry in enumerate(entries, start=1):
        counts[kind_of(entry.status)] += 1
        point = entry.point if entry.status == Status.CORRECT else None
        if point is not None and point > best.get(entry.task, 0.0):
            logs += math.log(point) - (math.log(best[entry.task]) if entry.task in best else 0.0)
            best[entry.task] = point
        if number % every and number != len(entries):
            continue
        xs.append(number)
        for kind in KINDS:
            layers[kind].append(counts[kind])
        solved.append((number, len(best)))
        if best:
            means.append((number, math.exp(logs / len(best))))
    unit = "program"
    charts = [
        area_chart("outcomes", layers, xs, unit=unit),
        line_chart("tasks with a timed program", {"tasks": solved}, unit=unit),
        line_chart("best so far, geometric mean over these tasks", {"speedup": means}, unit=unit),
    ]
    return [chart for chart in charts if chart is not None]


def _training_charts(data: RunData) -> list[Chart]:
    steps: dict[str, list[Record]] = defaultdict(list)
    for record in data.of_event("step"):
        steps[record["stage"]].append(record)
    charts: list[Chart | None] = []
    for stage, names in (
        ("sft", (("loss", "loss"), ("mean_token_accuracy", "token accuracy"))),
        ("self_train", (("loss", "loss"),)),
        ("contrast", (("raw_reward", "reward"), ("correct", "share correct"), ("speedup", "speedup of the correct"))),
    ):
        for name, label in names:
            points: list[tuple[float, float | None]] = []
            done = 0
            for one in steps[stage]:
                # Each round of self-training counts its steps from 1.
                if points and one["step"] + done <= points[-1][0]:
                    done = int(points[-1][0])
                points.append((one["step"] + done, one.get(name)))
            charts.append(line_chart(f"{stage}: {label}", {label: points}))
    return [chart for chart in charts if chart is not None]


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
