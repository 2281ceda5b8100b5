"""Memory shared with workers, and access to the workers' own memory.

Data is passed in memfds sealed against all writes. The control page is a memfd that the judge maps before sealing it:
F_SEAL_FUTURE_WRITE (Linux 5.1) refuses later writes and writable mappings, while the judge's mapping stays writable.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable, Generator

import numpy as np
import numpy.typing as npt

from cudal1_env.judge.device.base import Contract

_F_SEAL_SEAL = 0x1
_F_SEAL_SHRINK = 0x2
_F_SEAL_GROW = 0x4
_F_SEAL_FUTURE_WRITE = 0x10
_FIXED = _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL
_IOV_MAX = 1024
_NAME = "cudal1-judge"

_libc = ctypes.CDLL(None, use_errno=True)
_readv = _libc.process_vm_readv
_writev = _libc.process_vm_writev
for _one in (_readv, _writev):
    _one.restype = ctypes.c_ssize_t
    _one.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    ]


class SharedBlock:
    """A block of memory that a worker can map. Its size is sealed: reading past a shortened end kills the reader.

    Args:
        size_bytes: Size of the block, a multiple of 8.
        sealed: Whether the worker cannot write to it.
    """

    def __init__(self, size_bytes: int, *, sealed: bool) -> None:
        self.fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size_bytes)
        self.size_bytes = size_bytes
        self._map = mmap.mmap(self.fd, size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self.words = memoryview(self._map).cast("Q")
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _FIXED | (_F_SEAL_FUTURE_WRITE if sealed else 0))

    def close(self) -> None:
        """Close the descriptor; the mapping is freed with its last reference."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def sealed_file(data: bytes | memoryview) -> Generator[int]:
    """Yield a descriptor of fresh memory that holds `data` and that no process can write to any more.

    It is filled by `write`, because the kernel would clear every page of a mapping first.
    """
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        # No process has mapped it, so refusing future writers refuses all. F_SEAL_WRITE would wait for every page in
        # flight, and fail with EBUSY on a busy machine.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _FIXED | _F_SEAL_FUTURE_WRITE)
        yield fd
    finally:
        os.close(fd)


def read(pid: int, address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    """Copy a range of a worker's memory.

    Raises:
        Contract: It is not fully mapped.
    """
    data = np.empty(size_bytes, dtype=np.uint8)
    _move(_readv, pid, address, data, "read")
    return data


def write(pid: int, address: int, data: npt.NDArray[np.uint8]) -> None:
    """Write a range of a worker's memory.

    Raises:
        Contract: It is not fully writable.
    """
    _move(_writev, pid, address, data, "written")


def _move(call: Callable[..., int], pid: int, address: int, data: npt.NDArray[np.uint8], how: str) -> None:
    """Copy between `data` and a worker's memory; the kernel moves at most 2 GiB per call."""
    done = 0
    while done < data.size:
        local = np.array([[data.ctypes.data + done, data.size - done]], dtype=np.uint64)
        remote = np.array([[address + done, data.size - done]], dtype=np.uint64)
        count = call(pid, local.ctypes.data, 1, remote.ctypes.data, 1, 0)
        if count <= 0:
            got = f"{done} of {data.size} bytes at {address:#x}"
            raise Contract(f"an output lies in memory that cannot be {how}", got)
        done += count


def gather(pid: int, addresses: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Copy scattered items of a worker's memory.

    Args:
        pid: The worker.
        addresses: Shape (n,).
        sizes: Bytes of each item, shape (n,).

    Returns:
        The items one after another, shape (sum of sizes,).

    Raises:
        Contract: Some of them are not mapped.
    """
    data = np.empty(int(sizes.sum()), dtype=np.uint8)
    remote = np.stack([addresses, sizes], axis=1)
    done = 0
    for start in range(0, len(remote), _IOV_MAX):
        part = remote[start : start + _IOV_MAX]
        want = int(part[:, 1].sum())
        local = np.array([[data.ctypes.data + done, want]], dtype=np.uint64)
        if _readv(pid, local.ctypes.data, 1, part.ctypes.data, len(part), 0) != want:
            raise Contract("an output lies in memory that cannot be read")
        done += want
    return data


def private_ranges(pid: int) -> list[tuple[int, int]]:
    """Return a worker's private address ranges without a file, sorted, with neighbours joined.

    Private mappings of files, such as the judge's inputs, are left out, because they show bytes that the call did not
    write. The list is empty if the worker's first thread is dead, or if the worker hides its memory from other users
    (it executed an unreadable program).
    """
    ranges: list[tuple[int, int]] = []
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ranges
    for line in lines:
        span, flags, _, _, inode, *_ = line.split(maxsplit=5)
        if flags[3:4] == b"p" and inode == b"0":
            low, high = (int(end, 16) for end in span.split(b"-"))
            if ranges and ranges[-1][1] == low:
                ranges[-1] = (ranges[-1][0], high)
            else:
                ranges.append((low, high))
    return ranges
