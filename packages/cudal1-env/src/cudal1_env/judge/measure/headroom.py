"""Memory that a candidate must leave to the judge and the reference, on the host and on a GPU.

No outside limit can bound a process's share of a GPU's memory. So the judge reads what is free and, where that is too
little, how much of it the candidate's own processes hold: other judges may work on the same GPU.
"""

from __future__ import annotations

from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.host_memory import check_host_memory
from cudal1_env.records import Status

_HEADROOM_BYTES = 4 << 30
"""GPU memory that judge and reference need; with less, the judge cannot make inputs, and the reference cannot run."""
_USUAL_BYTES = 2 << 30
"""GPU memory that any candidate may hold, in addition to `_COPIES` of what a call of the reference needs."""
_COPIES = 3
"""Copies of weights and working memory that a program may keep: packed weights, the outputs of an earlier call."""


def check_memory(device: Device, candidate: Arm) -> None:
    """Raise `Fault` if a living candidate holds too much memory of the device, or of the host (GPU workers)."""
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
