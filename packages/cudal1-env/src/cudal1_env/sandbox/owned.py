"""Folders with an owner process, so that the next judge can remove those that a killed judge left behind.

A folder belongs to the process that holds a lock (flock) on it. The kernel releases the lock when that process ends
in any way, so a folder with a free lock has no owner. Pids are not compared: they are reused, and differ between
containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_owned(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder with a random name that belongs to this process.

    Args:
        parent: Parent folder.
        prefix: Prefix of its name.

    Returns:
        The folder, and the descriptor that holds its lock; closing it releases the folder.

    Raises:
        OSError: The folder cannot be made in `parent`.
    """
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o711)
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(folder, _FLAGS)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if folder.exists():
                return folder, fd
            os.close(fd)  # another judge found it before it was locked, and removed it


def remove_abandoned(parent: Path, prefix: str, remove: Callable[[Path], None]) -> None:
    """Remove this user's folders that belong to no living process.

    Args:
        parent: Parent folder.
        prefix: Prefix of their names.
        remove: Removes one folder.
    """
    for folder in parent.glob(f"{prefix}*"):
        try:
            fd = os.open(folder, _FLAGS)
        except OSError:  # it no longer exists, is a link, or is another user's
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                with contextlib.suppress(BlockingIOError):  # its owner is alive
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder)
        finally:
            os.close(fd)
