"""Store of baselines' results by task, machine and version, so that each is measured once.

Each entry is a file in the cache folder, written aside and renamed: readers see a whole entry or none, and
judges of one host need no lock. An entry that cannot be read, or has another key, is measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import tempfile
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cudal1_env.records import PROTOCOL_VERSION, Device, Precision, Speedup, Status

WIDEST = 1.2
"""Largest high / low of a speedup that is kept on disk; wider intervals reflect a busy machine."""

_UNSETTLED = (Status.UNSTABLE, Status.TAMPERING, Status.OUT_OF_MEMORY)
"""Statuses that a busy machine, or one whose memory other processes hold, may cause."""


def _triton_version() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


class BaselineKey(BaseModel):
    """Everything on which a baseline's speedup depends."""

    model_config = ConfigDict(frozen=True)

    protocol: str = PROTOCOL_VERSION
    """Version of the protocol."""
    baseline: str
    """Name of the baseline."""
    task_sha256: str
    """Hash of the reference."""
    source_sha256: str
    """Hash of the baseline's program."""
    device: Device
    """Kind of device."""
    machine: str
    """CPU or GPU model."""
    driver: str | None
    """GPU driver."""
    torch: str
    """torch version."""
    triton: str | None = Field(default_factory=_triton_version)
    """Triton version; None if it is not installed."""
    arithmetic: Literal["strict", "tf32"]
    """Precision policy."""

    @property
    def name(self) -> str:
        """Name of the entry's file."""
        return f"{self.baseline}-{hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]}.json"


class BaselineEntry(BaseModel):
    """Result of a baseline."""

    model_config = ConfigDict(frozen=True)

    key: BaselineKey
    """Task, program and machine of the result."""
    created_at: str
    """UTC time, ISO 8601."""
    precision: Precision
    """How narrow the interval had to be."""
    status: Status
    """Outcome of its program."""
    message: str
    """The verdict as a sentence."""
    speedup: Speedup | None = None
    """Speedup over the reference; None unless CORRECT."""
    warmup_timeout_s: float
    """Time limit of its first calls, in which it compiles."""

    @model_validator(mode="after")
    def _status_fits(self) -> Self:
        if (self.status is Status.CORRECT) != (self.speedup is not None):
            raise ValueError(f"expected a speedup with CORRECT and no other status, got {self.status}")
        return self

    def serves(self, precision: Precision, warmup_timeout_s: float) -> bool:
        """Return whether the entry can be used for a request.

        A speedup at `report` precision serves both precisions. A program that timed out is tried again if the time
        limit is longer now.
        """
        if self.status is Status.TIMEOUT:
            return warmup_timeout_s <= self.warmup_timeout_s
        return self.speedup is None or self.precision in ("report", precision)

    @property
    def settled(self) -> bool:
        """Whether later judges may use it: not if the machine may have been too busy."""
        if self.speedup is not None:
            return self.speedup.high / self.speedup.low <= WIDEST
        return self.status not in _UNSETTLED


class BaselineStore:
    """Entries in memory, and in a folder for later judges.

    Args:
        folder: By default `cudal1/baselines` in the user's cache folder. If it cannot be written, entries are kept in
            memory only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(root) / "cudal1" / "baselines"
        self._known: dict[BaselineKey, BaselineEntry] = {}

    def find(self, key: BaselineKey, precision: Precision, warmup_timeout_s: float) -> BaselineEntry | None:
        """Return the entry of a key, or None if none serves."""
        for entry in (self._known.get(key), self._read(key)):
            if entry is not None and entry.serves(precision, warmup_timeout_s):
                self._known[key] = entry
                return entry
        return None

    def keep(self, entry: BaselineEntry) -> None:
        """Keep an entry in memory and, if it is settled, on disk."""
        self._known[entry.key] = entry
        if not entry.settled:
            return
        with contextlib.suppress(OSError):  # a cache: without it the next judge measures again
            self._write(entry)

    def _read(self, key: BaselineKey) -> BaselineEntry | None:
        try:
            entry = BaselineEntry.model_validate_json((self.folder / key.name).read_bytes())
        except (OSError, ValidationError):
            return None
        return entry if entry.key == key else None

    def _write(self, entry: BaselineEntry) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        fd, aside = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(entry.model_dump_json().encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.folder / entry.key.name)
        except OSError:
            os.unlink(aside)
            raise
