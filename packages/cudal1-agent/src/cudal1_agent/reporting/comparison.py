"""Several runs side by side: the same figures and tasks of each, and differences that make them hard to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudal1_env.stats import paired_change

from cudal1_agent.config import differences
from cudal1_agent.data.tasks import GROUPS, TRAIN
from cudal1_agent.evaluation.tables import change_text
from cudal1_agent.reporting.charts import speedup_scale
from cudal1_agent.reporting.rows import MAX_NAME, MAX_TASKS, Interval
from cudal1_agent.reporting.run_data import RunData
from cudal1_agent.reporting.text import short
from cudal1_agent.reporting.view import RunView

Answers = Mapping[str, Mapping[str, float] | None]
"""Speedup of each task's answer after the last stage, None if it is not correct."""


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    names: list[str]
    figures: list[tuple[str, list[str]]]
    """A headline figure, and its value in each run."""
    changes: list[str]
    """Each run against the first."""
    elsewhere: list[str]
    """Runs that are not known to have run on the machine of the first."""
    settings: list[tuple[str, list[str]]]
    """A run, and where its settings differ from those of the first run."""
    ticks: list[tuple[float, str]]
    tasks: list[tuple[str, list[Interval | None]]]
    """A task, and the speedup of its answer in each run."""


def compare_runs(views: Sequence[RunView]) -> Comparison:
    """Return runs side by side, all compared with the first of them."""
    names = _names([view.data for view in views])
    labels = list(dict.fromkeys(figure.label for view in views for figure in view.figures))
    values = [{figure.label: figure.value for figure in view.figures} for view in views]
    answers = [_answers(view.data) for view in views]
    tasks = list(dict.fromkeys(task for found in answers for task in found))
    known = [one for found in answers for one in found.values() if one is not None]
    scale = speedup_scale([one["point"] for one in known])
    return Comparison(
        names=names,
        figures=[(label, [found.get(label, "-") for found in values]) for label in labels],
        changes=[
            _change(names[0], names[at], answers[0], answers[at])
            for at in range(1, len(views))
            if answers[0].keys() & answers[at].keys()
        ],
        elsewhere=[
            names[at]
            for at, view in enumerate(views)
            if at and (view.data.machine is None or view.data.machine != views[0].data.machine)
        ],
        settings=[(names[at], _differences(views[0].data, view.data)) for at, view in enumerate(views[1:], start=1)],
        ticks=scale.ticks(),
        tasks=[
            (
                short(task, MAX_NAME),
                [
                    Interval.on(scale, one["low"], one["point"], one["high"])
                    if (one := found.get(task)) is not None
                    else None
                    for found in answers
                ],
            )
            for task in tasks[:MAX_TASKS]
        ],
    )


def _names(runs: Sequence[RunData]) -> list[str]:
    """Return the folders' names, or whole paths if two names would be equal."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _answers(data: RunData) -> Answers:
    """Return the answers to training tasks after the last stage that has any."""
    records = [record for record in data.of_event("answer") if record["group"] == TRAIN]
    last = records[-1]["stage"] if records else None
    return {record["task"]: record.get("speedup") for record in records if record["stage"] == last}


def _change(first: str, name: str, before: Answers, after: Answers) -> str:
    tasks = [task for task in before if task in after]
    points = [[one["point"] if (one := found[task]) else None for task in tasks] for found in (before, after)]
    return change_text(first, name, GROUPS[TRAIN], paired_change(*points))


def _differences(first: RunData, other: RunData) -> list[str]:
    if first.settings is None or other.settings is None:
        return ["the settings of one of the two cannot be read"]
    return [
        line.replace(" in the run,", f" in {first.name},").replace(" requested", f" in {other.name}")
        for line in differences(first.settings, other.settings)
    ] or ["none"]
