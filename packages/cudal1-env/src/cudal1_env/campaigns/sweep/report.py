"""The report of a sweep: the paper's columns by level, and the verdicts that disagree with published figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from cudal1_data.techniques import Tags, TechniqueRow, classify, top_techniques
from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.baselines import BASELINES
from cudal1_env.campaigns.sweep.lines import SweepLine
from cudal1_env.records import Evaluation, Origin, Speedup, Status
from cudal1_env.stats import COLUMNS, SpeedupSummary, aligned, cells, summarize_speedups

PUBLISHED = {
    "eager": "score_default",
    "compile": "score_torch_compile_default",
    "compile-reduce-overhead": "score_torch_compile_reduce_overhead",
    "cuda-graph": "score_cuda_graph",
    "cudnn-flags": "score_cudnn",
}
"""Column of the published speedup by baseline (docs/decisions/007-baselines.md).

Their `score_cudnn` compares with programs that enter `torch.backends.cudnn.flags(benchmark=True)`, which also turns
cuDNN off; `cudnn-flags` leaves it on.
"""

STRONGEST = "strongest"
"""Name of the rows against each task's strongest baseline, `eager` included."""

AGREES_WITHIN = 1.1
"""Factor by which a published speedup may lie outside the interval: the difference to expect between two machines
(paper, section 2.4.4).
"""


class Row(BaseModel):
    """One row of the tables."""

    model_config = ConfigDict(frozen=True)

    tasks: str
    """`level 1`, ..., `level unknown`, `all`."""
    baseline: str = "eager"
    """Baseline of the speedups."""
    figures: Literal["measured", "published"]
    """Whether the figures are measured or published; both are over the same tasks."""
    summary: SpeedupSummary
    """The paper's columns; the fastest correct program of each task counts."""


class Verdict(BaseModel):
    """The verdict on one program, with its published figures."""

    model_config = ConfigDict(frozen=True)

    task: str
    """Task id."""
    source_sha256: str
    """Hash of the program."""
    status: Status
    """The verdict."""
    speedup: Speedup | None
    """Speedup over eager; None unless CORRECT (or evidence for another status)."""
    strongest: str | None
    """Name of the task's strongest baseline."""
    against_strongest: Speedup | None
    """Speedup over that baseline."""
    published: float | None
    """Published speedup over eager."""

    def cells(self) -> list[str]:
        """Return one row of the table."""
        published = "-" if self.published is None else f"{self.published:.2f}"
        return [
            self.task,
            self.status,
            _interval(self.speedup),
            _interval(self.against_strongest),
            self.strongest or "-",
            published,
        ]


class Disagreement(BaseModel):
    """A program whose verdict disagrees with its published figure."""

    model_config = ConfigDict(frozen=True)

    task: str
    """Task id."""
    source_sha256: str
    """Hash of the program."""
    status: Status
    """The verdict."""
    speedup: Speedup | None
    """Measured speedup; None unless CORRECT (or evidence for another status)."""
    published: float
    """The published speedup."""
    message: str
    """Message of the verdict (may hold text of the program)."""


class SweepReport(BaseModel):
    """The result of a sweep."""

    model_config = ConfigDict(frozen=True)

    programs: int = Field(ge=0)
    """Programs that were judged."""
    statuses: dict[Status, int]
    """Number of programs by status."""
    rows: tuple[Row, ...]
    """The tables."""
    verdicts: tuple[Verdict, ...]
    """Verdict on each program, in the order of the file."""
    disagreements: tuple[Disagreement, ...]
    """Programs whose verdict disagrees with the published figure: failures first, then by the distance of the
    speedups.
    """
    apart: dict[str, dict[str, str]] = Field(default_factory=dict[str, dict[str, str]])
    """For each baseline, the tasks with a correct program that are not in its rows, with the reason."""
    ran: dict[Origin, float] = Field(default_factory=dict[Origin, float])
    """Mean shares of kernel time by origin, over the correct programs that have a profile."""
    profiles: int = Field(default=0, ge=0)
    """Number of these programs."""
    techniques: tuple[TechniqueRow, ...]
    """The paper's "top techniques": speedups of the programs that show each technique."""
    refused: dict[str, str]
    """Tasks that the judge refuses, with the reason; they are in no table."""
    without: int = Field(ge=0)
    """Tasks of the file that have no program; they are in no table."""

    def text(self) -> str:
        """Return the report for people."""
        parts: list[str] = []
        if self.rows:
            rows = [[f"{row.tasks}, {row.baseline}", row.figures, *cells(row.summary)] for row in self.rows]
            parts.append(aligned([["tasks, against", "figures", *COLUMNS], *rows]))
        counts = ", ".join(f"{count} {status}" for status, count in self.statuses.items()) or "none"
        parts.append(f"{self.programs} programs judged: {counts}; {self.without} tasks of the file hold no program")
        for baseline, tasks in self.apart.items():
            reasons = "\n".join(f"{name}: {' '.join(reason.split())}" for name, reason in tasks.items())
            parts.append(f"{len(tasks)} tasks with a correct program are in no row against {baseline}:\n{reasons}")
        if self.ran:
            shares = ", ".join(f"{100 * share:.0f} % {origin}" for origin, share in self.ran.items())
            parts.append(f"mean shares of kernel time in {self.profiles} correct programs: {shares}")
        if self.techniques:
            columns = [
                [row.tag, row.name, str(row.programs), str(row.correct), _number(row.mean), _number(row.geometric_mean)]
                for row in self.techniques
            ]
            head = ["tag", "technique", "programs", "correct", "mean", "geometric mean"]
            parts.append(f"speedups by technique (a program counts for each it shows):\n{aligned([head, *columns])}")
        if self.verdicts:
            head = ["task", "status", "against eager", "against strongest", "strongest", "published"]
            parts.append(f"verdicts:\n{aligned([head, *(one.cells() for one in self.verdicts)])}")
        if self.disagreements:
            rows = [
                [one.task, one.status, _interval(one.speedup), f"{one.published:.2f}"] for one in self.disagreements
            ]
            table = aligned([["task", "status", "measured", "published"], *rows])
            parts.append(f"{len(rows)} verdicts disagree with what was published:\n{table}")
        if self.refused:
            reasons = "\n".join(f"{name}: {' '.join(reason.split())}" for name, reason in self.refused.items())
            parts.append(f"{len(self.refused)} tasks that the judge refuses:\n{reasons}")
        return "\n\n".join(parts)


def summarise(lines: Sequence[SweepLine], *, without: int) -> SweepReport:
    """Return the report on the lines of a sweep.

    Args:
        lines: One line for each program.
        without: Number of tasks that have no program.
    """
    judged = [(line, line.evaluation) for line in lines if line.evaluation is not None]
    members = [line for line, _ in judged]
    names = _baselines([evaluation for _, evaluation in judged])
    found = [one for line, evaluation in judged if (one := _disagreement(line, evaluation)) is not None]
    return SweepReport(
        programs=len(judged),
        statuses=dict(Counter(evaluation.status for _, evaluation in judged).most_common()),
        rows=tuple(row for name in names for row in _rows(members, name, names)),
        apart={name: tasks for name in names if (tasks := _apart(members, name))},
        ran=_ran([evaluation for _, evaluation in judged]),
        profiles=sum(evaluation.profile is not None for _, evaluation in judged),
        verdicts=tuple(_verdict(line, evaluation) for line, evaluation in judged),
        disagreements=tuple(sorted(found, key=_order)),
        techniques=top_techniques(_tagged([evaluation for _, evaluation in judged])),
        refused={line.task: line.refused for line in lines if line.refused is not None},
        without=without,
    )


def _tagged(evaluations: Sequence[Evaluation]) -> list[tuple[Tags, float | None]]:
    found: list[tuple[Tags, float | None]] = []
    for one in evaluations:
        tags = classify(one.source, one.task_source)
        if tags is not None:
            found.append((tags, one.speedup.point if one.correct and one.speedup is not None else None))
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _baselines(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the names of the tables: `eager`, every other baseline that occurs in a record, and the strongest."""
    told = {name for one in evaluations for name in (*one.speedups, *one.baselines_failed)}
    others = [name for name in BASELINES if name in told]
    return ["eager", *others, STRONGEST] if any(one.strongest is not None for one in evaluations) else ["eager"]


def _rows(lines: Sequence[SweepLine], baseline: str, names: Sequence[str]) -> list[Row]:
    """Return the rows against a baseline: measured and published figures of the same tasks, by level, then for all."""
    apart = _apart(lines, baseline)
    lines = [line for line in lines if line.task not in apart]
    levels = sorted({line.level for line in lines}, key=lambda level: (level is None, level))
    groups = [(f"level {level or 'unknown'}", [line for line in lines if line.level == level]) for level in levels]
    result: list[Row] = []
    for name, members in [*groups, ("all", list(lines))]:
        tasks = _by_task(members)
        if not tasks:
            continue
        measured = summarize_speedups([_best(of_task, baseline) for of_task in tasks.values()])
        result.append(Row(tasks=name, baseline=baseline, figures="measured", summary=measured))
        published = [_published(of_task[0], _compared(of_task, baseline, names)) for of_task in tasks.values()]
        if any(value is not None for value in published):
            summary = summarize_speedups(published)
            result.append(Row(tasks=name, baseline=baseline, figures="published", summary=summary))
    return result


def _by_task(lines: Sequence[SweepLine]) -> dict[str, list[SweepLine]]:
    tasks: dict[str, list[SweepLine]] = {}
    for line in lines:
        tasks.setdefault(line.task, []).append(line)
    return tasks


def _apart(lines: Sequence[SweepLine], baseline: str) -> dict[str, str]:
    """Return the tasks with a correct program but no figure against a baseline, with the reason."""
    reasons: dict[str, str] = {}
    for task, of_task in _by_task(lines).items():
        correct = [line.evaluation for line in of_task if line.evaluation is not None and line.evaluation.correct]
        if not correct or any(_speedup(one, baseline) is not None for one in correct):
            continue
        fault = next((one.baselines_failed[baseline] for one in correct if baseline in one.baselines_failed), None)
        reasons[task] = "not measured" if fault is None else f"{fault.status}: {fault.message}"
    return reasons


def _compared(lines: Sequence[SweepLine], baseline: str, names: Sequence[str]) -> list[str]:
    """Return the baselines that a task's programs were compared with; for the strongest, those that did not fail."""
    if baseline != STRONGEST:
        return [baseline]
    failed = {name for line in lines if line.evaluation is not None for name in line.evaluation.baselines_failed}
    return [name for name in names if name not in failed]


def _published(line: SweepLine, baselines: Sequence[str] = ("eager",)) -> float | None:
    """Return the published speedup over the strongest of some baselines, that is, the smallest one."""
    values = [line.published.get(PUBLISHED[name]) for name in baselines if name in PUBLISHED]
    return min((value for value in values if value is not None and value > 0.0), default=None)


def _speedup(evaluation: Evaluation, baseline: str) -> Speedup | None:
    if baseline == STRONGEST:
        return None if evaluation.strongest is None else evaluation.strongest.speedup
    return evaluation.speedup if baseline == "eager" else evaluation.speedups.get(baseline)


def _best(lines: Sequence[SweepLine], baseline: str) -> float | None:
    """Return the speedup of the program with the highest lower confidence bound; None if no program is correct."""
    correct = [line.evaluation for line in lines if line.evaluation is not None and line.evaluation.correct]
    speedups = [speedup for one in correct if (speedup := _speedup(one, baseline)) is not None]
    return max(speedups, key=lambda speedup: speedup.low).point if speedups else None


def _ran(evaluations: Sequence[Evaluation]) -> dict[Origin, float]:
    """Return the mean shares of kernel time by origin, largest first; each program counts the same."""
    profiles = [one.profile for one in evaluations if one.profile is not None]
    totals: Counter[Origin] = Counter()
    for profile in profiles:
        for kernel in profile.kernels:
            totals[kernel.origin] += kernel.share  # type: ignore[assignment]  # a Counter adds up any numbers
    return {origin: total / len(profiles) for origin, total in totals.most_common()}


def _verdict(line: SweepLine, evaluation: Evaluation) -> Verdict:
    strongest = evaluation.strongest
    return Verdict(
        task=line.task,
        source_sha256=line.source_sha256,
        status=evaluation.status,
        speedup=evaluation.speedup,
        strongest=None if strongest is None else strongest.name,
        against_strongest=None if strongest is None else strongest.speedup,
        published=_published(line),
    )


def _disagreement(line: SweepLine, evaluation: Evaluation) -> Disagreement | None:
    published, speedup = _published(line), evaluation.speedup
    if published is None:
        return None
    near = speedup is not None and speedup.low / AGREES_WITHIN <= published <= speedup.high * AGREES_WITHIN
    if evaluation.correct and near:
        return None
    return Disagreement(
        task=line.task,
        source_sha256=line.source_sha256,
        status=evaluation.status,
        speedup=speedup,
        published=published,
        message=evaluation.message,
    )


def _order(one: Disagreement) -> tuple[bool, float]:
    correct = one.status is Status.CORRECT
    apart = abs(math.log(one.published / one.speedup.point)) if correct and one.speedup is not None else one.published
    return correct, -apart


def _interval(speedup: Speedup | None) -> str:
    return "-" if speedup is None else f"{speedup.point:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"
