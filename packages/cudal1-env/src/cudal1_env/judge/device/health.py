"""Health check: is the GPU's memory free again after a candidate's death?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cudal1_env.errors import MachineError

_BACK_WITHIN_S = 2.0
_PAUSE_S = 0.01
_SLACK_BYTES = 512 << 20
"""Memory that the driver may keep beyond the judge's count: code of kernels, stacks, handles."""


@dataclass(frozen=True)
class Held:
    """Memory in use on a GPU."""

    used_bytes: int
    """Memory in use by all processes, as the driver reports it."""
    own_bytes: int
    """The part that the judge and its oracles hold, by their own count."""

    def beyond(self, before: Held) -> int:
        """Return how many more bytes other processes hold now than before."""
        return (self.used_bytes - self.own_bytes) - (before.used_bytes - before.own_bytes)


def await_memory(before: Held, look: Callable[[], Held], *, within_s: float = _BACK_WITHIN_S) -> int:
    """Wait until other processes hold no more GPU memory than before.

    Returns:
        Bytes still held beyond that at the deadline; 0 if none.
    """
    ends = time.monotonic() + within_s
    while (beyond := look().beyond(before)) > _SLACK_BYTES:
        if time.monotonic() > ends:
            return beyond
        time.sleep(_PAUSE_S)
    return 0


def check_returned(beyond_bytes: int, foreign_processes: int) -> None:
    """Check that a candidate's memory is free again.

    Args:
        beyond_bytes: Bytes still held.
        foreign_processes: Foreign processes on the GPU, to which the memory may belong.

    Raises:
        MachineError: Memory is still held, and there is no foreign process.
    """
    if beyond_bytes and not foreign_processes:
        raise MachineError(
            f"{beyond_bytes / 2**20:.0f} MiB of GPU memory are still held "
            f"{_BACK_WITHIN_S:g} s after a candidate died; look at nvidia-smi, and judge on another GPU"
        )
