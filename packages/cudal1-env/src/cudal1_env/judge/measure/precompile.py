"""Precompilation: programs compile before the judge leases a device for them (decision 010).

A program whose text names a compiler is imported, constructed and called once on private inputs, under a shared lease;
all its arms start with the compiled files. Only a failed import affects the verdict. At `correct` precision, which has
one arm and times nothing, only programs of slow compilers are precompiled; others compile in their own first call. A
program that names nvcc, which takes longest, is first imported and constructed in a worker without GPU and lease, in
which torch reports a GPU as available (`cudal1_worker.preload.pretend_gpu`). If the shared lease must give way, the
program compiles the rest under its own exclusive lease.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cudal1_worker.compilers import COMPILED, UNSETTLED

from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.oracle.pool import Pool, private_seed
from cudal1_env.judge.workers.lease import Hold, sharing
from cudal1_env.records import Status

if TYPE_CHECKING:
    from cudal1_env.judge.measure.builder import Builder

_BY_TORCH = re.compile(r"torch\.compile|(?<!\bre)\.compile\(|torch\._inductor|torch\._dynamo")
"""`.compile(` counts except in `re.compile(`: models and functions compile by torch."""
_BY_OTHERS = re.compile(r"load_inline|cpp_extension|triton")

_BY_NVCC = re.compile(r"load_inline|cpp_extension")
_NVCC_FAILED = "Error building extension"
"""Torch's message for a source that nvcc refuses; a GPU would not help."""

_MAX_KEPT = 64
"""Maximum precompilations kept for their programs; those of baselines stay unused if the program is incorrect."""
_LOST = (Status.CRASH, Status.TIMEOUT, Status.TAMPERING)
"""The worker is dead or late: its compiler may have left partial files or locks."""


def compiles(source: str) -> bool:
    """Return whether a program's text names a compiler that leaves files, so that precompilation is worthwhile."""
    return compiles_by_torch(source) or _BY_OTHERS.search(source) is not None


def compiles_by_torch(source: str) -> bool:
    """Return whether a program's text names torch's compiler, whose import takes seconds."""
    return _BY_TORCH.search(source) is not None


def builds_extension(source: str) -> bool:
    """Return whether a program's text names torch's builder of extensions, which calls g++ and nvcc."""
    return _BY_NVCC.search(source) is not None


def _compiles_slowly(source: str) -> bool:
    """Return whether a program's text names a compiler that may take minutes: torch's or nvcc."""
    return compiles_by_torch(source) or builds_extension(source)


def is_precompiled(case: Case) -> bool:
    """Return whether a program is precompiled for a verdict."""
    return _compiles_slowly(case.source) if case.precision == "correct" else compiles(case.source)


class Precompilations:
    """Precompiles programs. Several threads may call it."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._kept: dict[tuple[str, str], Built] = {}
        self._lock = threading.Lock()

    def keep(self, case: Case, pool: Pool, hold: Hold | None = None) -> None:
        """Precompile a program that needs a compiler, for the next `take` of the same program and task.

        By default a shared lease is taken.
        """
        key = (case.task.source, case.source)
        if key not in self._kept and is_precompiled(case) and self._builder.too_long(case) is None:
            precompilation = self._found(case) or self._made(case, pool, hold)
            with self._lock:
                old = [self._kept.pop(key)] if key in self._kept else []  # another thread precompiled it, too
                self._kept[key] = precompilation
                old += [self._kept.pop(next(iter(self._kept))) for _ in range(len(self._kept) - _MAX_KEPT)]
            for one in old:
                self._builder.folders.drop(one.snapshot)

    def take(self, case: Case, pool: Pool, *, leased: bool) -> Built | None:
        """Return a program's precompilation, which the caller then owns; None if there is none to use.

        Nothing is precompiled now if the caller holds the device (`leased`).
        """
        with self._lock:
            known = self._kept.pop((case.task.source, case.source), None)
        if known is not None or not is_precompiled(case):
            return known
        return self._found(case) or (None if leased else self._made(case, pool, None))

    def _found(self, case: Case) -> Built | None:
        """Return an earlier precompilation from the build store."""
        began, builder = time.perf_counter(), self._builder
        if (key := builder.key(case)) is None:
            return None
        snapshot = builder.folders.made("kept-")
        if (note := builder.store.find(key, snapshot)) is None:
            builder.folders.drop(snapshot)
            return None
        case.watch.add("build", time.perf_counter() - began)
        return Built(case, snapshot=snapshot, note=note)

    def _made(self, case: Case, pool: Pool, hold: Hold | None) -> Built:
        """Precompile and put the files into the build store, unless the worker died or gave way.

        A source that nvcc refused is stored, too, so that each later import fails at once. Nothing is stored where a
        compiler failed for a passing reason such as lack of memory; the next verdict tries again.
        """
        began = time.perf_counter()
        if builds_extension(case.source) and self._builder.private_files():
            self._builder.headers.expect()
        made, whole = self._attempts(case, pool, hold)
        case.watch.add("build", time.perf_counter() - began)
        final = made.fault is None or _NVCC_FAILED in made.fault.message
        if whole and final and made.snapshot is not None and not (made.snapshot / COMPILED / UNSETTLED).exists():
            key = self._builder.key(case)
            if key is not None:
                self._builder.store.keep(key, made.snapshot, made.note)
        if made.fault is not None:
            self._builder.folders.drop(made.snapshot)
            made.snapshot = None
        return made

    def _attempts(self, case: Case, pool: Pool, hold: Hold | None) -> tuple[Built, bool]:
        """Precompile; also return whether it completed without giving way to a waiter for the device."""
        builder = self._builder
        first: Built | None = None
        if hold is None and builder.device.locks and builds_extension(case.source) and builder.private_files():
            first = self._tried(case, pool, None, Hold(), blind=True)
            if first.fault is not None and (
                first.fault.status is Status.TIMEOUT or _NVCC_FAILED in first.fault.message
            ):
                return first, True
        snapshot = None if first is None else first.snapshot
        with contextlib.ExitStack() as held:
            if hold is None:
                hold, _ = held.enter_context(sharing(*builder.leases))
            made = self._tried(case, pool, snapshot, hold)
        if hold.gave_way:
            builder.folders.drop(made.snapshot)
            return Built(case, snapshot=snapshot), False
        builder.folders.drop(snapshot)
        return made, True

    def _tried(self, case: Case, pool: Pool, snapshot: Path | None, hold: Hold, *, blind: bool = False) -> Built:
        """Import a program, construct it, call it, then kill its worker. A blind worker, without GPU, makes no call.

        If the call raises, the files are kept: the program may refuse these inputs, or other precompilations may have
        taken the memory. Its own trial decides.
        """
        arm, folder = self._builder.fork(case, pool, snapshot, core=None, blind=blind)
        hold.kills(arm.worker.interrupt)
        fault: Fault | None = None
        kept: Path | None = None
        note, lost = "", False
        try:
            try:
                arm.build(case.source)
            except Fault as error:
                fault = error.plain()
            else:
                try:
                    arm.precompile(private_seed(), slowly=_compiles_slowly(case.source))
                except Fault as error:
                    note, lost = error.message, error.status in _LOST
            if not lost and (fault is None or blind):
                with contextlib.suppress(Fault):  # for example killed for its memory
                    arm.freeze()
                    kept = self._builder.folders.keep(folder, arm.worker.pid)
        finally:
            arm.close()
            self._builder.folders.drop(folder)
        return Built(case, fault=fault, snapshot=kept, stderr=arm.worker.log, note=note)
