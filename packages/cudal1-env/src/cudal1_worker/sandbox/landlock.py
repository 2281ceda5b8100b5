"""Landlock: the worker may read and execute all visible files, and write only in its own folders.

The mounts decide the rights that Landlock does not handle here (reading, executing). From ABI 4, TCP is refused; from
ABI 6, so are abstract sockets of outside processes and signals to them.
"""

from __future__ import annotations

import ctypes
import os
import stat

from cudal1_worker.sandbox import libc
from cudal1_worker.sandbox.mounts import DEVICES
from cudal1_worker.sandbox.spec import Report, Spec

# Call numbers on x86-64.
_CREATE = 444
_ADD_RULE = 445
_RESTRICT = 446
_CREATE_VERSION = 1
_PATH_BENEATH = 1

# Access rights.
_WRITE_FILE = 1 << 1
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))
"""Rights to remove and create entries of every kind."""
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_TCP = 3
_SCOPES = 3


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def enter(spec: Spec, report: Report) -> None:
    """Restrict this process and all its children.

    Raises:
        OSError: The kernel lacks Landlock or refuses.
    """
    version = libc.syscall(_CREATE, 0, 0, _CREATE_VERSION, call="landlock_create_ruleset")
    handled = _WRITE_FILE | _CHANGE_FOLDERS
    handled |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled |= _IOCTL_DEV if version >= 5 else 0
    ruleset = _Ruleset(handled, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = libc.syscall(_CREATE, ctypes.byref(ruleset), size, 0, call="landlock_create_ruleset")
    try:
        for path in writable(spec, report):
            _allow(rules, path, handled)
        libc.syscall(_RESTRICT, rules, 0, call="landlock_restrict_self")
    finally:
        os.close(rules)


def writable(spec: Spec, report: Report) -> list[str]:
    """Return the paths below which the worker may write."""
    own = "mount-namespace" in report.entered
    paths = ["/tmp", "/dev"] if own else [f"/dev/{name}" for name in DEVICES]
    if spec.build_dir is not None and not own:
        paths.append(spec.build_dir)
    if spec.device == "cuda":
        # The driver names its threads in /proc/PID/task/TID/comm and fails with error 304 otherwise. A rule is for a
        # file that exists, and these do not yet.
        paths.append("/proc")
        if not own:
            paths.extend(f"/dev/{name}" for name in spec.nvidia_nodes())
    return paths


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
        rule = _PathBeneath(rights, fd)
        libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0, call=f"landlock_add_rule for {path}")
    finally:
        os.close(fd)
