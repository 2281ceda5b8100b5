"""Is the GPU as it was, now that a candidate is dead?"""

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
    """In use by anybody, as the driver tells it."""
    own_bytes: int
    """Of that, what the judge and its oracles hold, as they count it themselves."""

    def beyond(self, before: Held) -> int:
        """Bytes that others hold now and did not hold before."""
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
    """Insist that what a candidate held is free again.

    Args:
        beyond_bytes: What is still held.
        foreign_processes: Foreign processes on the GPU: if there are some, the memory may be theirs.

    Raises:
        MachineError: It is held, and nobody else is there.
    """
    if beyond_bytes and not foreign_processes:
        raise MachineError(
            f"expected the GPU's memory back within {_BACK_WITHIN_S:g} s of a candidate's death, "
            f"{beyond_bytes / 2**20:.0f} MiB are still held by something; look at nvidia-smi, and judge on another GPU"
        )
