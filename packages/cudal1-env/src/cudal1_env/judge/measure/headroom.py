"""Does a candidate that lives leave room on the GPU for the judge and the reference?"""

from __future__ import annotations

from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.arm import Fault
from cudal1_env.records import Status

_ROOM_BYTES = 4 << 30
"""Memory of the GPU that a candidate must leave free, or half of what it found where that is less."""


class Room:
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
        if (text := room_missing(self._before - judges, now)) is not None:
            raise Fault(Status.OUT_OF_MEMORY, text)


def room_missing(free_before_bytes: int, free_bytes: int) -> str | None:
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
