"""Build folders: where a worker writes its compiled files, and how later trials of the program get them.

The folder is in the worker's private /tmp. The judge takes a snapshot after the import, or after a precompilation on
private inputs (`precompile.py`), so it cannot contain the judge's inputs or answers. The judge copies regular files and
folders only, and follows no links. `build_store.py` keeps snapshots between runs.

On machines without mount namespaces the folder is on the host, and its size is unlimited. It is removed after the
evaluation, regardless of its depth and permissions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from cudal1_worker.sandbox import BUILD_PATH

from cudal1_env.errors import writing
from cudal1_env.sandbox.owned import make_owned, remove_abandoned

_PREFIX = "cudal1-build-"
_MAX_BYTES = 512 << 20
_MAX_ENTRIES = 20_000
_DEEPEST = 32
_LONGEST_BYTES = 1024
"""Length of a folder's path below the build folder. The kernel takes paths of 4,096 bytes."""


class BuildFolders:
    """Creates and removes build folders below one temporary folder of this judge.

    The constructor removes folders that killed judges left behind.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        remove_abandoned(parent, _PREFIX, remove)
        with writing(parent):
            self._root, self._lock = make_owned(parent, _PREFIX)
        self._empty = self.made("empty-")

    def begin(self, snapshot: Path | None, *, private: bool) -> tuple[Path, Path | None]:
        """Return the folder to use as a worker's build folder, and the host folder to remove afterwards, if any."""
        if private:
            return snapshot or self._empty, None
        folder = self.made("build-")
        if snapshot is not None:
            copy_plain(snapshot, folder)
        return folder, folder

    def keep(self, folder: Path | None, pid: int) -> Path:
        """Return a copy of a frozen worker's build folder that no worker can write to.

        Without a `folder` on the host, it is in the worker's own file system.
        """
        kept = self.made("kept-")
        source = folder or Path(f"/proc/{pid}/root{BUILD_PATH}")
        try:
            if source.is_dir() and not source.is_symlink() and os.access(source, os.R_OK | os.X_OK):
                copy_plain(source, kept)
        except BaseException:
            remove(kept)
            raise
        return kept

    def made(self, prefix: str) -> Path:
        """Return a new folder; workers write only to those that `begin` returns."""
        with writing(self._root):
            return Path(tempfile.mkdtemp(dir=self._root, prefix=prefix))

    def drop(self, folder: Path | None) -> None:
        """Remove a folder."""
        if folder is not None:
            remove(folder)

    def close(self) -> None:
        """Remove all folders; a second call does nothing."""
        if self._lock >= 0:
            remove(self._root)
            os.close(self._lock)
            self._lock = -1


def remove(folder: Path) -> None:
    """Remove a folder with everything that an untrusted process may have left there."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):  # permissions taken away, or deeper than Python can follow
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def copy_plain(source: Path, target: Path) -> None:
    """Copy only regular files and folders, with times and permissions.

    An untrusted process wrote the source, and no longer writes. Entries beyond a total size, number or depth are
    skipped; the program builds them again.

    Raises:
        MachineError: The target cannot be written, as on a full disk.
    """
    left, entries = _MAX_BYTES, 0
    for path, folders, files, folder_fd in os.fwalk(source, follow_symlinks=False):
        below = Path(path).relative_to(source)
        entries += len(folders) + len(files)
        if entries > _MAX_ENTRIES or len(below.parts) == _DEEPEST or len(os.fsencode(below)) > _LONGEST_BYTES:
            folders.clear()
            continue
        here = target / below
        for name in folders:
            with contextlib.suppress(PermissionError):  # unreachable: not a build product
                if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
                    with writing(target):
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
                with writing(target), open(here / name, "xb") as out:
                    shutil.copyfileobj(file, out)
                os.chmod(here / name, stat.S_IMODE(info.st_mode) & 0o755)
                os.utime(here / name, ns=(info.st_atime_ns, info.st_mtime_ns))
