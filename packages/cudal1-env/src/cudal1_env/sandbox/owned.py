"""Folders that a killed judge leaves behind, and how the next judge knows them.

A folder belongs to the process that holds a lock (flock) on it. The kernel releases the lock when that process ends,
however it ends, so a folder whose lock is free has no owner. Pids are not compared: they are reused, and mean nothing
in another container.
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
        parent: Where.
        prefix: How its name begins.

    Returns:
        The folder, and the descriptor that holds it; closing that gives it up.

    Raises:
        OSError: `parent` refuses folders.
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
        parent: Where.
        prefix: How their names begin.
        remove: Removes one of them.
    """
    for folder in parent.glob(f"{prefix}*"):
        try:
            fd = os.open(folder, _FLAGS)
        except OSError:  # it is gone, a link, or another user's
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                with contextlib.suppress(BlockingIOError):  # its owner lives
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder)
        finally:
            os.close(fd)
