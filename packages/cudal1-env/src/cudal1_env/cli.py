"""The command `cudal1-env`. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from cudal1_data.commandline import finished, parsed
from cudal1_data.errors import DataError

from cudal1_env.commands.audit import Audit
from cudal1_env.commands.campaign import Baselines, Layers, Machine
from cudal1_env.commands.output import describe, details, log
from cudal1_env.commands.redteam import Redteam
from cudal1_env.commands.serve import Serve
from cudal1_env.commands.sweep import Sweep
from cudal1_env.commands.verify import Verify
from cudal1_env.errors import EnvError, SettingsError


@dataclass(frozen=True)
class Measurement:
    """What to measure."""

    precision: Literal["training", "report", "correct"] = "report"
    """`training`: one pair of processes, about a second; `report`: at least three; `correct`: nothing is timed."""
    baselines: Baselines = ()
    """Other ways to run the reference, to compare a correct program with: compile, compile-reduce-overhead,
    compile-max-autotune, cuda-graph, cudnn-flags, or all (without compile-max-autotune)."""
    policy: Literal["strict", "kernelbench"] = "strict"
    """`kernelbench` adds a verdict by KernelBench's rules (seeded weights, its tolerance); the reward is unchanged."""


@dataclass(frozen=True)
class Evaluate:
    """Judge one program for one task.

    Example: cudal1-env evaluate starter/diag_matmul examples/diag_matmul.py
    """

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """Task id (starter/diag_matmul) or the path of a task file in KernelBench's form."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="PROGRAM")]
    """The program: Python text that defines ModelNew."""
    json: bool = False
    """Print the whole record as JSON."""
    measurement: Annotated[Measurement, tyro.conf.OmitArgPrefixes] = field(default_factory=Measurement)
    """What to measure."""
    machine: Annotated[Machine, tyro.conf.OmitArgPrefixes] = field(default_factory=Machine)
    """Where programs run."""

    def run(self) -> int:
        """Judge the program and print its record."""
        from cudal1_env.baselines import resolve
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import Judge, JudgeSettings
        from cudal1_env.tasks import find_task

        device = resolve_device(self.machine.device)
        task = find_task(self.task, device)
        source = read_program(self.file)
        baselines = resolve(self.measurement.baselines, device)
        settings = JudgeSettings(
            device=device,
            require_sandbox=self.machine.require_sandbox,
            baselines=baselines,
            policy=self.measurement.policy,
        )
        with Judge(settings) as judge:
            evaluation = judge.evaluate(task, source, precision=self.measurement.precision)
            seeds = judge.retire()
        if evaluation.seed_commitment is not None:
            evaluation = evaluation.model_copy(update={"seed": seeds.get(evaluation.seed_commitment)})
        # ASCII, because the program's messages may contain characters that some readers treat as the end of a line.
        record = evaluation.model_dump_json(ensure_ascii=True)
        print(record if self.json else "\n".join([describe(evaluation), *details(evaluation)]))
        return 0


def read_program(path: Path) -> str:
    """Return a program's text.

    Raises:
        SettingsError: The file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise SettingsError(f"cannot read the program {path}: {error.strerror}; name a file of Python text") from error


@dataclass(frozen=True)
class Replay:
    """Repeat an evaluation from its record: same numerics, new timings.

    Example: cudal1-env replay record.json
    """

    record: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RECORD")]
    """File with a record, or a verdict of `sweep`, on its last line."""
    json: bool = False
    """Print the comparison as JSON."""

    def run(self) -> int:
        """Return 0 if the statuses agree and the intervals, if timed, overlap."""
        from cudal1_env.campaigns.replay import replay
        from cudal1_env.judge import Judge
        from cudal1_env.records import read_record

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
class Doctor:
    """Show this machine's sandbox layers, compilers, cores and timing; with --calibrate, measure its spread.

    Example: cudal1-env doctor --json
    """

    calibrate: bool = False
    """Measure how much trials differ (about two minutes), and keep the result for this machine."""
    json: bool = False
    """Print the findings as JSON."""
    require_sandbox: Layers = ()
    """Exit 1 unless these sandbox layers are available."""

    def run(self) -> int:
        """Print the findings."""
        from cudal1_env.doctor import calibrate, examine
        from cudal1_env.sandbox import require_layers

        require_layers(self.require_sandbox, {})  # an unknown name is an error on every machine
        findings = examine()
        if self.calibrate:
            findings = findings.model_copy(update={"spread": calibrate(log=log), "calibrated": True})
        print(findings.model_dump_json() if self.json else findings.text())
        return 1 if any(layer in findings.missing_layers for layer in self.require_sandbox) else 0


def main() -> None:
    """Parse the command line and run one command; a user error prints one sentence and exits with code 2."""
    command = parsed(
        lambda: tyro.extras.subcommand_cli_from_dict(
            {
                "evaluate": Evaluate,
                "sweep": Sweep,
                "verify": Verify,
                "audit": Audit,
                "redteam": Redteam,
                "replay": Replay,
                "serve": Serve,
                "doctor": Doctor,
            },
            prog="cudal1-env",
            description="Judge GPU programs with a clock that they cannot reach.",
        )
    )
    sys.exit(finished("cudal1-env", command, (DataError, EnvError, OSError)))
