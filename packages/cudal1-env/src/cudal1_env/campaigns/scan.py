"""Scan of tasks: does a task compute anything, and do all its inputs influence the outputs?

Each reference runs at its own size in a separate process (`scan_child.py`), which is not a sandbox. A task passes if:

- its outputs are finite, and vary between elements and between sets of inputs;
- its outputs depend on each input and each weight;
- every operator has an effect;
- its arithmetic is near enough to float64 for a judge to distinguish correct from incorrect answers.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from cudal1_data import Task
from cudal1_data.tracing.process import Child
from pydantic import BaseModel, ConfigDict

from cudal1_env.records.results import ResultsFile, form_of

MIN_SPREAD = 0.05
"""Minimum standard deviation of an output over its root mean square, across elements and across draws of the inputs."""
MIN_CHANGED = 0.05
"""Minimum share of some output's elements that must change when an input is redrawn."""
MIN_EFFECT = 0.05
"""Minimum change of some output, over its standard deviation, when an input is redrawn."""
MIN_WEIGHT_EFFECT = 0.003
"""The same for a parameter; smaller, because PyTorch's own layers begin with small biases."""
MAX_ERROR = 0.02
"""Maximum median relative error of an element. The judge refuses a task from 0.023 (float16) or 0.045 (bfloat16) on."""
TIMEOUT_S = 120.0
"""Time limit for one task."""


class Scan(BaseModel):
    """Measurements of one task; the fields are those of `cudal1_env.campaigns.scan_child.measured`."""

    # Measurements may be NaN or infinite if outputs are not finite.
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    task: str
    """Task id."""
    sha256: str
    """Digest of the reference's text at its size."""
    family: str = ""
    """Family of a generated task."""
    dtype: str = ""
    """Dtype of a generated task."""
    finite: bool = True
    """Whether all outputs are finite."""
    spread: float | None = None
    """Standard deviation over root mean square, of the output with the smallest ratio; None if nothing was measured."""
    draws: float | None = None
    """The same ratio for each element across sets of inputs."""
    inputs: dict[str, tuple[float, float]] = {}
    """For each input by position: the share of an output that changes with the input, and the change over the standard
    deviation.
    """
    weights: dict[str, tuple[float, float]] = {}
    """The same for parameters, by name."""
    error: float | None = None
    """Median relative error of an element, against float64."""
    idle: tuple[str, ...] = ()
    """Operators that change almost nothing."""
    ms: float | None = None
    """Milliseconds of one call on one core."""
    fault: str = ""
    """Reason why nothing was measured."""

    @property
    def faults(self) -> list[str]:
        """Return the faults of the task; empty if it passes."""
        if self.fault:
            return [self.fault]
        assert self.spread is not None
        assert self.draws is not None
        assert self.error is not None
        found = [] if self.finite else ["not finite"]
        if self.spread < MIN_SPREAD:
            found.append(f"nearly constant (spread {self.spread:.2g})")
        if self.draws < MIN_SPREAD:
            found.append(f"nearly the same for all inputs (spread {self.draws:.2g})")
        for kind, least, parts in (
            ("input", MIN_EFFECT, self.inputs),
            ("weight", MIN_WEIGHT_EFFECT, self.weights),
        ):
            for name, (share, effect) in parts.items():
                if not effect >= least or (kind == "input" and share < MIN_CHANGED):  # NaN counts as no effect
                    found.append(f"{kind} {name} hardly matters (share {share:.2g}, change {effect:.2g})")
        if self.error > MAX_ERROR:
            found.append(f"ill-conditioned (median error {self.error:.2g})")
        found += [f"{name} does nothing" for name in self.idle]
        return found


_FORM = form_of(Scan, "a scan", head='{"task":', conditions=lambda line: ())


def scan_file(out: Path | None, *, known: Sequence[Path] = (), join: Sequence[Path] = ()) -> ResultsFile[Scan]:
    """Open the results file of a scan."""
    return ResultsFile(out, _FORM, known=known, join=join)


def scan_tasks(tasks: Sequence[Task], file: ResultsFile[Scan], notify: Callable[[str], None]) -> list[Scan]:
    """Measure tasks that the file does not hold yet.

    Args:
        tasks: Tasks at the size to measure.
        file: Results file; a task whose text it holds is not measured again.
        notify: Called with the progress.

    Raises:
        DataError: torch is not installed.
    """
    found = {(one.task, one.sha256): one for one in file.known}
    result: list[Scan] = []
    child = Child("cudal1_env.campaigns.scan_child", "measure references with", TIMEOUT_S)
    try:
        for number, task in enumerate(tasks, start=1):
            sha256 = hashlib.sha256(task.source.encode()).hexdigest()
            one = found.get((task.id, sha256))
            if one is None:
                one = file.add(_measured(child, task, sha256))
                if one.faults:
                    notify(f"{task.id}: {'; '.join(one.faults)}")
            if number % 50 == 0:
                notify(f"{number} of {len(tasks)} tasks scanned")
            result.append(one)
    finally:
        child.close()
    return result


def _measured(child: Child, task: Task, sha256: str) -> Scan:
    line, reason = child.ask({"id": task.id, "source": task.source})
    told = dict(tag.split(":", 1) for tag in task.tags if tag.startswith(("family:", "dtype:")))
    return Scan.model_validate(
        {"task": task.id, "sha256": sha256, **told, **(json.loads(line) if line else {"fault": reason})}
    )


def summary(scans: Sequence[Scan]) -> str:
    """Return a table for people: families, dtypes, reasons for failure."""
    from cudal1_env.stats import aligned

    def row(name: str, some: Sequence[Scan]) -> list[str]:
        passed = sum(not one.faults for one in some)
        return [name, str(len(some)), str(passed), f"{100 * passed / max(1, len(some)):.1f}"]

    rows = [["", "tasks", "pass", "%"]]
    for kind in ("family", "dtype"):
        for name in sorted({getattr(one, kind) for one in scans if getattr(one, kind)}):
            rows.append(row(name, [one for one in scans if getattr(one, kind) == name]))
    rows.append(row("all", scans))
    reasons = Counter(fault.split(" (")[0].partition(":")[0] for one in scans for fault in one.faults)
    return "\n".join([aligned(rows), *(f"{count} x {reason}" for reason, count in reasons.most_common(12))])
