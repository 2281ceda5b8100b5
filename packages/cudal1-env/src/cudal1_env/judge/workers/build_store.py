"""The build store: compiled files of programs, kept between runs for later verdicts on the same program.

An entry is a folder with the files of a snapshot and a manifest with their hash. It is written under another name and
renamed, so judges of one host need no lock. An entry that does not match its manifest, such as one that another judge
is removing, is removed and built again. Only the judge reads and writes the store: workers get copies, and the store is
used only if workers have their own file system. A program gains nothing from its entry that its import could not
compute (decision 010).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cudal1_env.calibration import cache_folder
from cudal1_env.errors import MachineError
from cudal1_env.judge.workers.build_folders import copy_plain, remove
from cudal1_env.records import PROTOCOL_VERSION
from cudal1_env.sandbox.owned import make_owned, remove_abandoned

_ASIDE = "new-"
_MANIFEST = "manifest.json"
_FILES = "files"
_LARGEST_SHARE = 0.25
"""Maximum size of an entry, as a share of the store."""


def build_key(*parts: object) -> str:
    """Return the name of an entry: a hash of all that compiled files depend on, and of the protocol's version."""
    return hashlib.sha256(json.dumps([PROTOCOL_VERSION, *parts]).encode()).hexdigest()


def is_own(folder: Path) -> bool:
    """Return whether only this user can write to a folder."""
    try:
        info = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    note: str
    """How the program's call on made-up inputs failed, if it did."""
    sha256: str
    """Hash of the entry's files (`_digest`)."""


class BuildStore:
    """Entries in a folder; the least recently used ones are removed when the store is full.

    Args:
        max_bytes: Maximum size of all entries; 0 disables the store.
        folder: The store's folder; by default `cudal1/builds` in the user's cache folder.
    """

    def __init__(self, max_bytes: int, folder: Path | None = None) -> None:
        self.max_bytes = max_bytes
        self.folder = folder or cache_folder() / "builds"

    def find(self, key: str, target: Path) -> str | None:
        """Copy an entry to `target`.

        Returns:
            The entry's note; None if there is no intact entry, and `target` is then empty.

        Raises:
            MachineError: `target` cannot be written, as on a full disk.
        """
        entry = self.folder / key
        if self.max_bytes <= 0 or not is_own(self.folder) or not entry.is_dir():
            return None
        try:
            manifest = _Manifest.model_validate_json((entry / _MANIFEST).read_bytes())
            if manifest.key != key:
                raise ValueError("the entry is of another key")
            copy_plain(entry / _FILES, target)
            if _digest(target)[0] != manifest.sha256:
                raise ValueError("the entry is damaged")
            with contextlib.suppress(PermissionError):
                os.utime(entry)
        except (OSError, ValueError, ValidationError):  # damaged, or removed meanwhile: build again
            remove(entry)
            remove(target)
            target.mkdir()
            return None
        return manifest.note

    def keep(self, key: str, snapshot: Path, note: str) -> None:
        """Store a snapshot, unless this key has an entry. Does nothing if the folder is not writable.

        The snapshot must be the judge's own copy (`copy_plain`), taken before its worker knew a secret.
        """
        if self.max_bytes <= 0 or (self.folder / key).exists():
            return
        with contextlib.suppress(OSError, MachineError):  # for example a full disk: build again next time
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not is_own(self.folder):
                return
            remove_abandoned(self.folder, _ASIDE, remove)
            self._write(key, snapshot, note)
            self._evict()

    def _write(self, key: str, snapshot: Path, note: str) -> None:
        aside, lock = make_owned(self.folder, _ASIDE)
        try:
            (aside / _FILES).mkdir()
            copy_plain(snapshot, aside / _FILES)
            sha256, size_bytes = _digest(aside / _FILES)
            if size_bytes > _LARGEST_SHARE * self.max_bytes:
                remove(aside)
                return
            (aside / _MANIFEST).write_text(_Manifest(key=key, note=note, sha256=sha256).model_dump_json())
            os.rename(aside, self.folder / key)  # fails where another judge was faster
        except (OSError, MachineError):
            remove(aside)
            raise
        finally:
            os.close(lock)

    def _evict(self) -> None:
        """Remove the least recently used entries until the rest fit. A reader finds half of one to be damaged."""
        entries = [entry for entry in self.folder.iterdir() if not entry.name.startswith(_ASIDE)]
        left = self.max_bytes
        for entry in sorted(entries, key=lambda entry: -entry.stat().st_mtime_ns):
            left -= sum(path.lstat().st_size for path in entry.rglob("*"))
            if left < 0:
                remove(entry)


def _digest(folder: Path) -> tuple[str, int]:
    """Return a hash of a folder's contents, and the total size of its files.

    Times are not hashed, because file systems differ in their precision.
    """
    whole, size_bytes = hashlib.sha256(), 0
    for path in sorted(folder.rglob("*")):
        info, name = path.lstat(), path.relative_to(folder)
        if stat.S_ISDIR(info.st_mode):
            said = f"{name}/\0"
        else:
            with open(path, "rb") as file:
                said = f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()} {stat.S_IMODE(info.st_mode)}\0"
            size_bytes += info.st_size
        whole.update(said.encode("utf-8", "surrogateescape"))
    return whole.hexdigest(), size_bytes
