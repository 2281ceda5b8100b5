"""Atomic writes: files and folders that are complete or absent, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_aside(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all: aside, synced, renamed."""
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
    """Put a folder that was written aside in its place; one that is there already is of an interrupted run."""
    if folder.exists():
        shutil.rmtree(folder)
    aside.rename(folder)
