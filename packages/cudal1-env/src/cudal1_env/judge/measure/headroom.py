"""GPU headroom: does a candidate leave enough GPU memory to the judge and the reference?"""

from __future__ import annotations

import time
from collections.abc import Callable

from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.host_memory import check_host_memory
from cudal1_env.records import Status

_HEADROOM_BYTES = 4 << 30
"""GPU memory that a candidate must leave free, or half of what was free before it, if that is less."""
_MUCH_BYTES = 2 << 30
"""Extra GPU memory that makes an imported program suspect; a context takes some 0.5 GiB."""
_BLAME_TRIES = 4
_BLAME_PAUSE_S = 0.5


class Headroom:
    """Checks that a candidate leaves memory to the judge and the reference; raises `Fault` if not.

    Construct it before the candidate starts: the constructor records the free memory.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before, self._own = device.free_bytes(), device.own_bytes()

    def check(self) -> None:
        """Raise `Fault` if the device has too little free memory."""
        now = None if self._before is None else self._device.free_bytes()
        if self._before is None or now is None:
            return
        judges = self._device.own_bytes() - self._own  # taken meanwhile; includes the candidate's arenas
        if (text := headroom_missing(self._before - judges, now)) is not None:
            raise Fault(Status.OUT_OF_MEMORY, text)

    def check_beside(self, candidate: Arm) -> None:
        """Raise `Fault` if a living candidate holds too much memory of the device, or of the host (GPU workers)."""
        self.check()
        if self._device.name == "cuda":
            check_host_memory(candidate.worker.pid, candidate.settings.memory_bytes)


def headroom_missing(free_before_bytes: int, free_bytes: int) -> str | None:
    """Return why a candidate left too little GPU memory; None if it left enough.

    With too little memory the judge cannot make inputs, and the reference cannot run. No outside limit can bound a
    process's share of GPU memory, so free memory is compared before and after.
    """
    headroom = min(_HEADROOM_BYTES, free_before_bytes // 2)
    if free_bytes >= headroom:
        return None
    return (
        f"the program leaves {free_bytes / 2**30:.3g} GiB of {free_before_bytes / 2**30:.3g} GiB of free GPU memory; "
        f"judge and reference need {headroom / 2**30:.3g} GiB"
    )


def memory_taken(
    device: Device, reference: Arm, candidate: Arm, works_alone: Callable[[], bool], *, beside: bool
) -> None:
    """Find out whether a candidate caused a failure by taking device memory at import.

    Args:
        device: The device of both arms.
        reference: The reference's arm; killed.
        candidate: The candidate's arm; killed.
        works_alone: Returns whether a fresh reference works with both arms dead.
        beside: Whether the reference had worked while the candidate lived, before memory ran out.

    Raises:
        Fault: The candidate held far more memory than the reference; if `beside` is false, the reference must also work
            after its death.
    """
    if (first := device.free_bytes()) is None:
        return
    reference.close()
    free = first
    for _ in range(_BLAME_TRIES):
        time.sleep(_BLAME_PAUSE_S)  # memory of dead processes is freed a moment later
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
        seen = f"it held {more / 2**30:.3g} GiB more than the reference, and too little was left"
        if not beside:
            if not works_alone():
                continue
            seen = "the reference works only without it"
        text = f"the program took GPU memory before its first call: {seen}"
        raise Fault(Status.OUT_OF_MEMORY, text)
