"""GPU headroom: does a candidate leave memory of the GPU to the judge and the reference?"""

from __future__ import annotations

import time
from collections.abc import Callable

from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.records import Status

_ROOM_BYTES = 4 << 30
"""Memory of the GPU that a candidate must leave free, or half of what it found where that is less."""
_MUCH_BYTES = 2 << 30
"""More of a GPU's memory than a program that was only imported needs: a context takes some 0.5 GiB."""
_BLAME_TRIES = 4
_BLAME_PAUSE_S = 0.5


class Headroom:
    """Watches that a candidate leaves memory of the device to the judge and the reference."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before: int | None = None
        self._own = 0

    @property
    def begun(self) -> bool:
        """Whether `begin` was called."""
        return self._before is not None

    def begin(self) -> None:
        """The candidate comes now."""
        self._before, self._own = self._device.free_bytes(), self._device.own_bytes()

    def check(self) -> None:
        """Insist that there is room.

        Raises:
            Fault: The candidate took it.
        """
        now = None if self._before is None else self._device.free_bytes()
        if self._before is None or now is None:
            return
        judges = self._device.own_bytes() - self._own  # taken meanwhile, arenas of the candidate's among it
        if (text := headroom_missing(self._before - judges, now)) is not None:
            raise Fault(Status.OUT_OF_MEMORY, text)


def headroom_missing(free_before_bytes: int, free_bytes: int) -> str | None:
    """Say what a candidate took that it should have left; None if it left enough.

    Without room the judge cannot make inputs, nor the reference answer. Nothing bounds a process's share of a GPU from
    outside, so what it took is looked at.

    Args:
        free_before_bytes: Free memory before the candidate was constructed, the reference being at work already.
        free_bytes: Free memory now.
    """
    room = min(_ROOM_BYTES, free_before_bytes // 2)
    if free_bytes >= room:
        return None
    return (
        f"expected a program to leave {room / 2**30:.3g} GiB of the GPU's memory to the judge and the reference, "
        f"{free_bytes / 2**30:.3g} GiB are left of {free_before_bytes / 2**30:.3g}"
    )


def memory_taken(
    device: Device, reference: Arm, candidate: Arm, works_alone: Callable[[], bool], *, beside: bool
) -> None:
    """Find out whether something failed because a candidate took the device's memory when it was imported.

    Args:
        device: Where both arms are.
        reference: Its arm; dead afterwards.
        candidate: Its arm; dead afterwards.
        works_alone: Whether a fresh reference works while neither is there.
        beside: Whether the reference worked beside the candidate, and there was no room for what came then.

    Raises:
        Fault: The candidate held much, and the reference works once it is dead, or worked and held much less.
    """
    if (first := device.free_bytes()) is None:
        return
    reference.close()
    free = first
    for _ in range(_BLAME_TRIES):
        time.sleep(_BLAME_PAUSE_S)  # memory of the dead comes back within a moment
        before, free = free, device.free_bytes() or 0
        if free == before:
            break
    references = free - first if beside else 0
    candidate.close()
    for _ in range(_BLAME_TRIES):
        time.sleep(_BLAME_PAUSE_S)
        more = (device.free_bytes() or 0) - free - references
        if more < _MUCH_BYTES:
            continue
        seen = f"there was no room beside it, which held {more / 2**30:.3g} GiB more than the reference"
        if not beside:
            if not works_alone():
                continue
            seen = "the reference works only without it"
        text = f"expected a program to leave the GPU's memory to others when it is imported, {seen}"
        raise Fault(Status.OUT_OF_MEMORY, text)
