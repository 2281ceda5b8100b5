"""Phases: the parts of a run, each resumed or restarted after a kill."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cudal1_agent.run.checkpoints import Checkpoint, newest
from cudal1_agent.run.folder import BEGINNING
from cudal1_agent.run.meter import since
from cudal1_agent.run.session import Session


@dataclass(frozen=True)
class Phase:
    """A part of a run; if it is not finished, a resumed run starts it from its checkpoint or anew."""

    name: str
    """Name of the phase and of its mark."""
    run: Callable[[Session, Checkpoint | None], None]
    """Runs the phase, from a checkpoint if there is one."""
    trainer: Path | None = None
    """Folder of its checkpoints, if it has any."""
    reads_archive: bool = False
    """Whether its results depend on the whole archive. If so, evaluations after its beginning, or after its
    checkpoint, are removed before a resume. Other phases look them up and measure nothing twice."""


def run_phases(session: Session, todo: list[Phase]) -> None:
    """Run the phases that are not finished, in order."""
    folder = session.folder
    reached = BEGINNING
    for phase in todo:
        finished = folder.marked(phase.name)
        if finished is not None:
            reached = finished
            continue
        session.deadline.safe_point(progress=False)
        checkpoint = newest(phase.trainer) if phase.trainer is not None else None
        folder.rewind(checkpoint.mark if checkpoint is not None else reached, archive=phase.reads_archive)
        if checkpoint is not None:
            session.progress.line(f"{phase.name}: resuming from {checkpoint.path.name}")
        session.began = reached
        began_s, measured = time.monotonic(), session.verdicts.measured
        before = session.meter.reading()
        phase.run(session, checkpoint)
        spent_s, measured = time.monotonic() - began_s, session.verdicts.measured - measured
        session.progress.line(f"{phase.name}: {spent_s:.0f} s, {measured} programs measured")
        folder.metrics.append(
            {
                "event": "seconds",
                "phase": phase.name,
                "wall_s": round(spent_s, 2),
                "measured": measured,
                **since(before, session.meter.reading()),
            }
        )
        folder.mark(phase.name)
        reached = folder.position_now()
        if phase.trainer is not None:
            shutil.rmtree(phase.trainer, ignore_errors=True)
        session.deadline.safe_point()
    folder.mark("finished")
