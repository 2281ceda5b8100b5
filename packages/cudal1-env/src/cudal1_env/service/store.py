"""SQLite store of finished verdicts, by the key of their job, and of disclosed seeds."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cudal1_data.hashes import digest

from cudal1_env.errors import MachineError
from cudal1_env.records import PROTOCOL_VERSION, Evaluation
from cudal1_env.wire import Order

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

    Args:
        path: The file; None takes a temporary file, which is removed at the end.
        max_records: Maximum number of verdicts; the oldest are dropped first.

    Raises:
        MachineError: The file cannot be opened.
    """

    def __init__(self, path: Path | None = None, *, max_records: int = 100_000) -> None:
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
        """Return the verdict on a job, if there is one.

        Raises:
            MachineError: The file cannot be read.
        """
        rows = self._run("SELECT record FROM verdicts WHERE key = ?", key.job)
        return Evaluation.model_validate_json(rows[0][0]) if rows else None

    def add(self, key: Key, salt: str, evaluation: Evaluation) -> Evaluation:
        """Store a verdict; return it with its salt and ordinal.

        Raises:
            MachineError: It cannot be written, as on a full disk.
        """
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                ((ordinal,),) = self._db.execute(
                    "INSERT INTO draws VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1 RETURNING count",
                    (key.draw,),
                ).fetchall()
                record = evaluation.model_copy(update={"salt": salt, "ordinal": ordinal})
                position = self._db.execute(
                    "INSERT INTO verdicts (key, record) VALUES (?, ?)", (key.job, record.model_dump_json())
                ).lastrowid
                assert position is not None
                self._db.execute("DELETE FROM verdicts WHERE position <= ?", (position - self._max_records,))
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._broken(error) from error
        return record

    def disclose(self, seeds: Mapping[str, str]) -> None:
        """Store the seeds (hex) of retired pools by commitment.

        Raises:
            MachineError: They cannot be written.
        """
        for commitment, seed in seeds.items():
            self._run("INSERT OR IGNORE INTO seeds VALUES (?, ?)", commitment, seed)

    def seeds(self, commitments: Iterable[str]) -> dict[str, str]:
        """Return the disclosed seeds (hex) of these commitments.

        Raises:
            MachineError: The file cannot be read.
        """
        found: dict[str, str] = {}
        for commitment in commitments:
            for (seed,) in self._run("SELECT seed FROM seeds WHERE commitment = ?", commitment):
                found[commitment] = seed
        return found

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _run(self, sql: str, *values: str) -> list[tuple[str]]:
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self._broken(error) from error

    def _broken(self, error: sqlite3.Error) -> MachineError:
        return MachineError(
            f"the store {self._name} does not work: {error}; make room on its disk, or name another --store"
        )
