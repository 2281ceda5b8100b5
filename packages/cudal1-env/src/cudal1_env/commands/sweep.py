"""`cudal1-env sweep`: judge every program of a file and compare with its published speedup."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from cudal1_data.commandline import STATED_DEFAULT

from cudal1_env.commands.campaign import Baselines, Campaign, MachineOrService, Parts, is_whole
from cudal1_env.commands.output import describe, details, log, plain

if TYPE_CHECKING:
    from cudal1_env.campaigns.sweep import SweepLine


@dataclass(frozen=True)
class Measurement:
    """What to measure."""

    precision: Literal["training", "report"] = "report"
    """`training`: one pair of processes, about a second; `report`: at least three."""
    baselines: Baselines = ()
    """Other ways to run the references, to compare correct programs with: compile, compile-reduce-overhead,
    compile-max-autotune, cuda-graph, cudnn-flags, or all (without compile-max-autotune). Verdicts that lack them get
    them."""
    audit: Annotated[Path | None, STATED_DEFAULT] = None
    """Audit from `cudal1-env audit FILE --out`, for the roofline and limits of rewards (default: the one next to FILE,
    if any)."""
    policy: Literal["strict", "kernelbench"] = "strict"
    """`kernelbench` adds a verdict by KernelBench's rules (seeded weights, its tolerance); the reward is unchanged."""


@dataclass(frozen=True)
class Sweep(Campaign):
    """Judge every program of a file; print the paper's tables and the disagreements with published figures.

    Example: cudal1-env sweep records.jsonl --only level1 --out verdicts.jsonl
    """

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """CUDA-L1's release, another table with a column of programs (.jsonl, .parquet), or cudal1's records (.jsonl)."""
    column: str = "custom_code"
    """Column of the programs."""
    only: str = ""
    """Only these tasks: levels and ids, separated by commas (level1,level2/23)."""
    scale: int = 1
    """Divide batch sizes by this, for a smaller GPU; records name the smaller task, published speedups are left out."""
    out: Annotated[Path | None, STATED_DEFAULT] = None
    """File of the verdicts, one per line; programs in it are not judged again (default: FILE's name, .sweep.jsonl)."""
    texts: bool = True
    """Write the texts of programs and tasks to `out`. Records without them (if you may not publish them, for example)
    cannot be replayed; FILE has the texts."""
    json: bool = False
    """Print the report as JSON."""

    measurement: Annotated[Measurement, tyro.conf.OmitArgPrefixes] = field(default_factory=Measurement)
    """What to measure."""
    machine: Annotated[MachineOrService, tyro.conf.OmitArgPrefixes] = field(default_factory=MachineOrService)
    """Where programs run, and who judges them."""
    parts: Annotated[Parts, tyro.conf.OmitArgPrefixes] = field(default_factory=Parts)
    """Parts of a campaign, each with its own results file, and their union."""

    @property
    def results(self) -> Path:
        """Results file of this campaign."""
        return self.out or Path(f"{self.file.stem}.sweep.jsonl")

    def run(self) -> int:
        """Judge programs without a verdict, then print the report on all."""
        from cudal1_env.baselines import resolve
        from cudal1_env.campaigns.parts import part_of
        from cudal1_env.campaigns.sweep import SweepFile, joined, read_programs, summarise, sweep
        from cudal1_env.gate import find_audit
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import Judge, JudgeSettings

        remote = self.machine.service(
            baselines=self.measurement.baselines,
            audit=self.measurement.audit,
            policy=self.measurement.policy != "strict",
        )
        device = resolve_device(self.machine.device) if remote is None else remote.device
        found = read_programs(self.file, column=self.column, only=self.only, device=device, scale=self.scale)
        for reason in found.broken:
            log(f"left out: {plain(reason)}")
        file = SweepFile(
            self.results,
            device=device,
            precision=self.measurement.precision,
            texts=self.texts,
            known=self.parts.known,
            join=self.parts.join,
        )
        if self.parts.join:
            lines = joined(found.programs, file)
            is_whole(len(found.programs) - len(lines), len(found.programs), "programs")
            report = summarise(lines, without=found.without)
            print(report.model_dump_json() if self.json else report.text())
            return 0
        if file.programs:
            log(f"known verdicts: {len(file.programs)}; they are not judged again")
        audit = find_audit(self.measurement.audit or "auto", str(self.file), device)
        baselines = resolve(self.measurement.baselines, device)
        settings = JudgeSettings(
            device=device,
            require_sandbox=self.machine.require_sandbox,
            baselines=baselines,
            policy=self.measurement.policy,
        )
        with remote or Judge(settings, own_secrets=True) as judge:
            if audit is not None:
                judge.learn(audit)
            programs = part_of(found.programs, self.parts.part, lambda one: one.task.id)
            lines = sweep(
                judge,
                programs,
                file,
                device=device,
                precision=self.measurement.precision,
                notify=_print_line,
                noted=_noted,
            )
        report = summarise(lines, without=found.without)
        print(report.model_dump_json() if self.json else report.text())
        return 0


def _noted(text: str) -> None:
    log(plain(text))


def _print_line(done: int, total: int, line: SweepLine) -> None:
    if line.evaluation is None:
        log(f"[{done}/{total}] {line.task} refused: {plain(line.refused or '')}")
        return
    published = line.published.get("score_default")
    beside = "" if published is None else f"; published {published:g}"
    log(f"[{done}/{total}] {describe(line.evaluation)}{beside} [{line.evaluation.seconds.total_s:.1f} s]")
    for text in details(line.evaluation):
        log(f"    {text}")
