"""The store of builds: what programs compiled, kept between runs for later verdicts on the same program.

An entry is a folder: the snapshot's files and a manifest with their hashes. It is written aside and renamed, so readers
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
from cudal1_env.judge.workers.build_folders import remove
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


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    sha256: str
    mode: int
    mtime_ns: int
    size_bytes: int


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    key: BuildKey
    note: str
    """How the program's call on made-up inputs failed, if it did."""
    folders: tuple[str, ...]
    files: tuple[_File, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(one.size_bytes for one in self.files)


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

        Args:
            key: What is wanted.
            target: An empty folder, which takes the files.

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
            _copy_out(manifest, entry / _FILES, target)
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

        Args:
            key: What it depends on.
            snapshot: The judge's own copy of a build folder (`copy_plain`), taken before its worker knew a secret.
            note: How the program's call on made-up inputs failed, if it did.
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
            folders, files = _copy_in(snapshot, aside / _FILES)
            manifest = _Manifest(key=key, note=note, folders=folders, files=files)
            if manifest.size_bytes > _LARGEST_SHARE * self.max_bytes:
                remove(aside)
                return 0
            (aside / _MANIFEST).write_text(manifest.model_dump_json())
            os.rename(aside, self.folder / key.name)  # fails where another judge was faster
            return manifest.size_bytes
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
                if time.time() - _changed_s(entry) > 60.0:  # no entry at all, and nobody is at it
                    self._remove(entry)
                continue
            yield used_ns, sum(one.st_size for one in found if stat.S_ISREG(one.st_mode)), entry

    def _remove(self, entry: Path) -> None:
        """Remove an entry as a whole: readers find it, or do not."""
        gone = self.folder / f"{_GONE}{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):  # another judge was faster, or has it
            os.rename(entry, gone)
            remove(gone)


def _changed_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return time.time()


def _copy_in(source: Path, target: Path) -> tuple[tuple[str, ...], tuple[_File, ...]]:
    """Copy a snapshot; return what it holds."""
    folders: list[str] = []
    files: list[_File] = []
    target.mkdir()
    for path in sorted(source.rglob("*")):  # a folder comes before what it holds
        info, name = path.lstat(), str(path.relative_to(source))
        if stat.S_ISDIR(info.st_mode):
            (target / name).mkdir()
            folders.append(name)
        elif stat.S_ISREG(info.st_mode):
            digest, size_bytes = _copy(path, target / name)
            mode = stat.S_IMODE(info.st_mode) & 0o755
            one = _File(path=name, sha256=digest, mode=mode, mtime_ns=info.st_mtime_ns, size_bytes=size_bytes)
            files.append(one)
    return tuple(folders), tuple(files)


def _copy_out(manifest: _Manifest, source: Path, target: Path) -> None:
    """Copy the files of a manifest.

    Raises:
        OSError: One is not there.
        ValueError: One is not what the manifest says.
    """
    for name in manifest.folders:
        _inside(target, name).mkdir()
    for one in manifest.files:
        path = _inside(target, one.path)
        if _copy(_inside(source, one.path), path)[0] != one.sha256:
            raise ValueError(f"{one.path} is damaged")
        os.chmod(path, one.mode)
        os.utime(path, ns=(one.mtime_ns, one.mtime_ns))


def _inside(folder: Path, name: str) -> Path:
    """A path below a folder.

    Raises:
        ValueError: It leads out of the folder.
    """
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise ValueError(f"{name} leads out of the entry")
    return folder / name


def _copy(source: Path, target: Path) -> tuple[str, int]:
    """Copy one regular file; return its hash and size."""
    sha256, size_bytes = hashlib.sha256(), 0
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file, open(target, "xb") as out:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
            out.write(chunk)
            size_bytes += len(chunk)
    return sha256.hexdigest(), size_bytes
