"""`cudal1-env verify`: judge pairs of a corpus."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from cudal1_env.commands.campaign import Baselines, Campaign, MachineOrService, Parts, is_whole
from cudal1_env.commands.output import describe, log, plain
from cudal1_env.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudal1_env.campaigns.sweep import SweepLine


@dataclass(frozen=True)
class Measurement:
    """What to measure."""

    precision: Literal["training", "report", "correct"] = "training"
    """`training`: one pair of processes, about a second; `report`: at least three; `correct`: nothing is timed."""
    baselines: Baselines = ()
    """Other ways to run the references, to compare correct programs with, as for `sweep`."""


@dataclass(frozen=True)
class Verify(Campaign):
    """Judge pairs of a corpus without a verdict on this device; `cudal1-data corpus merge` adds the records to it.

    Example: cudal1-env verify pairs.parquet --out records.jsonl --limit 20
    """

    corpus: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CORPUS")]
    """Corpus from `cudal1-data corpus build`, with the same device's sizes."""
    out: Path
    """File of the verdicts, one per line; pairs in it are not judged again."""
    limit: int | None = None
    """Maximum number of pairs. Tasks and backends alternate; fast-building backends are more frequent."""
    backend: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Only programs of these backends (pytorch, triton, cuda-nvrtc, cuda-load-inline, torch-compile, other)."""
    again: bool = False
    """Also judge pairs that have an evaluation from this kind of device."""
    json: bool = False
    """Print the counts as one JSON object."""

    measurement: Annotated[Measurement, tyro.conf.OmitArgPrefixes] = field(default_factory=Measurement)
    """What to measure."""
    machine: Annotated[MachineOrService, tyro.conf.OmitArgPrefixes] = field(default_factory=MachineOrService)
    """Where programs run, and who judges them."""
    parts: Annotated[Parts, tyro.conf.OmitArgPrefixes] = field(default_factory=Parts)
    """Parts of a campaign, each with its own results file, and their union."""

    @property
    def results(self) -> Path | None:
        """Results file of this campaign."""
        return self.out

    def run(self) -> int:
        """Judge pairs without a verdict, then print the number of each status."""
        from cudal1_data.corpus import load_corpus
        from cudal1_data.corpus.merge import OTHER
        from cudal1_data.kernelgen.make import BACKENDS
        from cudal1_data.suggest import did_you_mean

        from cudal1_env.baselines import resolve
        from cudal1_env.campaigns.parts import part_of
        from cudal1_env.campaigns.sweep import SweepFile, sweep
        from cudal1_env.campaigns.verify import choose, program_of
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import Judge, JudgeSettings

        if self.limit is not None and self.limit < 1:
            raise SettingsError(f"--limit is {self.limit}; give at least 1")
        if unknown := sorted({*self.backend} - {*BACKENDS, OTHER}):
            raise SettingsError(f"unknown backend {unknown[0]!r}; {did_you_mean(unknown[0], [*BACKENDS, OTHER])}")
        remote = self.machine.service(baselines=self.measurement.baselines)
        device = resolve_device(self.machine.device) if remote is None else remote.device
        whole = [pair for pair in load_corpus(self.corpus) if not self.backend or pair.backend in self.backend]
        mine = {pair.task for pair in part_of(whole, self.parts.part, lambda pair: pair.task)}
        chosen = choose(whole, self.limit, device=device, again=self.again)
        file = SweepFile(
            self.out, device=device, precision=self.measurement.precision, known=self.parts.known, join=self.parts.join
        )
        if self.parts.join:
            missing = sum(program_of(pair).key not in file.programs for pair in chosen)
            is_whole(missing, len(chosen), "pairs")
            return self._counted(file.programs.values())
        if file.programs:
            log(f"known verdicts: {len(file.programs)}; they are not judged again")
        baselines = resolve(self.measurement.baselines, device)
        settings = JudgeSettings(device=device, require_sandbox=self.machine.require_sandbox, baselines=baselines)
        with remote or Judge(settings) as judge:
            lines = sweep(
                judge,
                [program_of(pair) for pair in chosen if pair.task in mine],
                file,
                device=device,
                precision=self.measurement.precision,
                notify=_print_line,
                noted=lambda text: log(plain(text)),
            )
        return self._counted(lines)

    def _counted(self, lines: Iterable[SweepLine]) -> int:
        import json

        counts = Counter(line.evaluation.status if line.evaluation else "refused" for line in lines)
        if self.json:
            print(json.dumps(dict(counts)))
        else:
            print(", ".join(f"{name} {count}" for name, count in counts.most_common()) or "nothing to judge")
        return 0


def _print_line(done: int, total: int, line: SweepLine) -> None:
    if line.evaluation is None:
        log(f"[{done}/{total}] {line.task} refused: {plain(line.refused or '')}")
    else:
        log(f"[{done}/{total}] {describe(line.evaluation)} [{line.evaluation.seconds.total_s:.1f} s]")
