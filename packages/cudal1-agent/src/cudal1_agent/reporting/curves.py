"""Curves of one run: outcomes and speedups by program judged, losses and rewards by step."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from cudal1_env.archive_reader import Entry
from cudal1_env.records import Status

from cudal1_agent.reporting.charts import Chart, area_chart, line_chart
from cudal1_agent.reporting.run_data import RunData
from cudal1_agent.run.metrics import Record

CHEATS = (Status.TAMPERING, Status.IMPOSSIBLE)
"""Statuses of programs that are rejected as cheats."""
KINDS = ("correct", "rejected", "unstable", "incorrect")
"""Kinds of outcome in the charts, from the bottom."""


def kind_of(status: str) -> str:
    """Return the kind of outcome of a status."""
    if status == Status.CORRECT:
        return "correct"
    if status in CHEATS:
        return "rejected"
    return "unstable" if status == Status.UNSTABLE else "incorrect"


def archive_charts(entries: Sequence[Entry]) -> list[Chart]:
    """Return charts of outcomes and best speedups by program judged."""
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


def training_charts(data: RunData) -> list[Chart]:
    """Return charts of losses, rewards and speedups of each stage by step."""
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
