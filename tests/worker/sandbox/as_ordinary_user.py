"""Run a command as a user without rights: `as_ordinary_user.py FOLDER COMMAND...`, called by root.

Python may live in a folder that only root can enter. In a mount namespace of its own, such folders are replaced by
empty ones that hold nothing but what this interpreter needs, at the same paths. FOLDER becomes the user's home.
"""

from __future__ import annotations

import os
import sys

from cudal1_worker.sandbox import libc, mounts

USER = 12345


def main() -> None:
    home, command = sys.argv[1], sys.argv[2:]
    needed = sorted({os.path.realpath(path) for path in mounts.readable_paths()}, key=len)
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
    opened = [(path, os.open(path, os.O_PATH)) for path in needed]
    for closed in sorted({barrier for path in needed if (barrier := first_closed(path)) is not None}):
        libc.mount("open", closed, "tmpfs", 0, "mode=755")
        for path, fd in opened:
            if path.startswith(closed + "/") and not os.path.exists(path):
                os.makedirs(path)
                libc.mount(f"/proc/self/fd/{fd}", path, None, libc.MS_BIND | libc.MS_REC)
    os.chown(home, USER, USER)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.environ.update(HOME=home, TMPDIR=home, PYTHONDONTWRITEBYTECODE="1")
    os.execv(command[0], command)


def first_closed(path: str) -> str | None:
    """The first folder on the way to `path` that others may not enter."""
    here = ""
    for part in path.strip("/").split("/"):
        here += "/" + part
        if not os.stat(here).st_mode & 1:
            return here
    return None


if __name__ == "__main__":
    main()
