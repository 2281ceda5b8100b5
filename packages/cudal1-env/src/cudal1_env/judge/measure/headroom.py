"""Memory that a candidate must leave to the judge and the reference, on the host and on a GPU.

No outside limit can bound a process's share of a GPU's memory. So the judge reads what is free and, where that is too
little, how much of it the candidate's own processes hold: other judges may work on the same GPU.

On a CPU, `RLIMIT_DATA` bounds a worker's allocations on the host. CUDA cannot run under that limit, and control groups
do not count pages that its driver pins. So the judge measures after the constructor and after the first calls.
"""

from __future__ import annotations

import re
from pathlib import Path

from cudal1_env.errors import MachineError
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.records import Status

_HEADROOM_BYTES = 4 << 30
"""GPU memory that judge and reference need; with less, the judge cannot make inputs, and the reference cannot run."""
_USUAL_BYTES = 2 << 30
"""GPU memory that any candidate may hold, in addition to `_COPIES` of what a call of the reference needs."""
_COPIES = 3
"""Copies of weights and working memory that a program may keep: packed weights, the outputs of an earlier call."""

_RESIDENT = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)
"""Resident private memory, and resident shared memory without a file, which is how CUDA pins pages."""
_DRIVERS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw.s \S+ \S+ \S+ +/dev/nvidia", re.MULTILINE)
"""Memory that the driver allocated and mapped; the kernel's counters omit it."""


def check_memory(device: Device, candidate: Arm) -> None:
    """Check what memory a living candidate holds: of a GPU and, if it runs there, of the host.

    Raises:
        Fault: It holds too much.
    """
    free_bytes = device.free_bytes()
    if free_bytes is not None and free_bytes < _HEADROOM_BYTES:
        needs_bytes = candidate.io_spec.work_bytes + candidate.io_spec.state_bytes
        worker = candidate.worker
        held_bytes = device.process_bytes({worker.pid, *worker.other_processes()})
        if (text := memory_missing(free_bytes, held_bytes, usual_memory(needs_bytes))) is not None:
            raise Fault(Status.OUT_OF_MEMORY, text)
    if device.name == "cuda":
        check_host_memory(candidate.worker.pid, candidate.settings.memory_bytes)


def usual_memory(needs_bytes: int) -> int:
    """Return the GPU memory that a candidate may hold however little is free.

    Args:
        needs_bytes: Weights and working memory of a call of the reference.
    """
    return _USUAL_BYTES + _COPIES * needs_bytes


def memory_missing(free_bytes: int, held_bytes: int | None, usual_bytes: int) -> str | None:
    """Return why a candidate holds too much GPU memory; None if others hold what is missing.

    Args:
        free_bytes: Free memory of the GPU, which is too little.
        held_bytes: Memory of the candidate's processes; if unknown, the candidate has to answer for what is missing.
        usual_bytes: `usual_memory`.
    """
    if held_bytes is not None and held_bytes <= usual_bytes:
        return None
    holds = "" if held_bytes is None else f"holds {held_bytes / 2**30:.3g} GiB of GPU memory and "
    return (
        f"the program {holds}leaves {free_bytes / 2**30:.3g} GiB of it free; judge and reference need "
        f"{_HEADROOM_BYTES / 2**30:.3g} GiB"
    )


def check_host_memory(pid: int, max_bytes: int) -> None:
    """Raise `Fault` if a program's worker holds more than `max_bytes` of host memory."""
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
