"""`cudal1-env redteam`: every attack that we know, and its honest look-alike, through this machine's judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from cudal1_env.commands.output import log, plain
from cudal1_env.errors import MachineError, SettingsError

if TYPE_CHECKING:
    from cudal1_env.testing.redteam import Outcome


@dataclass(frozen=True)
class Redteam:
    """Judge the exploit suite. Exit 1 when an attack is rewarded, an honest look-alike denied or the machine broken."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run; those made for another device are skipped."""
    repeats: int = 1
    """How often each program is judged, each time by a new judge with new secrets."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PREFIX ...")] = ()
    """Beginnings of program names; by default every program."""
    require_sandbox: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LAYER ...")] = ()
    """Refuse to work unless these sandbox layers are active."""
    json: bool = False
    """Print one JSON object in place of the table."""

    def run(self) -> int:
        """Judge, tell about each program on standard error, print what came of them."""
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import Judge, JudgeSettings
        from cudal1_env.testing.programs import programs
        from cudal1_env.testing.redteam import Campaign, judge_all, summarise, table

        device = resolve_device(self.device)
        named = programs(self.only)
        chosen = [program for program in named if program.runs_on(device)]
        skipped = tuple(program.name for program in named if not program.runs_on(device))
        if not chosen or self.repeats < 1:
            raise SettingsError(
                f"expected at least one repeat and one program for {device}, got {self.repeats} repeats and "
                f"{len(chosen)} programs ({len(skipped)} for another device); see --repeats, --only and --device"
            )
        settings = JudgeSettings(device=device, require_sandbox=self.require_sandbox)
        outcomes: list[Outcome] = []
        cut_off = False
        try:
            for _ in range(self.repeats):
                for outcome in judge_all(lambda: Judge(settings), chosen, device):
                    outcomes.append(outcome)
                    count = f"{len(outcomes)}/{len(chosen) * self.repeats}"
                    log(f"{count} {outcome.program}: {' > '.join(outcome.statuses)} ({_verdict(outcome)})")
        except MachineError as error:  # what was found by then is told
            if not outcomes:
                raise
            cut_off = True
            log(f"cut off: {plain(str(error))}")
        summary = summarise(outcomes, skipped=len(skipped))
        if self.json:
            result = Campaign(device=device, skipped=skipped, outcomes=tuple(outcomes), summary=summary)
            print(result.model_dump_json(ensure_ascii=True))
        else:
            print(f"{table(outcomes)}\n{summary.text()}")
        return 2 if cut_off else 0 if summary.passed else 1


def _verdict(outcome: Outcome) -> str:
    if outcome.rewarded:
        return "REWARDED"
    if outcome.denied:
        return "DENIED"
    return f"the machine broke: {plain(outcome.message)}" if outcome.broken else "as it should be"
