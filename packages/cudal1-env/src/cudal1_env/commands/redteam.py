"""`cudal1-env redteam`: every attack that we know, and its honest look-alike, through this machine's judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from cudal1_env.commands.output import log
from cudal1_env.errors import SettingsError


@dataclass(frozen=True)
class Redteam:
    """Judge the exploit suite. Exit 1 when an attack is rewarded or an honest look-alike denied."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run; those made for another device are skipped."""
    repeats: int = 1
    """How often each program is judged, each time by a new judge with new secrets."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PREFIX ...")] = ()
    """Beginnings of program names; by default every program."""
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
                    log(f"{count} {outcome.program}: {' > '.join(outcome.statuses)} ({verdict})")
        summary = summarise(outcomes, skipped=len(skipped))
        if self.json:
            result = Campaign(device=device, skipped=skipped, outcomes=tuple(outcomes), summary=summary)
            print(result.model_dump_json(ensure_ascii=True))
        else:
            print(f"{table(outcomes)}\n{summary.text()}")
        return 0 if summary.passed else 1
