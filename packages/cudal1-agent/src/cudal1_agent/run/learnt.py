"""The skeletons of the programs that a run has learnt from: which answers are copies up to numbers and names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

LEARNT = "learnt.txt"
"""The file in a run directory: one hash a line, each once (`cudal1_data.hashes.skeleton_hash`)."""


class Learnt:
    """The file, only ever appended to. What a killed run has added too early is what it learns when it is resumed."""

    def __init__(self, run: Path) -> None:
        """Read what is there.

        Args:
            run: The run directory.
        """
        self._path = run / LEARNT
        text = self._path.read_text(encoding="ascii") if self._path.is_file() else ""
        # A line that a kill cut off is no hash of a program.
        self.skeletons = set(text.split())
        self._torn = bool(text) and not text.endswith("\n")

    def add(self, skeletons: Iterable[str]) -> None:
        """Add what is not there yet."""
        new = list(dict.fromkeys(one for one in skeletons if one not in self.skeletons))
        if new:
            with self._path.open("a", encoding="ascii") as file:
                file.write("\n" * self._torn + "".join(one + "\n" for one in new))
            self._torn = False
            self.skeletons.update(new)
