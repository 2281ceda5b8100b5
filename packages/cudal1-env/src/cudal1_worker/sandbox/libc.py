"""System calls that Python 3.11 lacks, through ctypes, without any policy.

Every function raises `OSError` with the call's name if the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

# Flags of unshare(2) and clone(2).
CLONE_THREAD = 0x00010000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# Flags of mount(2) and umount2(2).
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

# Operations of prctl(2).
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_SYS_PIVOT_ROOT = 155
_SYS_CAPSET = 126
_CAPABILITY_VERSION_3 = 0x20080522


def check(result: int, call: str) -> int:
    """Return `result`, or raise the error of the call that returned -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object, call: str) -> int:
    """Make a raw system call.

    Args:
        number: The call's number on x86-64.
        *arguments: Integers (passed as 64 bits) or ctypes objects.
        call: The call's name, for the error.
    """
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return check(_syscall(ctypes.c_long(number), *words), call)


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the kinds in `flags`."""
    check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def prctl(operation: int, first: int = 0, second: int = 0) -> int:
    """Change a property of this process."""
    zero = ctypes.c_ulong(0)
    return check(
        _libc.prctl(ctypes.c_int(operation), ctypes.c_ulong(first), ctypes.c_ulong(second), zero, zero), "prctl"
    )


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount `source` on `target`."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    check(
        _libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode()),
        f"mount of {source or kind or 'flags'} on {target}",
    )


def pivot_root() -> None:
    """Make the working directory the root of this mount namespace, and detach the old one."""
    here = ctypes.c_char_p(b".")
    syscall(_SYS_PIVOT_ROOT, here, here, call="pivot_root")
    check(_libc.umount2(here, MNT_DETACH), "umount2 of the old root")


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    """Empty every capability set of this process."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    syscall(_SYS_CAPSET, ctypes.byref(header), ctypes.byref(nothing), call="capset")
