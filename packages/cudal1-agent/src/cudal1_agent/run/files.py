"""Atomic writes: files and folders that are complete or absent, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_aside(path: Path, text: str) -> None:
    """Write a file atomically: under another name, synced, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".aside")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_folder(aside: Path, folder: Path) -> None:
    """Move a folder that was written aside to its place; replace one left by an interrupted run."""
    if folder.exists():
        shutil.rmtree(folder)
    aside.rename(folder)
