"""SQLite store of finished verdicts, by the key of their job, and of disclosed seeds."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cudal1_data.hashes import digest
from pydantic import ValidationError

from cudal1_env.errors import MachineError
from cudal1_env.records import PROTOCOL_VERSION, Evaluation
from cudal1_env.wire import Order

log = logging.getLogger(__name__)

_MAX_UNKEPT = 4096
"""Maximum number of verdicts that wait in memory; the oldest are dropped first."""
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS draws (draw TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdicts (position INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS seeds (commitment TEXT PRIMARY KEY, seed TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Key:
    """Hashes that identify a job."""

    draw: str
    """Hash of everything but the salt; the same for repeated draws of a program."""
    job: str
    """Hash of everything; jobs with the same hash get the same record."""

    @classmethod
    def of(cls, order: Order, *, owner: str, settings: str, model: str) -> Key:
        """Return an order's key.

        Args:
            order: The order.
            owner: Hash of the client's token.
            settings: Settings of the judge, as text.
            model: CPU or GPU model.
        """
        parts = [
            owner,
            order.task,
            order.reference_sha256,
            digest(order.program),
            order.precision,
            settings,
            PROTOCOL_VERSION,
            model,
        ]
        draw = _hash(parts)
        return cls(draw, _hash([draw, order.salt]))


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


class Store:
    """Finished verdicts and disclosed seeds; thread-safe.

    What cannot be written, as on a full disk, waits in memory and is written with the next verdict.

    Args:
        path: The file; None takes a temporary file, which is removed at the end.
        max_records: Maximum number of verdicts; the oldest are dropped first.

    Raises:
        MachineError: The file cannot be opened.
    """

    def __init__(self, path: Path | None = None, *, max_records: int = 100_000) -> None:
        self.fault = ""
        """Why verdicts wait in memory; empty if they are stored."""
        self._unkept: OrderedDict[str, tuple[Key, Evaluation]] = OrderedDict()
        """Verdicts that could not be written yet, by job."""
        self._unkept_seeds: dict[str, str] = {}
        self._lock = threading.Lock()
        self._max_records = max_records
        self._name = "the temporary store" if path is None else str(path)
        try:
            # An empty name is a private file on disk, which SQLite removes.
            self._db = sqlite3.connect("" if path is None else path, check_same_thread=False, isolation_level=None)
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            raise MachineError(
                f"cannot open {self._name} as a store of verdicts: {error}; name another --store"
            ) from error

    def find(self, key: Key) -> Evaluation | None:
        """Return the verdict on a job, if there is one that this version can read.

        If the file cannot be read, `fault` says why.
        """
        with self._lock:
            if key.job in self._unkept:
                return self._unkept[key.job][1]
            try:
                rows = self._db.execute("SELECT record FROM verdicts WHERE key = ?", (key.job,)).fetchall()
            except sqlite3.Error as error:
                self._broke(error)
                return None
        try:
            return Evaluation.model_validate_json(rows[0][0]) if rows else None
        except ValidationError:  # of another version: judged again
            return None

    def add(self, key: Key, salt: str, evaluation: Evaluation) -> Evaluation:
        """Store a verdict; return it with its salt, and with its ordinal unless it cannot be written (`fault`)."""
        with self._lock:
            self._unkept[key.job] = key, evaluation.model_copy(update={"salt": salt})
            return self._write() or self._unkept[key.job][1]

    def disclose(self, seeds: Mapping[str, str]) -> None:
        """Store the seeds (hex) of retired pools by commitment."""
        with self._lock:
            self._unkept_seeds |= seeds
            self._write()

    def seeds(self, commitments: Iterable[str]) -> dict[str, str]:
        """Return the disclosed seeds (hex) of these commitments.

        Raises:
            MachineError: The file cannot be read.
        """
        found: dict[str, str] = {}
        for commitment in commitments:
            with self._lock:
                try:
                    rows = self._db.execute("SELECT seed FROM seeds WHERE commitment = ?", (commitment,)).fetchall()
                except sqlite3.Error as error:
                    raise self._broken(error) from error
            found |= {commitment: rows[0][0]} if rows else {}
        return found

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._write()
            self._db.close()

    def _write(self) -> Evaluation | None:
        """Write all that waits, the oldest first; return the last verdict as stored, None if something waits still."""
        record = None
        try:
            while self._unkept:
                job, waiting = self._unkept.popitem(last=False)
                try:
                    with self._db:  # commits, or rolls back
                        record = self._insert(*waiting)
                except sqlite3.Error:
                    self._unkept[job] = waiting
                    self._unkept.move_to_end(job, last=False)
                    raise
            self._db.executemany("INSERT OR IGNORE INTO seeds VALUES (?, ?)", self._unkept_seeds.items())
        except sqlite3.Error as error:
            self._broke(error)
            while len(self._unkept) > _MAX_UNKEPT:
                self._unkept.popitem(last=False)
        else:
            self._unkept_seeds.clear()
            self.fault = ""
        return None if self._unkept else record

    def _insert(self, key: Key, evaluation: Evaluation) -> Evaluation:
        """Write a verdict; return it with its ordinal."""
        self._db.execute("BEGIN IMMEDIATE")
        ((ordinal,),) = self._db.execute(
            "INSERT INTO draws VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1 RETURNING count", (key.draw,)
        ).fetchall()
        record = evaluation.model_copy(update={"ordinal": ordinal})
        position = self._db.execute(
            "REPLACE INTO verdicts (key, record) VALUES (?, ?)", (key.job, record.model_dump_json())
        ).lastrowid
        assert position is not None
        self._db.execute("DELETE FROM verdicts WHERE position <= ?", (position - self._max_records,))
        return record

    def _broke(self, error: sqlite3.Error) -> None:
        if not self.fault:
            log.error("%s", self._broken(error))
        self.fault = str(self._broken(error))

    def _broken(self, error: sqlite3.Error) -> MachineError:
        return MachineError(
            f"the store {self._name} does not work: {error}; make room on its disk, or name another --store"
        )
