"""User identity of the worker: an ordinary user without groups or capabilities, in a user namespace of its own.

Root drops to `NOBODY` after the mounts. The user namespace that it then enters owns none of the other namespaces
and holds no capability: it is there because the kernel counts a user's processes for each user namespace apart
(Linux 5.14 and later), so that `RLIMIT_NPROC` binds one worker and not all workers of the machine together.
"""

from __future__ import annotations

import contextlib
import os

from cudal1_worker.sandbox import libc, namespaces
from cudal1_worker.sandbox.spec import NOBODY, Report, Spec

_LAST_CAPABILITY = 63


def unreachable(spec: Spec) -> str | None:
    """Return the first folder of Python's that `NOBODY` could not enter, or None. For root, after the mounts."""
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        return next(
            (
                path
                for path in spec.readable
                if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK, effective_ids=True)
            ),
            None,
        )
    finally:
        os.seteuid(0)
        os.setegid(0)


def drop(spec: Spec, report: Report) -> None:
    """Become an ordinary user without capabilities."""
    root = os.geteuid() == 0
    if root and "unprivileged-uid" in spec.layers:
        with report.entering("unprivileged-uid"):
            if blocked := unreachable(spec):
                raise OSError(f"{blocked} cannot be read by uid {NOBODY}: install Python where everybody may read it")
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            _forbid_capabilities()
            os.setresuid(NOBODY, NOBODY, NOBODY)
        # Changing the user made /proc/self root's; the files there must be the worker's own again.
        libc.prctl(libc.PR_SET_DUMPABLE, 1)
        if "user-namespace" in spec.layers and "unprivileged-uid" in report.entered:
            with report.entering("user-namespace"):
                libc.unshare(libc.CLONE_NEWUSER)
                namespaces.write_maps(NOBODY, NOBODY)
                _forbid_capabilities()  # a new user namespace begins with all of them
    elif not root:
        report.entered.append("unprivileged-uid")
        _forbid_capabilities()
    if os.geteuid() != 0:
        libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
        libc.drop_capabilities()
    libc.prctl(libc.PR_SET_DUMPABLE, 1)


def give(folder: str | os.PathLike[str]) -> None:
    """Let workers write to a folder and all in it: root's run as `NOBODY`, others as who made the folder."""
    if os.geteuid() != 0:
        return
    for path, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(path, name), NOBODY, NOBODY, follow_symlinks=False)


def _forbid_capabilities() -> None:
    """Empty the bounding set, so that no program run later can hold a capability."""
    with contextlib.suppress(OSError):  # no right to do so, or past the last capability that this kernel knows
        for number in range(_LAST_CAPABILITY):
            libc.prctl(libc.PR_CAPBSET_DROP, number)
