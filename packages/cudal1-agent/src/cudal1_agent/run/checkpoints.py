"""Checkpoints of a stage: TRL's files, and where metrics and archive stood when they were written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from cudal1_agent.run.folder import Mark, read_mark

STATE = "cudal1.json"
"""File in a checkpoint with the position of metrics and archive. Written last: a checkpoint without it is torn."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole."""

    path: Path
    mark: Mark


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint of a stage, removing any that a kill left torn."""
    whole: list[tuple[int, Checkpoint]] = []
    for path in folder.glob("checkpoint-*"):
        mark = read_mark(path / STATE)
        if mark is None:
            shutil.rmtree(path)
        else:
            whole.append((int(path.name.rpartition("-")[2]), Checkpoint(path, mark)))
    return max(whole, key=lambda found: found[0])[1] if whole else None
