"""Build folders: where a worker leaves what it compiles, and how a later trial of the same program finds it.

The folder is in the worker's private /tmp. A snapshot is taken after the import, or after a precompilation on inputs
that nobody else sees (`precompile.py`), so that nothing of the judge's inputs or answers can be in it. The judge copies
it itself: regular files and folders only, no links followed. `build_store.py` keeps snapshots between runs.

Where a machine has no mount namespaces the folder is one of the host, whose size nothing bounds; it is removed after
the evaluation, however deep it is and whatever its permissions are.
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
from cudal1_worker.sandbox.identity import give

from cudal1_env.sandbox.owned import make_owned, remove_abandoned

_PREFIX = "cudal1-build-"
_MAX_BYTES = 512 << 20
_MAX_ENTRIES = 20_000
_DEEPEST = 32


class BuildFolders:
    """Makes and removes build folders below one temporary folder of this judge.

    Folders of judges that were killed are removed first.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        remove_abandoned(parent, _PREFIX, remove)
        self._root, self._lock = make_owned(parent, _PREFIX)
        self._empty = Path(tempfile.mkdtemp(dir=self._root, prefix="empty-"))

    def begin(self, snapshot: Path | None, *, private: bool) -> tuple[Path, Path | None]:
        """Return the folder that a worker's build folder begins as, and what is to be removed after the worker."""
        if private:
            return snapshot or self._empty, None
        folder = Path(tempfile.mkdtemp(dir=self._root, prefix="build-"))
        if snapshot is not None:
            copy_plain(snapshot, folder)
        give(folder)
        return folder, folder

    def keep(self, folder: Path | None, pid: int) -> Path:
        """Return a copy of a worker's build folder that no worker can write to.

        Args:
            folder: The folder, where it is one of the host; None for one in the worker's own file system.
            pid: The worker, frozen.
        """
        kept = self.empty()
        source = folder or Path(f"/proc/{pid}/root{BUILD_PATH}")
        if source.is_dir() and not source.is_symlink() and os.access(source, os.R_OK | os.X_OK):
            copy_plain(source, kept)
        return kept

    def empty(self) -> Path:
        """Return a new folder that no worker can write to."""
        return Path(tempfile.mkdtemp(dir=self._root, prefix="kept-"))

    def drop(self, folder: Path | None) -> None:
        """Remove a folder."""
        if folder is not None:
            remove(folder)

    def close(self) -> None:
        """Remove everything; a second call does nothing."""
        if self._lock >= 0:
            remove(self._root)
            os.close(self._lock)
            self._lock = -1


def remove(folder: Path) -> None:
    """Remove a folder with all that an untrusted process may have left there."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):  # permissions taken away, or deeper than Python can follow
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def copy_plain(source: Path, target: Path) -> None:
    """Copy regular files and folders, with times and permissions, and nothing else.

    What is beyond a total size, a number of entries or a depth is left out; the program then builds it again.

    Args:
        source: A folder that an untrusted process wrote, and that nobody writes to now.
        target: An empty folder.
    """
    left, entries = _MAX_BYTES, 0
    for path, folders, files, folder_fd in os.fwalk(source, follow_symlinks=False):
        below = Path(path).relative_to(source)
        entries += len(folders) + len(files)
        if entries > _MAX_ENTRIES or len(below.parts) == _DEEPEST or len(str(below)) > 1024:
            folders.clear()
            continue
        here = target / below
        for name in folders:
            with contextlib.suppress(PermissionError):  # what cannot be reached is no build product
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
