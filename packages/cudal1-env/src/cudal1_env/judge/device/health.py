"""Health check: is the GPU as it was before the candidate?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cudal1_env.errors import MachineError

_BACK_WITHIN_S = 2.0
_PAUSE_S = 0.01
_SLACK_BYTES = 512 << 20
"""What the driver may keep beside what the judge counts: code of kernels, stacks, handles."""


@dataclass(frozen=True)
class Held:
    """Memory of a GPU."""

    used_bytes: int
    """Memory in use by all processes, as the driver reports it."""
    own_bytes: int
    """The part of it that the judge and its oracles hold, by their own count."""

    def beyond(self, before: Held) -> int:
        """Return the bytes that other processes hold now and did not hold before."""
        return (self.used_bytes - self.own_bytes) - (before.used_bytes - before.own_bytes)


def await_memory(before: Held, look: Callable[[], Held], *, within_s: float = _BACK_WITHIN_S) -> int:
    """Wait until others hold no more of a GPU's memory than before.

    Returns:
        Bytes that are still held: 0 when all is well.
    """
    ends = time.monotonic() + within_s
    while (beyond := look().beyond(before)) > _SLACK_BYTES:
        if time.monotonic() > ends:
            return beyond
        time.sleep(_PAUSE_S)
    return 0


def check_returned(beyond_bytes: int, foreign_processes: int) -> None:
    """Check that the memory of a candidate is free again.

    Args:
        beyond_bytes: What is still held.
        foreign_processes: Foreign processes on the GPU: if there are some, the memory may be theirs.

    Raises:
        MachineError: It is still held, and there is no foreign process.
    """
    if beyond_bytes and not foreign_processes:
        raise MachineError(
            f"{beyond_bytes / 2**20:.0f} MiB of GPU memory are still held "
            f"{_BACK_WITHIN_S:g} s after a candidate died; look at nvidia-smi, and judge on another GPU"
        )
