"""An archive read for reports: never written to, and read as far as a damaged or growing file can be."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from cudal1_env.archive import BUSY_TIMEOUT_S
from cudal1_env.errors import RecordError

_DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises; SQLite's own message may hold bytes of it."""


@dataclass(frozen=True)
class Entry:
    """What a list of verdicts shows of one evaluation."""

    position: int
    """Position in the archive."""
    task: str
    """Task id."""
    source_sha256: str
    """Hash of the program."""
    status: str
    """A value of `Status`, or what a damaged row holds."""
    low: float | None
    """Lower end of the speedup's interval."""
    point: float | None
    """Best estimate of the speedup."""
    high: float | None
    """Upper end of the interval; None in a damaged record."""
    created_at: str
    """UTC time, ISO 8601."""
    protocol: str
    """Version of the protocol, empty in a damaged record."""
    message: str
    """One sentence for people."""


class ArchiveReader:
    """An archive as it is found: never written to, and read as far as it can be.

    For reports, which must not change what they show: another process may be writing, the file may be cut off,
    and records may be of another protocol or damaged.
    """

    def __init__(self, path: Path) -> None:
        """Open a file for reading.

        Raises:
            RecordError: There is no such file, or it cannot be read.
        """
        self._name = str(path)
        failed = ""
        for how in ("mode=ro", "mode=ro&immutable=1"):  # the second where not even a lock file can be made
            try:
                self._db = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, timeout=BUSY_TIMEOUT_S)
                self._db.text_factory = _text
                self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                return
            except _DAMAGED as error:
                failed = str(error)
        raise RecordError(f"cannot read the archive {self._name}: {failed}")

    def entries(self, *, after: int = 0) -> tuple[list[Entry], str | None]:
        """Return the evaluations behind a position, in order of arrival, and what could not be read of the file."""
        known = "CASE WHEN json_valid(record) THEN json_extract(record, '$.{}') END"
        columns = ", ".join(known.format(name) for name in ("speedup.high", "protocol", "message"))
        sql = (
            "SELECT position, task, source_sha256, status, speedup_low, speedup_point, created_at, "
            f"{columns} FROM evaluations WHERE position > ? ORDER BY position"
        )
        found: list[Entry] = []
        try:
            for position, task, sha256, status, low, point, created, high, protocol, message in self._db.execute(
                sql, (after,)
            ):
                texts = (str(text or "") for text in (created, protocol, message))
                found.append(Entry(position, str(task), str(sha256), str(status), low, point, high, *texts))
        except _DAMAGED as error:
            return found, f"{self._name} can be read up to evaluation {len(found)} only: {error}"
        return found, None

    def texts(self, position: int) -> tuple[str, str] | None:
        """Return the reference and the program of an evaluation, None where its record is damaged."""
        try:
            row = self._db.execute("SELECT record FROM evaluations WHERE position = ?", (position,)).fetchone()
            record = json.loads(row[0])
            return str(record["task_source"]), str(record["source"])
        except (*_DAMAGED, ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
