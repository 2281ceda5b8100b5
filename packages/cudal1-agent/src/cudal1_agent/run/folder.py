"""Run directories: settings, metrics, archive, stages, and the marks from which a killed run resumes exactly.

```
config.json         resolved settings
corpus.json         which corpus stage 1 learns from, if the settings name one
metrics.jsonl       one JSON object per line
archive.sqlite      every evaluation (cudal1_env.Archive)
machine.json        the machine that the run was on last
model/              the embedded model, if no model is named
stages/NAME/model   the policy after a stage
stages/NAME/trainer checkpoints of the running stage
marks/NAME.json     a finished phase, with the positions of metrics and archive
trackers/           files of TensorBoard, if the settings ask for it
report.html         the run's page
```

Marks are written atomically. Metrics after the last mark or checkpoint belong to an interrupted phase and are removed
before it resumes. So are the archive's evaluations, but only if the phase reads the archive.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from cudal1_data.faults import fault_text
from cudal1_env import Archive
from cudal1_env.records import PROTOCOL_VERSION
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cudal1_agent.config import differences
from cudal1_agent.data.selection import CorpusNote
from cudal1_agent.errors import RunError
from cudal1_agent.run.files import write_aside
from cudal1_agent.run.metrics import Metrics, Record
from cudal1_agent.settings import Settings, StageName

CONFIG = "config.json"
"""Resolved settings; a directory without this file holds no run."""
METRICS = "metrics.jsonl"
"""The metrics."""
ARCHIVE = "archive.sqlite"
"""Every evaluation of the run."""
REPORT = "report.html"
"""The report."""
CORPUS = "corpus.json"
"""Which corpus stage 1 learns from, if the settings name one."""
TRAINED_ON_TEST = ("trained_on_test",)
"""Marks of evaluations whose program was written by a model trained on test data."""

_Note = TypeVar("_Note", bound=BaseModel)
_BEFORE_BEGINNING = {"lock", CONFIG + ".aside"}
"""Files left by a run that was killed before it began."""


class Mark(BaseModel):
    """Positions of metrics and archive at some moment, and the state needed to resume there."""

    model_config = ConfigDict(frozen=True)

    metrics_bytes: int = Field(ge=0)
    """Length of metrics.jsonl."""
    archive_position: int = Field(ge=0)
    """Position of the last evaluation in the archive."""
    extra: Record = Field(default_factory=dict)
    """State that the phase itself needs to resume."""


BEGINNING = Mark(metrics_bytes=0, archive_position=0)
"""Where a run begins."""


@dataclass
class RunFolder:
    """An open run directory; one process at a time."""

    path: Path
    settings: Settings
    metrics: Metrics
    archive: Archive
    lock: IO[str]

    @classmethod
    def begin(cls, path: Path, settings: Settings) -> Self:
        """Make a run directory.

        Raises:
            RunError: The path holds something already.
        """
        check_unused(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        write_aside(path / CONFIG, settings.model_dump_json(indent=2) + "\n")
        return cls(path, settings, Metrics(path / METRICS), Archive(path / ARCHIVE), lock)

    @classmethod
    def resume(cls, path: Path, asked: Settings | None = None) -> Self:
        """Open a run directory to resume the run in it.

        Args:
            path: The directory.
            asked: Settings that must equal those of the run; None skips the check.

        Raises:
            RunError: There is no run, or it is finished, locked by another process, or has other settings or another
                protocol.
        """
        stored = read_settings(path)
        if asked is not None and (found := differences(stored, asked)):
            raise RunError(
                f"{path} was begun with other settings ({'; '.join(found)}); resume it without naming settings "
                f"(cudal1-agent train --run-dir {path} --resume), or begin another run with another --run-dir"
            )
        check_protocol(path)
        if is_finished(path):
            raise RunError(
                f"{path} holds a finished run, so there is nothing to resume; read its report "
                f"(cudal1-agent report {path}), or begin a new run with another --run-dir"
            )
        lock = _lock(path)
        return cls(path, stored, Metrics(path / METRICS), Archive(path / ARCHIVE), lock)

    def mark(self, name: str, extra: Record | None = None) -> None:
        """Mark a phase as finished."""
        write_aside(self.path / "marks" / f"{name}.json", self.position_now(extra).model_dump_json())

    def marked(self, name: str) -> Mark | None:
        """Return the mark of a phase, None if it is not finished."""
        return read_mark(self.path / "marks" / f"{name}.json")

    def position_now(self, extra: Record | None = None) -> Mark:
        """Return where metrics and archive stand now."""
        return Mark(
            metrics_bytes=self.metrics.position(), archive_position=self.archive.position(), extra=dict(extra or {})
        )

    def rewind(self, mark: Mark, *, archive: bool) -> None:
        """Remove what was written after a mark.

        Args:
            mark: The last position to keep.
            archive: Remove evaluations too. A phase that only looks them up keeps them, and measures no program again.
        """
        self.metrics.truncate_to(mark.metrics_bytes)
        if archive:
            self.archive.truncate_to(mark.archive_position)

    def close(self) -> None:
        """Close all files and release the directory."""
        self.metrics.close()
        self.archive.close()
        self.lock.close()

    def discard(self) -> None:
        """Remove a run that failed the first checks, so that its directory can be used again."""
        self.close()
        for file in (CONFIG, CORPUS, METRICS, *(f"{ARCHIVE}{end}" for end in ("", "-wal", "-shm")), "lock"):
            (self.path / file).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def __enter__(self) -> Self:
        """Return the run directory."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def read_settings(path: Path) -> Settings:
    """Return the settings of a run.

    Raises:
        RunError: The directory holds no run, or one of another version.
    """
    try:
        return Settings.model_validate_json((path / CONFIG).read_bytes())
    except OSError as error:
        raise RunError(
            f"no run in {path} (it has no {CONFIG}); name another directory, or begin a run there: "
            f"cudal1-agent train --run-dir {path}"
        ) from error
    except ValidationError as error:
        raise RunError(f"{path / CONFIG} cannot be read by this version of cudal1: {fault_text(error)}") from error


def check_protocol(path: Path) -> None:
    """Check that the verdicts of a run have this version's protocol.

    Raises:
        RunError: They have another; rewards and speedups of the two must not be mixed.
    """
    if not (path / ARCHIVE).is_file():
        return
    with Archive(path / ARCHIVE) as archive:
        last = archive.evaluations(after=archive.position() - 1)
    if last and last[0].protocol != PROTOCOL_VERSION:
        raise RunError(
            f"the run {path} was judged by protocol {last[0].protocol} and this version judges by {PROTOCOL_VERSION}, "
            "so their verdicts do not compare; begin a new run with another --run-dir, or use the version that began it"
        )


def read_corpus_note(path: Path) -> CorpusNote | None:
    """Return which corpus a run learns from, None if none is noted.

    Raises:
        RunError: The file holds no such note.
    """
    return _read(path / CORPUS, CorpusNote)


def stage_model(path: Path, stage: StageName, settings: Settings) -> Path:
    """Return the folder of the model that a stage of a run produces."""
    home = path / "stages" / stage
    return (home / str(settings.self_train.iterations - 1) if stage == "self_train" else home) / "model"


def is_run(path: Path) -> bool:
    """Return whether a folder is a run directory; a model's folder has another `config.json`."""
    file = path / CONFIG
    if not file.is_file():
        return False
    try:
        return "model_type" not in json.loads(file.read_bytes())
    except ValueError:  # reading the settings reports the fault
        return True


def is_finished(path: Path) -> bool:
    """Return whether a run directory holds a finished run."""
    return (path / "marks" / "finished.json").is_file()


def read_mark(path: Path) -> Mark | None:
    """Return a mark, None if there is none.

    Raises:
        RunError: The file holds no mark.
    """
    return _read(path, Mark)


def _read(path: Path, form: type[_Note]) -> _Note | None:
    try:
        return form.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError as error:
        raise RunError(
            f"{path} cannot be read by this version of cudal1: {fault_text(error)}; begin a new run with another "
            "--run-dir"
        ) from error


def _lock(path: Path) -> IO[str]:
    lock = (path / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RunError(f"another process is training in {path}; wait for it, or name another --run-dir") from error
    return lock


def check_unused(path: Path) -> None:
    """Check that a run can begin in a directory, which need not exist.

    Raises:
        RunError: The path holds something already.
    """
    if path.exists() and not (path.is_dir() and {entry.name for entry in path.iterdir()} <= _BEFORE_BEGINNING):
        raise RunError(_why_not(path))


def _why_not(path: Path) -> str:
    if not (path / CONFIG).is_file():
        return f"the run directory {path} holds other files; name a new or an empty one with --run-dir"
    if is_finished(path):
        return f"{path} holds a finished run (read it with: cudal1-agent report {path}); name another --run-dir"
    return (
        f"{path} holds a run that is not finished; resume it with: cudal1-agent train --run-dir {path} --resume "
        "(or name another --run-dir)"
    )
