"""Programs that compile do so before they are judged.

A program whose text names a compiler is rehearsed: a worker imports it, makes its model and calls it once on inputs
that nobody else sees. What it compiled by then is where its arms begin. So a build that takes a minute is over before
any device is leased, wherever in the program it is, and later launches do not repeat it. Beyond its import a rehearsal
decides nothing.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.judge.workers.lease import lease
from cudal1_env.judge.workers.worker import Dead, Late
from cudal1_env.records import Status

if TYPE_CHECKING:
    from cudal1_env.judge.measure.builder import Builder

_BY_TORCH = re.compile(r"torch\.compile|(?<!\bre)\.compile\(|torch\._inductor|torch\._dynamo")
"""`.compile(` is a model's or a function's of torch; a regular expression's is none."""
_BY_OTHERS = re.compile(r"load_inline|cpp_extension|triton")

_MOST_KEPT = 64
"""Rehearsals that wait for their program; nobody takes those of baselines whose programs are wrong."""
_LOST = (Status.CRASH, Status.TIMEOUT, Status.TAMPERING)
"""The worker is dead, or late: what its compiler was at may be half written, or locked."""


@dataclass(frozen=True)
class Rehearsal:
    """What a program did before it was judged."""

    fault: Fault | None
    """Why it cannot be imported."""
    snapshot: Path | None
    """What it compiled; None where its worker died or was late."""
    seconds: float
    stderr: str
    note: str = ""
    """How its call on made-up inputs failed, if it did."""


def compiles(source: str) -> bool:
    """Whether a program's text names a compiler that leaves files, so that it is worth a rehearsal."""
    return compiles_by_torch(source) or _BY_OTHERS.search(source) is not None


def compiles_by_torch(source: str) -> bool:
    """Whether a program's text names torch's compiler, whose import alone takes seconds."""
    return _BY_TORCH.search(source) is not None


class Rehearsals:
    """Rehearses programs. Several threads may ask at once.

    Args:
        builder: Forks the workers, and has the build folders.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._kept: dict[tuple[str, str], Rehearsal] = {}
        self._lock = threading.Lock()

    def keep(self, case: Case, pool: Pool, *, leased: bool = False) -> None:
        """Rehearse a program that compiles, for the next `take` of the same program for the same task.

        Args:
            case: The candidate.
            pool: Of its task.
            leased: The caller holds the device.
        """
        key = (case.task.source, case.source)
        if key not in self._kept and compiles(case.source) and self._builder.too_long(case) is None:
            rehearsal = self._made(case, pool, leased=leased)
            with self._lock:
                self._kept[key] = rehearsal
                old = [self._kept.pop(next(iter(self._kept))) for _ in range(len(self._kept) - _MOST_KEPT)]
            for one in old:
                self._builder.folders.drop(one.snapshot)

    def take(self, case: Case, pool: Pool, *, leased: bool) -> Rehearsal | None:
        """Return a program's rehearsal, which is the caller's then; None if it is not worth one.

        Args:
            case: The candidate.
            pool: Of its task.
            leased: The caller holds the device: what was not rehearsed before is not rehearsed now.
        """
        with self._lock:
            known = self._kept.pop((case.task.source, case.source), None)
        if known is not None or leased or not compiles(case.source):
            return known
        return self._made(case, pool, leased=False)

    def _made(self, case: Case, pool: Pool, *, leased: bool) -> Rehearsal:
        began = time.perf_counter()
        arm, folder = self._builder.fork(case, pool, None, core=None)
        fault: Fault | None = None
        snapshot: Path | None = None
        note = ""
        try:
            arm.build(case.source)
            snapshot, note = self._compiled(arm, folder, leased=leased)
        except Fault as error:
            fault = error
        finally:
            arm.close()
            self._builder.folders.drop(folder)
        return Rehearsal(fault, snapshot, time.perf_counter() - began, arm.worker.log, note)

    def _compiled(self, arm: Arm, folder: Path | None, *, leased: bool) -> tuple[Path | None, str]:
        """Let an imported program compile the rest; no folder where its worker dies or is late. Also how it failed.

        What an exception of the program's own ended counts: it may be these inputs that it refuses, or others that
        rehearse may have taken the memory. Its own launch will tell. Nobody measures on the device meanwhile.
        """
        seed, note = int.from_bytes(os.urandom(7), "little"), ""
        try:
            with lease(*() if leased else arm.device.locks, shared=True):
                arm.precompile(seed)
        except Fault as fault:
            note = fault.message
            if fault.status in _LOST:
                return None, note
        try:
            arm.freeze()
        except (Fault, Dead, Late):  # killed, say for its memory
            return None, note
        return self._builder.folders.keep(folder, arm.worker.pid), note
