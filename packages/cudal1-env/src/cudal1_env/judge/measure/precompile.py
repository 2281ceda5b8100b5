"""Programs that compile do so before they are judged.

A program whose text names a compiler is precompiled: a worker imports it, makes its model and calls it once on inputs
that nobody else sees. What it compiled by then is where its arms begin. So a build that takes a minute is over before
any device is leased alone, wherever in the program it is, and later trials do not repeat it. Beyond its import a
precompilation decides nothing.

nvcc needs no GPU, and takes longest: a program that names it is imported and constructed in a worker that finds no GPU
first, without a lease; torch says there that a GPU is available (`cudal1_worker.preload.pretend_gpu`). Then, as all
others, it is imported and called under a shared lease. Where that had to give way to somebody who waited to have the
GPU alone, the program compiles the rest under its own lease.

What came of it is kept in the store of builds: a program that was precompiled before, in this run or an earlier one,
begins with that, and needs neither compiler nor shared lease. So each worker of a program begins with the same files.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cudal1_worker.compilers import COMPILED, UNSETTLED

from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.oracle.pool import Pool, private_seed
from cudal1_env.judge.workers.lease import Hold, sharing
from cudal1_env.records import Status

if TYPE_CHECKING:
    from cudal1_env.judge.measure.builder import Builder

_BY_TORCH = re.compile(r"torch\.compile|(?<!\bre)\.compile\(|torch\._inductor|torch\._dynamo")
"""`.compile(` is a model's or a function's of torch; a regular expression's is none."""
_BY_OTHERS = re.compile(r"load_inline|cpp_extension|triton")

_BY_NVCC = re.compile(r"load_inline|cpp_extension")
_NVCC_FAILED = "Error building extension"
"""What torch says of a text that does not compile: with a GPU it would not, either."""

_MAX_KEPT = 64
"""Precompilations that wait for their program; nobody takes those of baselines whose programs are wrong."""
_LOST = (Status.CRASH, Status.TIMEOUT, Status.TAMPERING)
"""The worker is dead, or late: what its compiler was at may be half written, or locked."""


@dataclass(frozen=True)
class Precompilation:
    """What a program did before it was judged."""

    fault: Fault | None
    """Why it cannot be imported."""
    snapshot: Path | None
    """What it compiled; None where its worker died or was late."""
    seconds: float = 0.0
    stderr: str = ""
    note: str = ""
    """How its call on made-up inputs failed, if it did."""


def compiles(source: str) -> bool:
    """Whether a program's text names a compiler that leaves files, so that it is worth a precompilation."""
    return compiles_by_torch(source) or _BY_OTHERS.search(source) is not None


def compiles_by_torch(source: str) -> bool:
    """Whether a program's text names torch's compiler, whose import alone takes seconds."""
    return _BY_TORCH.search(source) is not None


def settled(snapshot: Path) -> bool:
    """Whether no compiler failed for want of memory or the like: such a build is tried again by the next verdict."""
    return not (snapshot / COMPILED / UNSETTLED).exists()


class Precompilations:
    """Precompiles programs. Several threads may ask at once."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._kept: dict[tuple[str, str], Precompilation] = {}
        self._lock = threading.Lock()

    def keep(self, case: Case, pool: Pool, hold: Hold | None = None) -> None:
        """Precompile a program that compiles, for the next `take` of the same program for the same task.

        Args:
            case: The candidate.
            pool: Of its task.
            hold: The caller's of the device; without one it is shared with others.
        """
        key = (case.task.source, case.source)
        if key not in self._kept and compiles(case.source) and self._builder.too_long(case) is None:
            precompilation = self._found(case) or self._made(case, pool, hold)
            with self._lock:
                old = [self._kept.pop(key)] if key in self._kept else []  # another thread was at the same program
                self._kept[key] = precompilation
                old += [self._kept.pop(next(iter(self._kept))) for _ in range(len(self._kept) - _MAX_KEPT)]
            for one in old:
                self._builder.folders.drop(one.snapshot)

    def take(self, case: Case, pool: Pool, *, leased: bool) -> Precompilation | None:
        """Return a program's precompilation, which is the caller's then; None if it is not worth one.

        Args:
            case: The candidate.
            pool: Of its task.
            leased: The caller holds the device: what was not precompiled before is not precompiled now.
        """
        with self._lock:
            known = self._kept.pop((case.task.source, case.source), None)
        if known is not None or not compiles(case.source):
            return known
        return self._found(case) or (None if leased else self._made(case, pool, None))

    def _found(self, case: Case) -> Precompilation | None:
        """What the store has of an earlier precompilation."""
        began, builder = time.perf_counter(), self._builder
        if (key := builder.key(case)) is None:
            return None
        snapshot = builder.folders.empty()
        if (note := builder.store.find(key, snapshot)) is None:
            builder.folders.drop(snapshot)
            return None
        return Precompilation(None, snapshot, time.perf_counter() - began, note=note)

    def _made(self, case: Case, pool: Pool, hold: Hold | None) -> Precompilation:
        """Precompile; what came of it goes into the store, unless its worker died or gave way.

        A text that nvcc refuses is kept, too: each import is told so at once.
        """
        began = time.perf_counter()
        made, whole = self._attempts(case, pool, hold)
        made = replace(made, seconds=time.perf_counter() - began)
        refused = made.fault is not None and _NVCC_FAILED in made.fault.message
        if whole and made.snapshot is not None and (made.fault is None or refused) and settled(made.snapshot):
            key = self._builder.key(case)
            if key is not None:
                self._builder.store.keep(key, made.snapshot, made.note)
        if made.fault is None:
            return made
        self._builder.folders.drop(made.snapshot)
        return replace(made, snapshot=None)

    def _attempts(self, case: Case, pool: Pool, hold: Hold | None) -> tuple[Precompilation, bool]:
        """Precompile; also tell whether that was not cut short by somebody who waited for the device."""
        builder = self._builder
        first: Precompilation | None = None
        if hold is None and builder.device.locks and _BY_NVCC.search(case.source) and builder.private_files():
            first = self._tried(case, pool, None, Hold(), blind=True)
            if first.fault is not None and (
                first.fault.status is Status.TIMEOUT or _NVCC_FAILED in first.fault.message
            ):
                return first, True
        snapshot = None if first is None else first.snapshot
        with contextlib.ExitStack() as held:
            if hold is None:
                hold, _ = held.enter_context(sharing(*builder.device.locks))
            made = self._tried(case, pool, snapshot, hold)
        if hold.gave_way:
            builder.folders.drop(made.snapshot)
            return Precompilation(None, snapshot), False
        builder.folders.drop(snapshot)
        return made, True

    def _tried(
        self, case: Case, pool: Pool, snapshot: Path | None, hold: Hold, *, blind: bool = False
    ) -> Precompilation:
        """Import a program, construct it and call it; its worker is dead afterwards. Without a GPU no call is made."""
        arm, folder = self._builder.fork(case, pool, snapshot, core=None, blind=blind)
        hold.kills(arm.worker.interrupt)
        fault: Fault | None = None
        kept: Path | None = None
        note = ""
        try:
            try:
                arm.build(case.source)
            except Fault as error:
                fault = error.plain()
            if fault is None:
                kept, note = self._compiled(arm, folder)
            elif blind:
                kept = self._kept_of(arm, folder)
        finally:
            arm.close()
            self._builder.folders.drop(folder)
        return Precompilation(fault, kept, stderr=arm.worker.log, note=note)

    def _compiled(self, arm: Arm, folder: Path | None) -> tuple[Path | None, str]:
        """Let an imported program compile the rest; no folder where its worker dies or is late. Also how it failed.

        What an exception of the program's own ended counts: it may be these inputs that it refuses, or others that
        precompile may have taken the memory. Its own trial will tell.
        """
        note = ""
        try:
            arm.precompile(private_seed())
        except Fault as fault:
            note = fault.message
            if fault.status in _LOST:
                return None, note
        return self._kept_of(arm, folder), note

    def _kept_of(self, arm: Arm, folder: Path | None) -> Path | None:
        """Freeze a worker and copy what it compiled; None where it is dead."""
        try:
            arm.freeze()
        except Fault:  # killed, say for its memory
            return None
        return self._builder.folders.keep(folder, arm.worker.pid)
