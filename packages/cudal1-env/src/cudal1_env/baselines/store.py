"""Results of baselines: kept for each task, machine and version, so that each is measured once.

An entry is a file of its own in the cache folder, written aside and renamed: readers see a whole entry or none, and
judges of one host need no lock. What cannot be read, or is of another key, is measured again.
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
"""An interval whose ends differ by more says less of a baseline than of the moment: kept in memory only."""

_UNSETTLED = (Status.UNSTABLE, Status.TAMPERING, Status.OUT_OF_MEMORY)
"""Statuses that a busy machine may cause, or one whose memory other processes hold."""


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
    """Its name."""
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
    """Triton version; None where there is none."""
    arithmetic: Literal["strict", "tf32"]
    """Precision policy."""

    @property
    def name(self) -> str:
        """Name of the entry's file."""
        return f"{self.baseline}-{hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]}.json"


class BaselineEntry(BaseModel):
    """The result of a baseline."""

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
    """The verdict's sentence."""
    speedup: Speedup | None = None
    """Against the reference; None unless CORRECT."""
    warmup_timeout_s: float
    """The limit of its first calls, in which it compiles."""

    @model_validator(mode="after")
    def _status_fits(self) -> Self:
        if (self.status is Status.CORRECT) != (self.speedup is not None):
            raise ValueError(f"expected a speedup with CORRECT and no other status, got {self.status}")
        return self

    def serves(self, precision: Precision, warmup_timeout_s: float) -> bool:
        """Whether the entry answers what is asked now.

        A speedup at `report` precision answers for both. A program that took too long is tried again where it may take
        longer now.
        """
        if self.status is Status.TIMEOUT:
            return warmup_timeout_s <= self.warmup_timeout_s
        return self.speedup is None or self.precision in ("report", precision)

    @property
    def settled(self) -> bool:
        """Whether later judges may rely on it: not where the machine was too busy to say."""
        if self.speedup is not None:
            return self.speedup.high / self.speedup.low <= WIDEST
        return self.status not in _UNSETTLED


class BaselineStore:
    """Entries in memory, and in a folder for later judges.

    Args:
        folder: Where; by default `cudal1/baselines` in the user's cache folder. Where it cannot be written, entries
            are kept in memory only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(root) / "cudal1" / "baselines"
        self._known: dict[BaselineKey, BaselineEntry] = {}

    def find(self, key: BaselineKey, precision: Precision, warmup_timeout_s: float) -> BaselineEntry | None:
        """Return the entry of a key, or None where there is none that serves."""
        for entry in (self._known.get(key), self._read(key)):
            if entry is not None and entry.serves(precision, warmup_timeout_s):
                self._known[key] = entry
                return entry
        return None

    def keep(self, entry: BaselineEntry) -> None:
        """Keep an entry; for later judges only if it is settled."""
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
