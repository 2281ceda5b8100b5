"""GPU headroom: does a candidate leave memory of the GPU to the judge and the reference?"""

from __future__ import annotations

import time
from collections.abc import Callable

from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.host_memory import check_host_memory
from cudal1_env.records import Status

_HEADROOM_BYTES = 4 << 30
"""Memory of the GPU that a candidate must leave free, or half of what it found where that is less."""
_MUCH_BYTES = 2 << 30
"""GPU memory above which an imported program is suspect: a context takes some 0.5 GiB."""
_BLAME_TRIES = 4
_BLAME_PAUSE_S = 0.5


class Headroom:
    """Checks that a candidate leaves memory to the judge and the reference; raises `Fault` where it does not.

    Make it before the candidate starts: what is free then counts.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before, self._own = device.free_bytes(), device.own_bytes()

    def check(self) -> None:
        """Insist that there is room on the device."""
        now = None if self._before is None else self._device.free_bytes()
        if self._before is None or now is None:
            return
        judges = self._device.own_bytes() - self._own  # taken meanwhile, arenas of the candidate's among it
        if (text := headroom_missing(self._before - judges, now)) is not None:
            raise Fault(Status.OUT_OF_MEMORY, text)

    def check_beside(self, candidate: Arm) -> None:
        """Insist that a living candidate leaves room on the device, and on the host where no limit binds it."""
        self.check()
        if self._device.name == "cuda":
            check_host_memory(candidate.worker.pid, candidate.settings.memory_bytes)


def headroom_missing(free_before_bytes: int, free_bytes: int) -> str | None:
    """Return why a candidate left too little GPU memory; None if it left enough.

    With too little memory the judge cannot make inputs, and the reference cannot run. No limit bounds a process's share
    of a GPU from outside, so free memory is compared before and after.

    Args:
        free_before_bytes: Free memory before the candidate was constructed, the reference being at work already.
        free_bytes: Free memory now.
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
    """Find out whether a failure was caused by a candidate that took device memory when it was imported.

    Args:
        device: Where both arms are.
        reference: Its arm; dead afterwards.
        candidate: Its arm; dead afterwards.
        works_alone: Whether a fresh reference works while neither is there.
        beside: Whether the reference worked beside the candidate, and memory ran out after that.

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
        seen = f"it held {more / 2**30:.3g} GiB more than the reference, and too little was left"
        if not beside:
            if not works_alone():
                continue
            seen = "the reference works only without it"
        text = f"the program took GPU memory when it was imported: {seen}"
        raise Fault(Status.OUT_OF_MEMORY, text)
