"""`cudal1-env audit`: does a task's checker catch incorrect answers and faulty programs?"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from cudal1_env.commands.campaign import Campaign, Machine, Parts, is_whole
from cudal1_env.commands.output import log, plain
from cudal1_env.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudal1_data import Suite, Task

    from cudal1_env.gate import AuditReport


@dataclass(frozen=True)
class Audit(Campaign):
    """Run the checker of every task on incorrect answers and faulty programs; exit 1 if it accepts any.

    With `--scan`, check the references instead.

    Example: cudal1-env audit starter --device cpu --out audit.json
    """

    suite: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUITE")]
    """Suite of tasks, as for `cudal1-data list`."""
    scale: int = 1
    """Divide batch sizes by this, for a smaller GPU; an audit applies only to the audited size of a task."""
    out: Path | None = None
    """Results file, a line for each task; the environment reads it (`audit=`, or audit.json in the suite's folder).
    Tasks in it are not audited again, so the same command resumes an interrupted audit; other tasks stay in it. A file
    from another device or version is refused."""
    scan: bool = False
    """Check references instead, on the CPU, in a process without a sandbox: does each output vary, does each input
    influence it, does an operator do nothing? Exit 1 if a task fails."""
    sensitivity: bool = True
    """On a GPU, also measure the input sensitivity of each task, for the roofline of its programs."""
    json: bool = False
    """Print the result as JSON."""

    machine: Annotated[Machine, tyro.conf.OmitArgPrefixes] = field(default_factory=Machine)
    """Where programs run."""
    parts: Annotated[Parts, tyro.conf.OmitArgPrefixes] = field(default_factory=Parts)
    """Parts of a campaign, each with its own results file, and their union."""

    @property
    def results(self) -> Path | None:
        """Results file of this campaign."""
        return self.out

    def run(self) -> int:
        """Audit or scan the tasks, write the results, print a table."""
        from cudal1_data import load_suite

        from cudal1_env.campaigns.audit import audit_file, audit_tasks
        from cudal1_env.campaigns.audit.judge import AuditJudge
        from cudal1_env.campaigns.parts import part_of
        from cudal1_env.gate import report_of
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import JudgeSettings

        if self.scan:
            return self._scanned()
        device = resolve_device(self.machine.device)
        file = audit_file(self.out, device, known=self.parts.known, join=self.parts.join)
        suite = load_suite(self.suite, device=device, scale=self.scale)
        _check_usable(suite)
        if self.parts.join:
            audited = {line.task.name for line in file.lines}
            is_whole(sum(task.id not in audited for task in suite), len(suite), "tasks")
            return self._conclude(report_of(file.lines), list(suite))
        tasks = part_of(suite, self.parts.part, lambda task: task.id)
        settings = JudgeSettings(device=device, require_sandbox=self.machine.require_sandbox)
        with ExitStack() as held:
            report = audit_tasks(
                lambda: held.enter_context(AuditJudge(settings)),
                device,
                Path(suite.name).name,
                tasks,
                file,
                lambda text: log(plain(text)),
                sensitivity=self.sensitivity,
            )
        return self._conclude(report, tasks)

    def _scanned(self) -> int:
        from cudal1_data import load_suite

        from cudal1_env.campaigns.parts import part_of
        from cudal1_env.campaigns.scan import scan_file, scan_tasks, summary

        file = scan_file(self.out, known=self.parts.known, join=self.parts.join)
        if self.parts.join:
            scans = file.lines
        else:
            suite = load_suite(self.suite, device="cuda" if self.machine.device == "cuda" else "cpu", scale=self.scale)
            _check_usable(suite)
            tasks = part_of(suite, self.parts.part, lambda task: task.id)
            scans = scan_tasks(tasks, file, lambda text: log(plain(text)))
        if self.json:
            for one in scans:
                print(one.model_dump_json())
        else:
            print(summary(scans))
        return 1 if any(one.faults for one in scans) else 0

    def _conclude(self, report: AuditReport, tasks: Sequence[Task]) -> int:
        print(report.model_dump_json() if self.json else _table(report, tasks))
        return 1 if any(one.verdict == "survivors" for one in report.tasks) else 0


def _check_usable(suite: Suite) -> None:
    """Log why tasks are left out.

    Raises:
        SettingsError: All are.
    """
    for broken in suite.broken:
        log(f"left out: {plain(str(broken.error))}")
    if not len(suite):
        raise SettingsError(f"no task of {suite.name} can be used; mend its files, or name another suite")


def _table(report: AuditReport, tasks: Sequence[Task]) -> str:
    from cudal1_env.stats import aligned

    rows = [
        [one.name, one.verdict, str(one.sets), ", ".join(one.survivors) or "-", ", ".join(one.equivalents) or "-"]
        for one in report.tasks
    ]
    verdicts = [one.verdict for one in report.tasks]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ("sound", "survivors", "refused"))
    refused = [f"{one.name}: {plain(one.reason)}" for one in report.tasks if one.verdict == "refused"]
    head = ["task", "verdict", "sets", "survivors", "equivalents"]
    degenerate = {task.id for task in tasks if "degenerate" in task.tags}
    noted = [f"{one.name} {one.verdict}" for one in report.tasks if one.name in degenerate]
    known = [f"{len(noted)} known to be degenerate: {', '.join(noted)}"] if noted else []
    return "\n".join([aligned([head, *rows]), f"{len(rows)} tasks: {counts}", *known, *refused])
