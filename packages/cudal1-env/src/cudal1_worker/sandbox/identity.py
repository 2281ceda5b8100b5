"""User identity of the worker: an ordinary user without groups or capabilities, in its own user namespace.

Root drops to `spec.user` after the mounts, then enters a user namespace that owns none of the other namespaces and has
no capability. Its purpose is `RLIMIT_NPROC`: since Linux 5.14 the kernel counts a user's processes in each user
namespace separately, so the limit applies to one worker instead of all workers of the machine.
"""

from __future__ import annotations

import contextlib
import os

from cudal1_worker.sandbox import libc, namespaces
from cudal1_worker.sandbox.spec import Report, Spec

_LAST_CAPABILITY = 63


def unreachable(spec: Spec) -> str | None:
    """Return the first readable folder that the worker's user cannot enter, or None.

    Call it as root, after the mounts.
    """
    os.setegid(spec.user)
    os.seteuid(spec.user)
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
                raise OSError(
                    f"{blocked} is not readable for uid {spec.user}; install Python where all users can read it"
                )
            os.setgroups([])
            if spec.build_dir is not None and "mount-namespace" not in report.entered:
                give(spec.build_dir, spec.user)
            os.setresgid(spec.user, spec.user, spec.user)
            _forbid_capabilities()
            os.setresuid(spec.user, spec.user, spec.user)
        # The change of user made /proc/self owned by root; make it the worker's again.
        libc.prctl(libc.PR_SET_DUMPABLE, 1)
        if "user-namespace" in spec.layers and "unprivileged-uid" in report.entered:
            with report.entering("user-namespace"):
                libc.unshare(libc.CLONE_NEWUSER)
                namespaces.write_maps(spec.user, spec.user)
                _forbid_capabilities()  # a new user namespace starts with all of them
    elif not root:
        report.entered.append("unprivileged-uid")
        _forbid_capabilities()
    if os.geteuid() != 0:
        libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
        libc.drop_capabilities()
    libc.prctl(libc.PR_SET_DUMPABLE, 1)


def give(folder: str | os.PathLike[str], user: int) -> None:
    """Let a worker write to a folder and its contents: root's worker runs as `user`, others as the folder's owner."""
    if os.geteuid() != 0:
        return
    for path, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(path, name), user, user, follow_symlinks=False)


def _forbid_capabilities() -> None:
    """Empty the bounding set, so that no later program can hold a capability."""
    with contextlib.suppress(OSError):  # not permitted, or past this kernel's last capability
        for number in range(_LAST_CAPABILITY):
            libc.prctl(libc.PR_CAPBSET_DROP, number)
