"""Tasks of one run in the chart of speedups: the best program of each, its origin and its second measurement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cudal1_data.techniques import Tags, classify
from cudal1_env.archive_reader import Entry
from cudal1_env.records import Status

from cudal1_agent.evaluation.tables import group_name
from cudal1_agent.reporting.charts import Scale, speedup_scale
from cudal1_agent.reporting.programs import Compared, Line, Printer
from cudal1_agent.reporting.run_data import RunData
from cudal1_agent.reporting.text import short
from cudal1_agent.run.metrics import Record

MAX_TASKS = 1500
"""Maximum number of a run's tasks on the page, those with the best programs first."""
MAX_NAME = 200
"""Maximum number of characters of a task's name on the page."""


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
        """The speedup as text."""
        return f"{self.point:.2f} x ({self.low:.2f} to {self.high:.2f})"

    @classmethod
    def on(cls, scale: Scale, low: float | None, point: float | None, high: float | None) -> Interval | None:
        """Return an interval on a scale; a missing end is the point, and without a point there is no interval."""
        if point is None or not math.isfinite(point) or point <= 0:
            return None
        low, high = point if low is None else low, point if high is None else high
        return cls(low, point, high, scale(low), scale(point), scale(high))


@dataclass(frozen=True)
class Exemplar:
    """A program in the prompt that led to another program."""

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
    """Result of a champion's second measurement."""
    techniques: tuple[str, ...] = ()
    compared: Compared | None = None
    exemplars: list[Exemplar] = field(default_factory=list[Exemplar])

    @property
    def solved(self) -> bool:
        """Whether there is a speedup to show."""
        return self.best is not None or self.answer is not None


def best_entries(entries: Sequence[Entry], champions: Mapping[str, str]) -> dict[str, Entry]:
    """Return the verdict on the best program of each task.

    Args:
        entries: Verdicts in order of arrival.
        champions: Hash of the program that was measured again at the end, by task; its last verdict counts. For other
            tasks, the verdict with the highest lower bound counts, the first of equals.
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


def scale_of(data: RunData, best: dict[str, Entry]) -> Scale:
    """Return a scale that holds all speedups of a run."""
    points = [entry.point for entry in best.values() if entry.point is not None]
    points += [record["speedup"]["point"] for record in data.of_event("answer") if record.get("speedup")]
    return speedup_scale(points)


def task_rows(
    data: RunData, best: dict[str, Entry], champions: dict[str, Record], printer: Printer, prefix: str
) -> tuple[list[TaskRow], list[tuple[Tags, float | None]]]:
    """Return the tasks that the page shows, and the tags of their best programs with the speedups."""
    scale = scale_of(data, best)
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
    """Return the hashes of the exemplars in a prompt, by task and by hash of a correct answer to it."""
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
