"""Namespaces: user, pid, network, ipc, uts, mount. The supervisor makes them; the worker is forked into them.

Root makes them with its own privileges, and the worker later drops to an ordinary user (`identity.py`). An ordinary
user first makes a user namespace, in which it may make the others.
"""

from __future__ import annotations

import os

from cudal1_worker.sandbox import libc
from cudal1_worker.sandbox.spec import Report, Spec

FLAGS = {
    "mount-namespace": libc.CLONE_NEWNS,
    "ipc-namespace": libc.CLONE_NEWIPC,
    "uts-namespace": libc.CLONE_NEWUTS,
    "network-namespace": libc.CLONE_NEWNET,
    "pid-namespace": libc.CLONE_NEWPID,
}


def unshare(spec: Spec, report: Report) -> None:
    """Make every namespace of `spec.layers` that this machine allows.

    Call it in a single-threaded process; its next child is process 1 of the pid namespace.
    """
    if os.geteuid() != 0 and "user-namespace" in spec.layers:
        with report.entering("user-namespace"):
            uid, gid = os.geteuid(), os.getegid()
            libc.unshare(libc.CLONE_NEWUSER)
            write_maps(uid, gid)
    # A worker needs the /proc of its pid namespace, which can only be mounted in a mount namespace.
    wanted = [name for name in FLAGS if name in spec.layers]
    if "mount-namespace" not in wanted and "pid-namespace" in wanted:
        wanted.remove("pid-namespace")
        report.missing["pid-namespace"] = "needs the mount namespace to mount its own /proc"
    for name in wanted:
        with report.entering(name):
            libc.unshare(FLAGS[name])
            # The new mount namespace starts as a peer of the old one; mounts inside must not appear outside.
            if name == "mount-namespace":
                libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)


def write_maps(uid: int, gid: int) -> None:
    """Map one user and one group into this process's user namespace, under the same numbers as outside."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
