"""Host memory that a GPU worker holds.

On a CPU, `RLIMIT_DATA` bounds a worker's allocations. CUDA cannot run under that limit, and control groups do not count
pages that its driver pins. So the judge measures after the constructor and after the first calls.
"""

from __future__ import annotations

import re
from pathlib import Path

from cudal1_env.errors import MachineError
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.records import Status

_RESIDENT = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)
"""Resident private memory, and resident shared memory without a file, which is how CUDA pins pages."""
_DRIVERS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw.s \S+ \S+ \S+ +/dev/nvidia", re.MULTILINE)
"""Memory that the driver allocated and mapped; the kernel's counters omit it."""


def check_host_memory(pid: int, max_bytes: int) -> None:
    """Reject a program whose worker holds too much host memory.

    Raises:
        Fault: It holds more than `max_bytes`.
    """
    if (held := held_bytes(pid)) > max_bytes:
        raise Fault(
            Status.OUT_OF_MEMORY,
            f"the program holds {held / 2**30:.3g} GiB of host memory, pinned memory included; the limit is "
            f"{max_bytes / 2**30:.3g} GiB",
        )


def held_bytes(pid: int) -> int:
    """Return the bytes of host memory that a process holds; 0 if it is dead.

    Raises:
        MachineError: This user may not read the process's memory map.
    """
    folder = Path(f"/proc/{pid}")
    try:
        status, maps = ((folder / name).read_text(errors="replace") for name in ("status", "maps"))
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError as error:
        raise MachineError(f"cannot read the memory map of worker {pid}: {error}; judge as root") from error
    return sum(int(size) << 10 for size in _RESIDENT.findall(status)) + drivers_bytes(maps)


def drivers_bytes(maps: str) -> int:
    """Return the total size of shared writable mappings of NVIDIA's device nodes in the text of /proc/PID/maps."""
    return sum(int(end, 16) - int(begin, 16) for begin, end in _DRIVERS.findall(maps))
