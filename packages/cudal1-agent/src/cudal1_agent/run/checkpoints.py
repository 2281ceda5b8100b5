"""Checkpoints of a stage: TRL's files, and the positions of metrics and archive when they were written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from cudal1_agent.run.folder import Mark, read_mark

STATE = "cudal1.json"
"""File in a checkpoint with the positions of metrics and archive. It is written last, so its checkpoint is complete."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    mark: Mark


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint of a stage; remove those that a kill left incomplete."""
    whole: list[tuple[int, Checkpoint]] = []
    for path in folder.glob("checkpoint-*"):
        mark = read_mark(path / STATE)
        if mark is None:
            shutil.rmtree(path)
        else:
            whole.append((int(path.name.rpartition("-")[2]), Checkpoint(path, mark)))
    return max(whole, key=lambda found: found[0])[1] if whole else None
