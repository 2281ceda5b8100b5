"""A candidate that takes a GPU's memory when it is imported is to blame for the reference's failure, a task is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from cudal1_env.judge.measure import headroom
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.records import Status

GIB = 1 << 30


class Gpu:
    """As much of a judge's surroundings as is needed: arms that are alive, and what the dead leave for a while.

    Args:
        held: What the imported candidate holds.
        lingering: How many looks later it comes back after its death.
        works: Whether the reference works where there is room; else it never does.
        beside: Whether it worked beside the candidate before.
        counted: Whether memory is counted; on a CPU it is not.
    """

    def __init__(
        self, *, held: int, lingering: int = 0, works: bool = True, beside: bool = False, counted: bool = True
    ) -> None:
        self.held, self.lingering, self.works, self.counted, self.beside = held, lingering, works, counted, beside
        self.alive: set[str] = {"candidate", "reference"}
        self.device = SimpleNamespace(free_bytes=self.free, faults=(MemoryError,))

    def free(self) -> int | None:
        if "candidate" not in self.alive:
            self.lingering -= 1
        back = "candidate" not in self.alive and self.lingering < 0
        return 60 * GIB - (0 if back else self.held) - GIB * len(self.alive - {"candidate"}) if self.counted else None

    def arm(self, name: str) -> Any:
        return SimpleNamespace(close=lambda: self.alive.discard(name))

    def works_alone(self) -> bool:
        return self.works


@pytest.mark.parametrize(
    ("gpu", "blamed"),
    [
        (Gpu(held=58 * GIB), True),
        (Gpu(held=58 * GIB, lingering=3), True),
        (Gpu(held=58 * GIB, works=False), False),
        (Gpu(held=GIB // 2), False),
        (Gpu(held=58 * GIB, beside=True), True),
        (Gpu(held=58 * GIB, lingering=3, beside=True), True),
        (Gpu(held=2 * GIB, beside=True), False),
        (Gpu(held=58 * GIB, counted=False), False),
    ],
    ids=[
        "hog",
        "memory comes back late",
        "the task's own fault",
        "failed once, beside a small program",
        "hog that left the reference some",
        "memory comes back late then, too",
        "holds little more than the reference",
        "a CPU",
    ],
)
def test_who_is_to_blame(monkeypatch: pytest.MonkeyPatch, gpu: Gpu, *, blamed: bool) -> None:
    monkeypatch.setattr(headroom, "_BLAME_PAUSE_S", 0.0)

    def asked() -> None:
        headroom.memory_taken(
            cast(Any, gpu.device), gpu.arm("reference"), gpu.arm("candidate"), gpu.works_alone, beside=gpu.beside
        )

    if blamed:
        with pytest.raises(Fault) as found:
            asked()
        assert found.value.status is Status.OUT_OF_MEMORY
        assert not gpu.alive
    else:
        asked()
        assert "alone" not in gpu.alive
