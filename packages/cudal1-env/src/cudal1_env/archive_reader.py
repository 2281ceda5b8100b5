"""Read-only access to an archive for reports, including damaged files and files that another process writes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from cudal1_env.archive import BUSY_TIMEOUT_S
from cudal1_env.errors import RecordError
from cudal1_env.records import Positive

_DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""Errors that a damaged file raises; SQLite's message may contain bytes of it."""


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Entry:
    """Summary of one evaluation, for a list of verdicts. SQLite keeps any value in any column, so they are checked."""

    position: int
    """Position in the archive."""
    task: str
    """Task id."""
    source_sha256: str
    """Hash of the program."""
    status: str
    """A value of `Status`, or the content of a damaged row."""
    low: Positive | None
    """`Evaluation.counted_low`: the lower end of the speedup's interval, or its rewarded end if that is less."""
    point: Positive | None
    """Best estimate of the speedup."""
    high: Positive | None
    """Upper end of the interval; None in a damaged record."""
    created_at: str
    """UTC time, ISO 8601."""
    protocol: str
    """Version of the protocol, empty in a damaged record."""
    message: str
    """One sentence."""


class ArchiveReader:
    """An archive opened read-only, and read as far as possible.

    Reports must not change the archive: another process may be writing, the file may be truncated,
    and records may be damaged or of another protocol.
    """

    def __init__(self, path: Path) -> None:
        """Open a file for reading.

        Raises:
            RecordError: The file does not exist or cannot be read.
        """
        self._name = str(path)
        failed = ""
        for how in ("mode=ro", "mode=ro&immutable=1"):  # the second if no lock file can be made
            try:
                self._db = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, timeout=BUSY_TIMEOUT_S)
                self._db.text_factory = _text
                self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                return
            except _DAMAGED as error:
                failed = str(error)
        raise RecordError(f"cannot read the archive {self._name}: {failed}")

    def entries(self, *, after: int = 0) -> tuple[list[Entry], str | None]:
        """Return the evaluations after a position, in order of arrival, and a message if the rest is unreadable."""
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
                names = position, str(task), str(sha256), str(status)
                texts = [str(text or "") for text in (created, protocol, message)]
                try:
                    found.append(Entry(*names, low, point, high, *texts))
                except ValidationError:
                    found.append(Entry(*names, None, None, None, texts[0], "", ""))
        except _DAMAGED as error:
            return found, f"{self._name} can be read up to evaluation {len(found)} only: {error}"
        return found, None

    def texts(self, position: int) -> tuple[str, str] | None:
        """Return the reference and the program of an evaluation, or None if its record is damaged."""
        try:
            row = self._db.execute("SELECT record FROM evaluations WHERE position = ?", (position,)).fetchone()
            record = json.loads(row[0])
            return str(record["task_source"]), str(record["source"])
        except (*_DAMAGED, ValueError, KeyError, TypeError, RecursionError):
            return None

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
