"""An encoder of pairs that leaves a trace in whichever process it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from cudal1_agent.data.examples import Pair
from cudal1_agent.stages.streaming import Row


@dataclass(frozen=True)
class Counting:
    """Makes a row of a pair, and a file in a folder."""

    folder: Path

    def __call__(self, pair: Pair) -> Row:
        with NamedTemporaryFile(dir=self.folder, delete=False):
            return {"input_ids": [1], "labels": [1]}
