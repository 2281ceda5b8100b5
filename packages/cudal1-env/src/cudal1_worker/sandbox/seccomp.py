"""System calls that a worker may not make.

Calls without an honest use in tensor programs kill the process with SIGSYS, which the judge reports as tampering. Calls
that honest runtimes try but do not need fail with an error. All others are allowed; the other layers limit what they
can reach.

Some refusals keep a frozen worker frozen: otherwise the kernel could send it SIGCONT through a POSIX timer, a message
queue, a descriptor with F_SETSIG, or at its parent's death.
"""

from __future__ import annotations

import ctypes
import errno
import platform

from cudal1_worker.sandbox import bpf, libc

_SET_MODE_FILTER = 1
_FLAG_NEW_LISTENER = 8

_NEWEST = 470
"""Highest known call number; higher numbers fail with ENOSYS, as on an older kernel."""

# Call numbers on x86-64.
FORK = 57
VFORK = 58
EXECVE = 59
EXECVEAT = 322
CLONE = 56
CLONE3 = 435
_UNSHARE = 272
_SOCKET = 41
_SOCKETPAIR = 53
_PRCTL = 157
_FCNTL = 72
_PERSONALITY = 135

KILLED = {
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "pidfd_getfd": 438,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "create_module": 174,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "reboot": 169,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "iopl": 172,
    "ioperm": 173,
    "settimeofday": 164,
    "clock_settime": 227,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "open_tree": 428,
    "open_tree_attr": 467,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
}
"""Calls without an honest use."""

REFUSED = {
    # Honest OpenMP runtimes try these, but only the judge decides where and how a worker runs.
    "sched_setaffinity": 203,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "sched_setattr": 314,
    "setpriority": 141,
    "ioprio_set": 251,
    # Would wake a stopped process.
    "timer_create": 222,
    "mq_open": 240,
    "mq_notify": 244,
    # Timers fire on the worker's core while it is frozen: thousands could disturb the other arm's sample (10 us each).
    "timerfd_create": 283,
    # Would create memory that the judge cannot read.
    "memfd_secret": 447,
    "process_madvise": 440,
    "process_mrelease": 448,
    "open_by_handle_at": 304,
    "fanotify_init": 300,
    "adjtimex": 159,
    "clock_adjtime": 305,
    "quotactl": 179,
    "quotactl_fd": 443,
    "syslog": 103,
    "sethostname": 170,
    "setdomainname": 171,
    "modify_ldt": 154,
    "vhangup": 153,
    "lsm_set_self_attr": 460,
    "seccomp": 317,
}
"""Calls that fail with EPERM."""

ABSENT = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "io_setup": 206, "clone3": CLONE3}
"""Calls that fail with ENOSYS: libraries probe them and have alternatives (glibc's threads then use clone)."""

_PRCTL_REFUSED = (
    libc.PR_SET_PDEATHSIG,  # the worker dies with its supervisor
    libc.PR_SET_DUMPABLE,  # the judge reads its memory
    libc.PR_SET_SECCOMP,
    35,  # PR_SET_MM
    62,  # PR_SCHED_CORE
    0x59616D61,  # PR_SET_PTRACER
)
_F_SETSIG = 10
_AF_UNIX = 1
_NAMESPACES = (
    libc.CLONE_NEWNS
    | libc.CLONE_NEWCGROUP
    | libc.CLONE_NEWUTS
    | libc.CLONE_NEWIPC
    | libc.CLONE_NEWUSER
    | libc.CLONE_NEWPID
    | libc.CLONE_NEWNET
)


def enter(*, gate: bool = False) -> int | None:
    """Install the filter permanently. Needs no_new_privs (or root).

    Args:
        gate: Let the holder of the listener's descriptor decide on calls that create or replace a process.

    Returns:
        The listener's descriptor with `gate`, else None.

    Raises:
        OSError: The kernel refuses, or the machine is not x86-64.
    """
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"the filter supports only x86_64; this machine is {platform.machine()}")
    program = bpf.Program.of(rules(bpf.NOTIFY if gate else bpf.ALLOW))
    flags = _FLAG_NEW_LISTENER if gate else 0
    result = libc.syscall(REFUSED["seccomp"], _SET_MODE_FILTER, flags, ctypes.byref(program), call="seccomp")
    return result if gate else None


def rules(new_process: int) -> list[bpf.Instruction]:
    """Return the filter's program; `new_process` is the action on calls that create or replace a process."""
    refuse, absent = bpf.errno(errno.EPERM), bpf.errno(errno.ENOSYS)
    namespaces = ("any-bit", _NAMESPACES, bpf.KILL_PROCESS)
    decisions = [
        bpf.prologue(_NEWEST, absent),
        *(bpf.on_call(number, bpf.KILL_PROCESS) for number in KILLED.values()),
        *(bpf.on_call(number, refuse) for number in REFUSED.values()),
        *(bpf.on_call(number, absent) for number in ABSENT.values()),
        bpf.on_argument(_SOCKET, 0, [("equal", _AF_UNIX, bpf.ALLOW)], refuse),
        bpf.on_argument(_SOCKETPAIR, 0, [("equal", _AF_UNIX, bpf.ALLOW)], refuse),
        bpf.on_argument(_PRCTL, 0, [("equal", name, refuse) for name in _PRCTL_REFUSED], bpf.ALLOW),
        bpf.on_argument(_FCNTL, 1, [("equal", _F_SETSIG, refuse)], bpf.ALLOW),
        bpf.on_argument(_PERSONALITY, 0, [("equal", 0, bpf.ALLOW), ("equal", 0xFFFFFFFF, bpf.ALLOW)], refuse),
        bpf.on_argument(_UNSHARE, 0, [namespaces], bpf.ALLOW),
        bpf.on_argument(CLONE, 0, [namespaces, ("any-bit", libc.CLONE_THREAD, bpf.ALLOW)], new_process),
        *(bpf.on_call(number, new_process) for number in (FORK, VFORK, EXECVE, EXECVEAT)),
    ]
    return bpf.finish(decisions)
