"""The archive: every evaluation, in order of arrival, searchable by task, program and score.

It is one SQLite file in WAL mode. Several processes may write to it; each opens its own `Archive` (a
connection does not survive a fork). A commit is on disk when `add` returns, so a killed process loses
only what it had not added. Not for network file systems: WAL needs memory that all writers share.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError
from pydantic_core import to_json

from cudal1_env.errors import EnvError, MachineError, RecordError
from cudal1_env.records import Evaluation, Status

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for others. A commit takes milliseconds; seconds indicate a failing disk."""

APPLICATION_ID = 0x43554C31
"""Marks a SQLite file as an archive (`CUL1`)."""

SCHEMA_VERSION = 1
"""Version of the tables below."""

_SCHEMA = (
    """
    CREATE TABLE evaluations (
        position INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        task TEXT NOT NULL,
        source_sha256 TEXT NOT NULL,
        status TEXT NOT NULL,
        speedup_point REAL,
        speedup_low REAL,
        created_at TEXT NOT NULL,
        seed_commitment TEXT,
        record TEXT NOT NULL
    )""",
    "CREATE INDEX by_task ON evaluations (task, status, speedup_low)",
    "CREATE INDEX by_source ON evaluations (task, source_sha256)",
    """
    CREATE TRIGGER append_only BEFORE UPDATE ON evaluations
    BEGIN SELECT RAISE(ABORT, 'an evaluation is never changed'); END""",
    "CREATE TABLE seeds (seed_commitment TEXT PRIMARY KEY, seed TEXT NOT NULL)",
    """
    CREATE TABLE set_aside (
        position INTEGER NOT NULL,
        id TEXT NOT NULL,
        set_aside_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
        record TEXT NOT NULL
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_SELECT = (
    "SELECT position, record, (SELECT seed FROM seeds WHERE seeds.seed_commitment = evaluations.seed_commitment) "
    "FROM evaluations "
)


class Archive:
    """Evaluations in order of arrival, searchable by task, source and score.

    >>> with Archive() as archive:
    ...     archive.position(), archive.best("starter/diag_matmul")
    (0, None)
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """Open the archive; make it and its folder if they do not exist.

        Args:
            path: The file; None keeps everything in memory until `close`.

        Raises:
            RecordError: The file is not an archive, or has another version.
            MachineError: The file cannot be opened or made.
        """
        self.path = None if path is None else Path(path)
        self.marks: tuple[str, ...] = ()
        """Marks that evaluations get when they are added (`Evaluation.marks`)."""
        self._lock = threading.RLock()
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            # Autocommit: this module begins transactions explicitly.
            self._db = sqlite3.connect(
                self.path or ":memory:", timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise MachineError(
                f"cannot open the archive {self._name}: {error}; check the folder's permissions"
            ) from error
        try:
            with self._explained("open"):
                self._prepare()
        except EnvError:
            self._db.close()
            raise

    @property
    def _name(self) -> str:
        return str(self.path or "(in memory)")

    def add(self, evaluation: Evaluation) -> int:
        """Append an evaluation and return its position; see `add_all`."""
        return self.add_all([evaluation])[0]

    def add_all(self, evaluations: Sequence[Evaluation]) -> list[int]:
        """Append evaluations in one transaction and return their positions, counted from 1.

        An evaluation whose id already exists is not added again.

        Raises:
            MachineError: The disk is full or failing; this call added nothing, and earlier evaluations are kept.
        """
        rows = [_row(evaluation, self.marks) for evaluation in evaluations]
        with self._transaction("add to"):
            self._db.executemany(
                "INSERT INTO evaluations (id, task, source_sha256, status, speedup_point, speedup_low, created_at, "
                "seed_commitment, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                rows,
            )
            return [
                int(self._db.execute("SELECT position FROM evaluations WHERE id = ?", row[:1]).fetchone()[0])
                for row in rows
            ]

    def variants(self, task: str, *, correct_only: bool = True) -> list[Evaluation]:
        """Return the evaluations of a task, in order of arrival.

        Args:
            task: Task id.
            correct_only: Leave out evaluations that are not `CORRECT`.
        """
        if correct_only:
            return self._read("WHERE task = ? AND status = ? ORDER BY position", task, Status.CORRECT.value)
        return self._read("WHERE task = ? ORDER BY position", task)

    def best(self, task: str, *, until: int | None = None) -> Evaluation | None:
        """Return the correct evaluation with the highest `Evaluation.counted_low` (the first of equals).

        The lower bound is used because the highest point estimate of many noisy measurements is the luckiest. The
        maximum of lower bounds is still biased upwards: measure the program again before you report it.

        Args:
            task: Task id.
            until: Last position that counts; None counts all.
        """
        found = self._read(
            "WHERE task = ? AND status = ? AND position <= ? AND speedup_low IS NOT NULL "
            "ORDER BY speedup_low DESC, position LIMIT 1",
            task,
            Status.CORRECT.value,
            self.position() if until is None else until,
        )
        return found[0] if found else None

    def program(self, task: str, source_sha256: str, *, after: int = 0) -> list[Evaluation]:
        """Return the evaluations of a program for a task after a position, in order of arrival."""
        return self._read(
            "WHERE task = ? AND source_sha256 = ? AND position > ? ORDER BY position", task, source_sha256, after
        )

    def evaluations(self, *, after: int = 0) -> list[Evaluation]:
        """Return all evaluations after a position, in order of arrival."""
        return self._read("WHERE position > ? ORDER BY position", after)

    def counts(self) -> dict[str, dict[Status, int]]:
        """Count the evaluations by task id and status."""
        counts: dict[str, dict[Status, int]] = {}
        for task, status, count in self._query("SELECT task, status, count(*) FROM evaluations GROUP BY 1, 2"):
            counts.setdefault(task, {})[Status(status)] = count
        return counts

    def __len__(self) -> int:
        """Count the evaluations."""
        return int(self._query("SELECT count(*) FROM evaluations")[0][0])

    def disclose(self, seed_commitment: str, seed: str) -> None:
        """Publish a seed that will never be used again; evaluations read from now on contain it.

        Args:
            seed_commitment: SHA-256 of the seed's bytes (hex), as in the evaluations that used it.
            seed: The seed (hex).

        Raises:
            RecordError: The seed does not match the commitment.
        """
        try:
            found = hashlib.sha256(bytes.fromhex(seed)).hexdigest()
        except ValueError:
            found = "no hash, as it is not hexadecimal"
        if found != seed_commitment:
            raise RecordError(
                f"the seed is of the commitment {found}, not of {seed_commitment}; disclose the one that its judge drew"
            )
        with self._transaction("add a seed to"):
            self._db.execute("INSERT OR REPLACE INTO seeds VALUES (?, ?)", (seed_commitment, seed))

    def position(self) -> int:
        """Return the position of the last evaluation, or 0; see `truncate_to`."""
        return int(self._query("SELECT coalesce(max(position), 0) FROM evaluations")[0][0])

    def truncate_to(self, position: int) -> int:
        """Remove all evaluations after `position`; their positions are used again.

        Later evaluations are measured work, so they are not deleted: they move to the table `set_aside`, which
        no method reads. Disclosed seeds stay.

        Returns:
            How many evaluations were set aside.

        Raises:
            RecordError: The archive has no such position, so it is not the one that the position came from.
        """
        with self._transaction("roll back"):
            reached = self.position()
            if not 0 <= position <= reached:
                raise RecordError(
                    f"the archive {self._name} has positions from 0 to {reached}, and not {position}; "
                    "give the archive that was saved with this checkpoint"
                )
            moved = self._db.execute(
                "INSERT INTO set_aside (position, id, record) "
                "SELECT position, id, record FROM evaluations WHERE position > ?",
                (position,),
            )
            self._db.execute("DELETE FROM evaluations WHERE position > ?", (position,))
            return moved.rowcount

    def close(self) -> None:
        """Close the file; evaluations are kept, except those of an archive in memory."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        """Return the archive."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the archive."""
        self.close()

    def _prepare(self) -> None:
        # FULL also survives a power loss, at one more sync per commit; an evaluation costs far more.
        self._db.execute("PRAGMA synchronous = FULL")
        if self.path is not None:
            self._use_wal()
        with self._transaction("open"):
            if self._pragma("user_version") == 0 and not self._query("SELECT 1 FROM sqlite_master"):
                for statement in _SCHEMA:
                    self._db.execute(statement)
        if self._pragma("application_id") != APPLICATION_ID:
            raise RecordError(f"{self._name} is a SQLite file, but not an archive of cudal1; give a new path")
        if (version := self._pragma("user_version")) != SCHEMA_VERSION:
            raise RecordError(
                f"the archive {self._name} has version {version}, and this release reads version {SCHEMA_VERSION}; "
                "read it with the release of cudal1 that wrote it"
            )

    def _use_wal(self) -> None:
        """Switch to write-ahead logging; SQLite does not wait by itself when two processes switch at once."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _read(self, where: str, *values: str | int) -> list[Evaluation]:
        return [self._load(*row) for row in self._query(_SELECT + where, *values)]

    def _query(self, sql: str, *values: str | int) -> list[Any]:
        with self._lock, self._explained("read"):
            return self._db.execute(sql, values).fetchall()

    def _load(self, position: int, record: str, seed: str | None) -> Evaluation:
        try:
            evaluation = Evaluation.model_validate_json(record)
        except ValidationError as error:
            raise RecordError(f"evaluation {position} of the archive {self._name} cannot be read: {error}") from error
        return evaluation if seed is None else evaluation.model_copy(update={"seed": seed})

    @contextmanager
    def _transaction(self, what: str) -> Generator[None, None, None]:
        with self._lock, self._explained(what):
            # IMMEDIATE waits for other writers now; a wait within the transaction could deadlock.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _explained(self, what: str) -> Generator[None, None, None]:
        """Turn SQLite's errors into this package's; incorrect use (a closed archive) is not translated."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            raise _translate(error, what, self._name) from error


def _row(evaluation: Evaluation, marks: Sequence[str]) -> tuple[str | float | None, ...]:
    speedup = evaluation.speedup
    if new := [mark for mark in marks if mark not in evaluation.marks]:
        evaluation = evaluation.model_copy(update={"marks": (*evaluation.marks, *new)})
    # "strings": JSON has no NaN, and errors of outputs may be NaN.
    record = to_json(evaluation.model_dump(mode="json"), inf_nan_mode="strings").decode()
    return (
        evaluation.id,
        evaluation.task,
        evaluation.source_sha256,
        evaluation.status.value,
        speedup.point if speedup else None,
        evaluation.counted_low,
        evaluation.created_at,
        evaluation.seed_commitment,
        record,
    )


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code, or -1 for errors of Python's wrapper."""
    extended: int = getattr(error, "sqlite_errorcode", -1)
    return extended & 0xFF if extended >= 0 else -1


def _translate(error: sqlite3.Error, what: str, name: str) -> EnvError:
    kept = "what was added before is kept"
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return MachineError(
                f"cannot {what} the archive {name}: the disk is full; {kept}, free some space and resume"
            )
        case sqlite3.SQLITE_BUSY:
            return MachineError(
                f"cannot {what} the archive {name}: another process held it for over {BUSY_TIMEOUT_S:.0f} s; "
                f"{kept}, look for a hanging process that has the file open"
            )
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return RecordError(
                f"cannot {what} the archive {name}: it is not a sound SQLite file ({error}); give a new path"
            )
        case _:
            return MachineError(f"cannot {what} the archive {name}: {error}; {kept}, check the disk and resume")
