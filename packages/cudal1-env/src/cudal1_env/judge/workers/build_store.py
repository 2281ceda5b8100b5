"""The store of builds: what programs compiled, kept between runs for later verdicts on the same program.

An entry is a folder: files of a snapshot, and a manifest with their hash. It is written aside and renamed, so readers
see a whole entry or none; judges of one host need no lock. What is not as its manifest says is removed and built again.
Only the judge reads and writes here: workers get copies, and a store is used only where workers have a file system of
their own. Decision 010 says what a program gains from an entry of its own: nothing that its import cannot compute.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cudal1_env.calibration import cache_folder
from cudal1_env.judge.workers.build_folders import copy_plain, remove
from cudal1_env.records import PROTOCOL_VERSION
from cudal1_env.sandbox.owned import make_owned, remove_abandoned

_ASIDE = "new-"
_GONE = "gone-"
_MANIFEST = "manifest.json"
_FILES = "files"
_LARGEST_SHARE = 0.25
"""Share of the store that one entry may take."""
_LOOK_SHARE = 0.05
"""After so much of the store was written, the judge looks how much there is."""


class BuildKey(BaseModel):
    """Everything on which what a program compiles depends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: str = PROTOCOL_VERSION
    """Version of the protocol."""
    program: str
    """The program's text."""
    reference: str
    """The reference's text: with it come the inputs' shapes."""
    layers: tuple[str, ...]
    """Sandbox layers of its workers."""
    toolchain: str
    """Compilers, torch, Triton and Python, with their versions (`toolchain.py`)."""
    architecture: str
    """CPU or GPU that programs are compiled for."""
    flags: tuple[tuple[str, str], ...]
    """Environment of its workers, and how products are computed."""

    @property
    def name(self) -> str:
        """Name of the entry."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    key: BuildKey
    note: str
    """How the program's call on made-up inputs failed, if it did."""
    sha256: str
    """Of all that the entry holds (`_digest`)."""


class BuildStore:
    """Entries in a folder, the least recently used of which are removed when they take too many bytes together.

    Args:
        max_bytes: Most bytes of all entries; 0 keeps nothing and finds nothing.
        folder: Where; by default `cudal1/builds` in the user's cache folder.
    """

    def __init__(self, max_bytes: int, folder: Path | None = None) -> None:
        self.max_bytes = max_bytes
        self.folder = folder or cache_folder() / "builds"
        self._unseen_bytes = float(max_bytes)
        """Written since the last look at all entries."""

    def find(self, key: BuildKey, target: Path) -> str | None:
        """Copy an entry.

        Returns:
            The entry's note; None where there is no entry, or none that is whole: `target` is empty then.
        """
        entry = self.folder / key.name
        if self.max_bytes <= 0 or not self._is_own() or not entry.is_dir():
            return None
        try:
            manifest = _Manifest.model_validate_json((entry / _MANIFEST).read_bytes())
            if manifest.key != key:
                raise ValueError("the entry is of another key")
            copy_plain(entry / _FILES, target)
            if _digest(target)[0] != manifest.sha256:
                raise ValueError("the entry is damaged")
            with contextlib.suppress(PermissionError):
                os.utime(entry / _MANIFEST)
        except (OSError, ValueError, ValidationError):  # damaged, or removed meanwhile: it is built again
            self._remove(entry)
            remove(target)
            target.mkdir()
            return None
        return manifest.note

    def keep(self, key: BuildKey, snapshot: Path, note: str) -> None:
        """Keep a snapshot, unless there is one of this key. A folder that cannot be written keeps nothing.

        A snapshot is the judge's own copy (`copy_plain`), taken before its worker knew a secret.
        """
        if self.max_bytes <= 0 or (self.folder / key.name).exists():
            return
        with contextlib.suppress(OSError):  # a full disk, say: the program is built again
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_own():
                return
            remove_abandoned(self.folder, _ASIDE, remove)
            remove_abandoned(self.folder, _GONE, remove)
            self._unseen_bytes += self._write(key, snapshot, note)
            if self._unseen_bytes > _LOOK_SHARE * self.max_bytes:
                self._evict()

    def _is_own(self) -> bool:
        """Whether nobody but this user can write to the folder."""
        try:
            info = self.folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022

    def _write(self, key: BuildKey, snapshot: Path, note: str) -> int:
        aside, lock = make_owned(self.folder, _ASIDE)
        try:
            (aside / _FILES).mkdir()
            copy_plain(snapshot, aside / _FILES)
            sha256, size_bytes = _digest(aside / _FILES)
            if size_bytes > _LARGEST_SHARE * self.max_bytes:
                remove(aside)
                return 0
            (aside / _MANIFEST).write_text(_Manifest(key=key, note=note, sha256=sha256).model_dump_json())
            os.rename(aside, self.folder / key.name)  # fails where another judge was faster
            return size_bytes
        except OSError:
            remove(aside)
            raise
        finally:
            os.close(lock)

    def _evict(self) -> None:
        """Remove entries until the rest have room, and as much is free as is written between two looks."""
        self._unseen_bytes = 0.0
        entries = sorted(self._entries(), reverse=True)
        left = (1.0 - _LOOK_SHARE) * self.max_bytes
        for _, size_bytes, entry in entries:
            left -= size_bytes
            if left < 0:
                self._remove(entry)

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """When each entry was used last, its bytes, and where it is."""
        for entry in self.folder.iterdir():
            if entry.name.startswith((_ASIDE, _GONE)):
                continue
            try:
                used_ns = (entry / _MANIFEST).stat().st_mtime_ns
                found = [path.lstat() for path in entry.rglob("*")]
            except FileNotFoundError:
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - entry.lstat().st_mtime > 60.0:  # no entry, and none is being made
                        self._remove(entry)
                continue
            yield used_ns, sum(one.st_size for one in found if stat.S_ISREG(one.st_mode)), entry

    def _remove(self, entry: Path) -> None:
        """Remove an entry as a whole: readers find it, or do not."""
        gone = self.folder / f"{_GONE}{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):  # another judge was faster, or has it
            os.rename(entry, gone)
            remove(gone)


def _digest(folder: Path) -> tuple[str, int]:
    """Return a hash of all that a folder holds, and the bytes of its files.

    Times are not hashed: file systems keep them with different precision.
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
