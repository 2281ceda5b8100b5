"""Skeletons of the programs that a run has learnt from, to find answers that copy one up to numbers and names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

LEARNT = "learnt.txt"
"""File in a run directory: one hash per line, each once (`cudal1_data.hashes.skeleton_hash`)."""


class Learnt:
    """The append-only file of skeletons. What a killed run added too early is learnt when it resumes."""

    def __init__(self, run: Path) -> None:
        """Read the file, if there is one.

        Args:
            run: The run directory.
        """
        self._path = run / LEARNT
        text = self._path.read_text(encoding="ascii") if self._path.is_file() else ""
        # A line that a kill cut off matches no program's hash.
        self.skeletons = set(text.split())
        self._torn = bool(text) and not text.endswith("\n")

    def add(self, skeletons: Iterable[str]) -> None:
        """Add the skeletons that are not in the file yet."""
        new = list(dict.fromkeys(one for one in skeletons if one not in self.skeletons))
        if new:
            with self._path.open("a", encoding="ascii") as file:
                file.write("\n" * self._torn + "".join(one + "\n" for one in new))
            self._torn = False
            self.skeletons.update(new)
