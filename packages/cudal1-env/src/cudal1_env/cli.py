"""`cudal1-env`: evaluate, replay, redteam, doctor. Results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from cudal1_data.errors import DataError

from cudal1_env.errors import EnvError, SettingsError
from cudal1_env.records import Evaluation, Precision


@dataclass(frozen=True)
class Evaluate:
    """Judge one program for one task. The last line of standard output is the record as JSON."""

    task: tyro.conf.Positional[str]
    """Task id (starter/diag_matmul) or the path of a task file in KernelBench's form."""
    file: tyro.conf.Positional[Path]
    """The program: Python text that defines ModelNew."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run."""
    precision: Precision = "report"
    """`training`: one pair of processes, about a second; `report`: at least three."""
    require_sandbox: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LAYER ...")] = ()
    """Refuse to work unless these sandbox layers are active."""
    json: bool = False
    """Print the record only."""

    def run(self) -> int:
        """Judge, print, and say by the exit code whether it could be judged."""
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import Judge, JudgeSettings
        from cudal1_env.tasks import find_task

        task = find_task(self.task, resolve_device(self.device))
        source = self.file.read_text(errors="replace")
        settings = JudgeSettings(device=self.device, require_sandbox=self.require_sandbox)
        with Judge(settings) as judge:
            evaluation = judge.evaluate(task, source, precision=self.precision)
            seeds = judge.retire()
        if evaluation.seed_commitment is not None:
            evaluation = evaluation.model_copy(update={"seed": seeds.get(evaluation.seed_commitment)})
        if not self.json:
            print(describe(evaluation))
        # ASCII, because texts of the program's own may hold what some readers take for the end of a line.
        print(evaluation.model_dump_json(ensure_ascii=True))
        return 0


@dataclass(frozen=True)
class Replay:
    """Repeat an evaluation from its record: same numerics, new clock."""

    record: tyro.conf.Positional[Path]
    """File whose last line is a record."""
    json: bool = False
    """Print the comparison as JSON."""

    def run(self) -> int:
        """Exit 0 when the status agrees and the intervals overlap."""
        from cudal1_env.judge import Judge
        from cudal1_env.replay import read_record, replay

        record = read_record(self.record)
        with Judge() as judge:
            result = replay(judge, record)
        if self.json:
            print(result.model_dump_json(ensure_ascii=True))
        else:
            print(f"recorded: {describe(result.recorded)}\nrepeated: {describe(result.repeated)}")
            same = f"same status: {result.same_status}; same tolerances: {result.same_tolerances}"
            print(f"{same}; overlap: {result.overlap}")
        return 0 if result.same_status and result.overlap is not False else 1


@dataclass(frozen=True)
class Redteam:
    """Judge the exploit suite. Exit 1 when an attack is rewarded or an honest look-alike denied."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run; those made for another device are skipped."""
    repeats: int = 1
    """How often each program is judged, each time by a new judge with new secrets."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PREFIX ...")] = ()
    """Beginnings of program names; by default every program (206, two minutes on two idle cores)."""
    json: bool = False
    """Print one JSON object in place of the table."""

    def run(self) -> int:
        """Judge, tell about each program on standard error, print what came of them."""
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import Judge, JudgeSettings
        from cudal1_env.testing.programs import programs
        from cudal1_env.testing.redteam import Campaign, Outcome, judge_all, summarise, table

        device = resolve_device(self.device)
        named = programs(self.only)
        chosen = [program for program in named if program.runs_on(device)]
        skipped = tuple(program.name for program in named if not program.runs_on(device))
        if not chosen or self.repeats < 1:
            raise SettingsError(
                f"expected at least one repeat and one program for {device}, got {self.repeats} repeats and "
                f"{len(chosen)} programs ({len(skipped)} for another device); see --repeats, --only and --device"
            )
        outcomes: list[Outcome] = []
        for _ in range(self.repeats):
            with Judge(JudgeSettings(device=device)) as judge:
                for outcome in judge_all(judge, chosen, device):
                    outcomes.append(outcome)
                    verdict = "REWARDED" if outcome.rewarded else "DENIED" if outcome.denied else "as it should be"
                    count = f"{len(outcomes)}/{len(chosen) * self.repeats}"
                    _log(f"{count} {outcome.program}: {' > '.join(outcome.statuses)} ({verdict})")
        summary = summarise(outcomes, skipped=len(skipped))
        if self.json:
            result = Campaign(device=device, skipped=skipped, outcomes=tuple(outcomes), summary=summary)
            print(result.model_dump_json(ensure_ascii=True))
        else:
            print(f"{table(outcomes)}\n{summary.text()}")
        return 0 if summary.passed else 1


@dataclass(frozen=True)
class Doctor:
    """Say what this machine offers: sandbox layers, compilers, cores, timing; with --calibrate, measure its spread."""

    calibrate: bool = False
    """Measure how much one launch differs from the next (about two minutes), and keep it for this machine."""
    json: bool = False
    """Print the findings as JSON."""
    require_sandbox: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LAYER ...")] = field(default=())
    """Exit 1 unless these sandbox layers are available."""

    def run(self) -> int:
        """Print the findings."""
        from cudal1_env.doctor import calibrate, examine

        findings = examine()
        if self.calibrate:
            findings = findings.model_copy(update={"spread": calibrate(log=_log), "calibrated": True})
        print(findings.model_dump_json() if self.json else findings.text())
        return 1 if any(layer in findings.missing_layers for layer in self.require_sandbox) else 0


def describe(evaluation: Evaluation) -> str:
    """Return one line for people, without the control characters that a program may have put into its message."""
    where = f" [{evaluation.task}]"
    times = ""
    if evaluation.reference is not None and evaluation.candidate is not None:
        times = f" ({evaluation.reference.median_ms:.3g} ms -> {evaluation.candidate.median_ms:.3g} ms)"
    text = " ".join(evaluation.message.split())
    return f"{evaluation.status}{where}: {''.join(c if c.isprintable() else '?' for c in text)}{times}"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Parse the command line and run one command; a user's error is one sentence and exit code 2."""
    command = tyro.extras.subcommand_cli_from_dict(
        {"evaluate": Evaluate, "replay": Replay, "redteam": Redteam, "doctor": Doctor},
        prog="cudal1-env",
        description="Judge GPU programs with a clock that they cannot reach.",
    )
    try:
        code = command.run()
    except (DataError, EnvError, OSError) as error:
        _log(f"cudal1-env: {error}")
        if getattr(command, "json", False):
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        code = 2
    sys.exit(code)
