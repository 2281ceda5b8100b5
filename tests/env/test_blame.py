"""A candidate that takes a GPU's memory when it is imported is to blame for the reference's failure, a task is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from cudal1_env.errors import TaskError
from cudal1_env.judge import launches
from cudal1_env.judge.arms import Fault
from cudal1_env.judge.launches import Launches
from cudal1_env.records import Status


class Gpu:
    """As much of a judge's surroundings as is needed: arms that are alive, and what the dead leave for a while."""

    def __init__(self, *, hog: bool, lingering: int, free: int | None = 1 << 30) -> None:
        self.hog, self.lingering = hog, lingering
        self.alive: set[str] = {"candidate", "reference"}
        self.device = SimpleNamespace(free_bytes=lambda: free, faults=(MemoryError,))
        self.settings = None

    def arm(self, name: str) -> Any:
        return SimpleNamespace(close=lambda: self.alive.discard(name))

    def reference(self, case: object, pool: object) -> Any:
        self.alive.add("alone")
        return self.arm("alone")

    def construct(self, case: object, pool: object, arm: object) -> None:
        """The reference works when no hog lives and what it held is free again; a broken one never does."""
        self.lingering -= 1
        if "candidate" in self.alive or not self.hog or self.lingering >= 0:
            raise TaskError("expected the reference to run")


@pytest.mark.parametrize(
    ("hog", "lingering", "free", "blamed"),
    [(True, 0, 1 << 30, True), (True, 2, 1 << 30, True), (False, 0, 1 << 30, False), (True, 0, None, False)],
    ids=["hog", "memory comes back late", "the task's own fault", "a CPU"],
)
def test_who_is_to_blame(
    monkeypatch: pytest.MonkeyPatch, *, hog: bool, lingering: int, free: int | None, blamed: bool
) -> None:
    gpu = Gpu(hog=hog, lingering=lingering, free=free)
    monkeypatch.setattr(launches, "_BLAME_PAUSE_S", 0.0)
    one = Launches(cast(Any, gpu), cast(Any, None))
    monkeypatch.setattr(one, "_construct_reference", gpu.construct)
    arguments: Any = (None, None, gpu.arm("reference"), gpu.arm("candidate"))
    if blamed:
        with pytest.raises(Fault) as found:
            one._blame(*arguments)
        assert found.value.status is Status.OUT_OF_MEMORY
        assert not gpu.alive
    else:
        one._blame(*arguments)
        assert "alone" not in gpu.alive
