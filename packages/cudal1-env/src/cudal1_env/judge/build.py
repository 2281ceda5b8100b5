"""Build folders: where a worker leaves what it compiled, and how a later launch of the same program finds it.

A snapshot is taken after the import and before any input exists, so that nothing but build products can be in it. The
judge copies it itself: regular files and folders only, no links followed.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from cudal1_worker.sandbox import NOBODY

_MOST_BYTES = 512 << 20


class BuildFolders:
    """Makes and removes build folders below one temporary folder of this judge."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="cudal1-judge-"))
        self._root.chmod(0o711)

    def fresh(self, snapshot: Path | None = None) -> Path:
        """Return a new folder that a worker may write to, holding a copy of `snapshot` if there is one."""
        folder = Path(tempfile.mkdtemp(dir=self._root, prefix="build-"))
        if snapshot is not None:
            copy_plain(snapshot, folder)
        _give(folder)
        return folder

    def keep(self, folder: Path) -> Path:
        """Return a copy of a worker's build folder that no worker can write to. The worker must be frozen."""
        kept = Path(tempfile.mkdtemp(dir=self._root, prefix="kept-"))
        copy_plain(folder, kept)
        return kept

    def drop(self, folder: Path | None) -> None:
        """Remove a folder."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._root, ignore_errors=True)


def copy_plain(source: Path, target: Path, *, most_bytes: int = _MOST_BYTES) -> None:
    """Copy regular files and folders, with times and permissions, and nothing else; stop at a total size.

    Args:
        source: A folder that an untrusted process wrote.
        target: An empty folder.
        most_bytes: Files beyond this total are left out; the program then builds them again.
    """
    left = most_bytes
    for path, folders, files, folder_fd in os.fwalk(source, follow_symlinks=False):
        here = target / Path(path).relative_to(source)
        for name in folders:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
                (here / name).mkdir()
        for name in files:
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
            except OSError:  # a link, or unreadable: not a build product
                continue
            with os.fdopen(fd, "rb") as file:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode) or info.st_size > left:
                    continue
                left -= info.st_size
                with open(here / name, "xb") as out:
                    shutil.copyfileobj(file, out)
                os.chmod(here / name, stat.S_IMODE(info.st_mode) & 0o755)
                os.utime(here / name, ns=(info.st_atime_ns, info.st_mtime_ns))


def _give(folder: Path) -> None:
    """Let workers write to a folder (root's workers run as nobody)."""
    if os.getuid() != 0:
        return
    for path, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(path, name), NOBODY, NOBODY, follow_symlinks=False)
