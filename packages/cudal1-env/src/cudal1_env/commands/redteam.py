"""`cudal1-env redteam`: judge every known attack and its honest look-alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from cudal1_env.commands.campaign import Campaign, MachineOrService, Parts, is_whole
from cudal1_env.commands.output import log, plain
from cudal1_env.errors import MachineError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudal1_env.campaigns.redteam import Outcome, OutcomeLine
    from cudal1_env.records import Device


@dataclass(frozen=True)
class Redteam(Campaign):
    """Judge the exploit suite. Exit 1 if an attack is rewarded, a look-alike is rejected or the machine breaks.

    Example: cudal1-env redteam --only h05 --out outcomes.jsonl
    """

    repeats: int = 1
    """How often to judge each program, each time by a new judge with new secrets."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PREFIX ...")] = ()
    """Prefixes of program names; by default every program."""
    out: Path | None = None
    """Results file, a line for each outcome; programs in it are not judged again."""
    json: bool = False
    """Print one JSON object instead of the table."""

    machine: Annotated[MachineOrService, tyro.conf.OmitArgPrefixes] = field(default_factory=MachineOrService)
    """Where programs run, and who judges them."""
    parts: Annotated[Parts, tyro.conf.OmitArgPrefixes] = field(default_factory=Parts)
    """Parts of a campaign, each with its own results file, and their union."""

    @property
    def results(self) -> Path | None:
        """Results file of this campaign."""
        return self.out

    def run(self) -> int:
        """Judge the programs, report each on standard error, print the table."""
        from cudal1_env.campaigns.parts import part_of
        from cudal1_env.campaigns.redteam import OutcomeLine, jobs, judge_missing, outcomes_file
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import Judge, JudgeSettings
        from cudal1_env.records import PROTOCOL_VERSION
        from cudal1_env.testing.programs import programs

        remote = self.machine.service()
        device = resolve_device(self.machine.device) if remote is None else remote.device
        named = programs(self.only)
        chosen = [program for program in named if program.runs_on(device)]
        skipped = tuple(program.name for program in named if not program.runs_on(device))
        if self.repeats < 1:
            raise SettingsError(f"--repeats is {self.repeats}; give at least 1")
        if not chosen:
            what = f"all of them ({len(skipped)}) are for another device" if skipped else "no name begins with it"
            raise SettingsError(
                f"no program for {device} with --only {' '.join(self.only)}: {what}; name others, or another --device"
            )
        file = outcomes_file(self.out, device, known=self.parts.known, join=self.parts.join)
        if self.parts.join:
            wanted = {(repeat, one.name) for repeat, group in jobs(chosen, self.repeats) for one in group}
            missing = len(wanted - {(line.repeat, line.program) for line in file.lines})
            code = self._conclude(file.lines, device, skipped)
            return code if is_whole(missing, len(wanted), "evaluations") else 2
        settings = JudgeSettings(device=device, require_sandbox=self.machine.require_sandbox)
        known = {(line.repeat, line.program) for line in file.known}
        groups = part_of(jobs(chosen, self.repeats), self.parts.part)
        count = sum(len(group) for _, group in groups)
        done = sum((repeat, program.name) in known for repeat, group in groups for program in group)
        try:
            for repeat, outcome in judge_missing(lambda: remote or Judge(settings), groups, device, known):
                fields = outcome.model_dump(exclude=set(type(outcome).model_computed_fields))
                file.add(OutcomeLine(protocol=PROTOCOL_VERSION, device=device, repeat=repeat, **fields))
                done += 1
                log(f"{done}/{count} {outcome.program}: {' > '.join(outcome.statuses)} ({_verdict(outcome)})")
        except MachineError as error:  # print the outcomes so far
            if not file.known:
                raise
            log(f"cut off: {plain(str(error))}")
            self._conclude(file.known, device, skipped)
            return 2
        return self._conclude(file.known, device, skipped)

    def _conclude(self, outcomes: Sequence[OutcomeLine], device: Device, skipped: tuple[str, ...]) -> int:
        from cudal1_env.campaigns.redteam import Campaign, summarise, table

        summary = summarise(outcomes, skipped=len(skipped))
        if self.json:
            result = Campaign(device=device, skipped=skipped, outcomes=tuple(outcomes), summary=summary)
            print(result.model_dump_json(ensure_ascii=True))
        else:
            print(f"{table(outcomes)}\n{summary.text()}")
        return 0 if summary.passed else 1


def _verdict(outcome: Outcome) -> str:
    if outcome.rewarded:
        return "REWARDED"
    if outcome.rejected:
        return "REJECTED"
    return f"the machine broke: {plain(outcome.message)}" if outcome.broken else "as it should be"
