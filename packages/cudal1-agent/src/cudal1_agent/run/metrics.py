"""The metrics of a run: one JSON object per line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from cudal1_agent.errors import RunError

Record = dict[str, Any]
"""One line of the metrics."""


class Metrics:
    """A file of JSON lines, written by one process."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and remove an incomplete last line."""
        self.path = path
        self.marks: Record = {}
        """Fields added to every line."""
        path.touch()
        whole = path.read_bytes()
        self._file: IO[bytes] = path.open("r+b")
        self._file.truncate(whole.rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    def append(self, record: Record) -> None:
        """Write one line. It survives a kill of the process; a crash of the machine loses what was not synced."""
        self._file.write(json.dumps(record | self.marks, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def position(self) -> int:
        """Sync to the disk and return the length in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def truncate_to(self, position: int) -> None:
        """Remove everything after a position.

        Raises:
            RunError: The file is shorter than that.
        """
        if position > self._file.tell():
            raise RunError(
                f"{self.path} has {self._file.tell()} bytes and had {position} when the run stopped: it is "
                "not the file that the run wrote; put that one back, or begin a new run with another --run-dir"
            )
        self._file.truncate(position)
        self._file.seek(position)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[Record]:
    """Return the records of a metrics file; an incomplete last line is left out.

    Raises:
        RunError: A complete line is not JSON.
    """
    records: list[Record] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise RunError(
                f"{path}, line {number}: no JSON object ({error}); remove the line, or begin a new run with "
                "another --run-dir"
            ) from error
    return records
