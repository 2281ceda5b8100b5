"""The worker's file system: a new read-only root with only what a program needs, and a private /tmp.

It contains the system's folders (`SYSTEM`), `spec.readable` and a /dev with a few harmless nodes. Home folders, /run
(with the sockets of other services), /var and the rest of the host do not exist inside. /proc is the worker's own.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys

from cudal1_worker.sandbox import identity, libc
from cudal1_worker.sandbox.spec import BUILD_PATH, HEADERS_PATH, Spec

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/sys")
"""Folders of the system; links (`/bin` to `usr/bin`) are recreated as links."""

DEVICES = ("null", "zero", "full", "random", "urandom")
"""Harmless nodes of /dev."""

PROC_READ_ONLY = ("sys", "irq", "bus", "sysrq-trigger", "fs", "acpi", "scsi")
"""Parts of /proc that affect the whole machine."""

UNSEEN = ("/sys/fs/cgroup",)
"""Folders that say what other workers do, such as how many threads they have."""

PRIVATE = ("/tmp", "/dev/shm")
"""Folders of the worker's own, for writing."""

_QUIET = libc.MS_NOSUID | libc.MS_NODEV
_MAX_FILES = 200_000


def readable_paths() -> tuple[str, ...]:
    """Return the folders of this interpreter, its packages and the search paths.

    The current folder is left out even if it is on `sys.path`, because it may contain anything. So may the folder of
    the running script, which Python puts first.
    """
    cwd, script = os.getcwd(), getattr(sys.modules["__main__"], "__file__", None)
    is_first = script is not None and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(script))
    candidates = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path[is_first:]]
    for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        candidates.append(os.environ.get(name, ""))
    for name in ("PATH", "LD_LIBRARY_PATH"):
        candidates.extend(os.environ.get(name, "").split(":"))
    kept = {path for path in candidates if path.startswith("/") and os.path.isdir(path) and path not in ("/", cwd)}
    return tuple(sorted(kept))


def enter(spec: Spec, *, own_proc: bool) -> None:
    """Build the new root and switch this mount namespace to it. The working directory becomes /tmp."""
    folders, links = _visible(spec)
    sources = _open(folders)
    build = _open([spec.build_dir] if spec.build_dir is not None else [])
    headers = _open([spec.headers] if spec.headers is not None else [])
    names = [*DEVICES, *(spec.nvidia_nodes() if spec.device == "cuda" else [])]
    devices = _open([f"/dev/{name}" for name in names])
    null = os.open("/dev/null", os.O_PATH)
    root = "/tmp"  # any folder works: everything below it was opened above
    libc.mount("root", root, "tmpfs", _QUIET, "size=16m,mode=755")
    for path, fd in sources:
        _bind(fd, root + path)
    for path, target in links.items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(target, root + path)
    for folder in ("/proc", "/tmp", "/dev/shm", "/var", "/run"):
        os.makedirs(root + folder, exist_ok=True)
    if not os.path.lexists(root + "/var/tmp"):  # a visible project may be there
        os.symlink("/tmp", root + "/var/tmp")
    for path, fd in devices:
        _bind(fd, root + path)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    _mount_proc(root + "/proc", own=own_proc)
    for folder in PRIVATE:
        data = f"size={spec.tmp_bytes},nr_inodes={_MAX_FILES},mode=1777"
        libc.mount("private", root + folder, "tmpfs", _QUIET, data)
        for path, fd in sources:  # the mount covers projects below /tmp: bind them again
            if path.startswith(folder + "/"):
                _bind(fd, root + path)
    for _, fd in build:
        _copy(fd, root + BUILD_PATH, spec.user)
    for _, fd in headers:
        _bind(fd, root + HEADERS_PATH)
    for path in spec.hidden:
        _hide(root + path, null)
    for _, fd in [*sources, *build, *headers, *devices, ("", null)]:
        os.close(fd)
    os.chdir(root)
    libc.pivot_root()
    _make_read_only()
    for path in filter(os.path.isdir, UNSEEN):  # now, because what is covered stays as it is
        _cover(path)
    os.chdir("/tmp")


def _visible(spec: Spec) -> tuple[list[str], dict[str, str]]:
    """Return the folders to bind, by real name, shortest first, and the links that lead to them."""
    real: set[str] = set()
    links: dict[str, str] = {}
    for path in (*SYSTEM, *spec.readable):
        real.add(os.path.realpath(path))
        links.update(_links(path))
    kept: list[str] = []
    for path in sorted(real, key=len):
        if path != "/" and not _below(path, kept):
            kept.append(path)
    return kept, {link: target for link, target in links.items() if not _below(link, kept)}


def _links(path: str) -> dict[str, str]:
    """Return every link on the way to `path`, with its target as written."""
    found: dict[str, str] = {}
    left = [part for part in path.split("/") if part]
    here = "/"
    while left:
        part = left.pop(0)
        step = os.path.normpath(os.path.join(here, part))
        if step in found:  # a loop
            break
        if os.path.islink(step):
            found[step] = os.readlink(step)
            here = "/" if found[step].startswith("/") else here
            left = [piece for piece in found[step].split("/") if piece] + left
        else:
            here = step
    return found


def _below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _open(paths: list[str]) -> list[tuple[str, int]]:
    """Open each path that exists and is reachable, so that it can be bound after its name is covered."""
    opened: list[tuple[str, int]] = []
    for path in paths:
        try:
            opened.append((path, os.open(path, os.O_PATH | os.O_CLOEXEC)))
        except OSError:  # absent (`/lib32`) or unreachable for this user: not visible inside either
            continue
    return opened


def _bind(fd: int, target: str) -> None:
    """Bind the open path `fd` to `target`."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    libc.mount(f"/proc/self/fd/{fd}", target, None, libc.MS_BIND | libc.MS_REC)


def _copy(fd: int, target: str, user: int) -> None:
    """Copy a folder written by the judge, including times, and give the copy to the worker."""
    shutil.copytree(f"/proc/self/fd/{fd}", target)
    os.chmod(target, 0o755)
    identity.give(target, user)


def _mount_proc(target: str, *, own: bool) -> None:
    if not own:
        libc.mount("/proc", target, None, libc.MS_BIND | libc.MS_REC)
        return
    libc.mount("proc", target, "proc", _QUIET | libc.MS_NOEXEC)
    for name in PROC_READ_ONLY:
        path = f"{target}/{name}"
        if os.path.lexists(path):
            libc.mount(path, path, None, libc.MS_BIND | libc.MS_REC)


def _hide(path: str, null: int) -> None:
    """Cover a folder with an empty one, or a file with /dev/null."""
    if os.path.isdir(path):
        _cover(path)
    elif os.path.exists(path):
        libc.mount(f"/proc/self/fd/{null}", path, None, libc.MS_BIND)


def _cover(folder: str) -> None:
    libc.mount("hidden", folder, "tmpfs", _QUIET | libc.MS_RDONLY, "size=4k,mode=555")


def _make_read_only() -> None:
    """Make every mount except /proc and the private folders read-only, without set-uid programs.

    One by one, because kernels before Linux 5.12 know no other way. A remount must repeat the flags that are locked in
    a user namespace.
    """
    locked = {b"nodev": libc.MS_NODEV, b"noexec": libc.MS_NOEXEC}
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = [line.split(b" ")[4:6] for line in file]
    for name, options in mounts:
        path = os.fsdecode(name.decode("unicode_escape").encode("latin-1"))
        if path in ("/proc", *PRIVATE):
            continue
        flags = sum(flag for option, flag in locked.items() if option in options.split(b","))
        try:
            libc.mount(None, path, None, libc.MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY | libc.MS_NOSUID | flags)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOENT):  # unreachable or covered: for the worker, too
                raise
