"""Makes arms: fresh workers with a program in them, frozen. Several threads may ask at once.

A program whose text names a compiler is rehearsed first: a worker imports it, makes its model and calls it once on
inputs that nobody else sees. What it compiled by then is where its arms begin. So a build that takes a minute is over
before any device is leased, wherever in the program it is, and later launches do not repeat it. Beyond its import a
rehearsal decides nothing.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cudal1_worker.sandbox import Spec

from cudal1_env.judge.arms import Arm, Fault
from cudal1_env.judge.build import BuildFolders
from cudal1_env.judge.device import Device
from cudal1_env.judge.keeper import CoreKeeper
from cudal1_env.judge.lease import lease
from cudal1_env.judge.oracle import Anatomy
from cudal1_env.judge.place import answers
from cudal1_env.judge.pool import Pool
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.verdict import Case, Role
from cudal1_env.judge.workers import Dead, Late, Worker, Zygote
from cudal1_env.records import Status
from cudal1_env.sandbox import default_spec

_COMPILES = re.compile(r"load_inline|cpp_extension|triton|torch\.compile|torch\._inductor|torch\._dynamo")


@dataclass
class Rehearsal:
    """What a program did before it was judged."""

    fault: Fault | None
    """Why it cannot be imported."""
    snapshot: Path | None
    """What it compiled; None where it did not come to its end."""
    seconds: float
    stderr: str


@dataclass
class Built:
    """A candidate after its import."""

    case: Case
    arm: Arm | None
    """None when the import failed; `fault` says how."""
    fault: Fault | None
    folder: Path | None
    """Build folder of the host, to be removed; None where it is in the worker's own file system."""
    snapshot: Path | None
    """What a later launch's build folder begins as."""


def compiles(source: str) -> bool:
    """Whether a program's text names a compiler that leaves files, so that it is worth a rehearsal."""
    return _COMPILES.search(source) is not None


def limits(settings: JudgeSettings, role: Role) -> JudgeSettings:
    """Return the time limits for a program: a baseline's is the task's own text, and may compile for longer."""
    if role != "baseline":
        return settings
    return settings.model_copy(update={"warmup_timeout_s": settings.baseline_warmup_timeout_s})


class Builder:
    """Forks workers, lets them import programs, and keeps what they compiled for later launches.

    Args:
        settings: Limits.
        device: Where programs run.
        core: The arms' core; None where none could be fixed.
    """

    def __init__(self, settings: JudgeSettings, device: Device, core: int | None) -> None:
        self.settings = settings
        self.device = device
        self.core = core
        self.zygote = Zygote(device.environment)
        self._keeper = CoreKeeper(core)
        self._folders = BuildFolders()
        self._ahead: dict[tuple[str, str], Rehearsal] = {}
        self._lock = threading.Lock()

    def spec(self, folder: Path | None, *, core: int | None) -> Spec:
        """Return the sandbox of a worker: an arm's has a core, an oracle's has none."""
        return default_spec(
            self.device.name,
            demanded=self.settings.require_sandbox,
            gpus=self.device.gpus,
            hidden=answers(),
            build_dir=None if folder is None else str(folder),
            core=core,
            tmp_bytes=self.settings.scratch_bytes,
            memory_bytes=self.settings.memory_bytes,
            max_processes=self.settings.max_processes,
        )

    def build(self, case: Case, pool: Pool, snapshot: Path | None = None, *, leased: bool = False) -> Built:
        """Import a candidate in a fresh worker and freeze it.

        Args:
            case: The candidate.
            pool: Of its task.
            snapshot: What an earlier launch of the same program compiled.
            leased: The caller holds the device: the program is not rehearsed now.
        """
        if (fault := self._too_long(case)) is not None:
            return Built(case, None, fault, None, None)
        if snapshot is None and compiles(case.source):
            if not leased:
                self.rehearse(case, pool)
            if (rehearsal := self._rehearsal(case)) is not None:
                case.watch.add("build", rehearsal.seconds)
                if rehearsal.fault is not None:
                    case.stderr = rehearsal.stderr
                    return Built(case, None, rehearsal.fault, None, None)
                snapshot = rehearsal.snapshot
        arm, folder = self._fork(case, pool, snapshot, core=self.core)
        worker = arm.worker
        try:
            with case.watch.phase("build"):
                arm.build(case.source)
            arm.freeze()
            kept = snapshot
            if kept is None and case.precision == "report":
                kept = self._folders.keep(folder, worker.pid)
        except Fault as fault:
            case.stderr = worker.log
            arm.close()
            self._folders.drop(folder)
            return Built(case, None, fault, None, None)
        except BaseException:
            arm.close()
            raise
        return Built(case, arm, None, folder, kept)

    def _too_long(self, case: Case) -> Fault | None:
        size, most = len(case.source.encode()), self.settings.max_source_bytes
        return (
            None if size <= most else Fault(Status.NO_CODE, f"expected a program of at most {most} bytes, got {size}")
        )

    def _fork(self, case: Case, pool: Pool, snapshot: Path | None, *, core: int | None) -> tuple[Arm, Path | None]:
        """Return a candidate's arm that holds nothing yet, and its build folder where that is one of the host."""
        private = "mount-namespace" in self.spec(None, core=None).layers
        begins_as, folder = self._folders.begin(snapshot, private=private)
        with case.watch.phase("start"):
            worker = self.zygote.fork("arm", self.spec(begins_as, core=core))
        case.layers, case.missing = worker.layers, worker.missing
        return self.arm(worker, pool.anatomy, "ModelNew", case.role), folder

    def rehearse(self, case: Case, pool: Pool, *, leased: bool = False) -> None:
        """Rehearse a program that compiles, for the next `build` of the same program for the same task.

        Args:
            case: The candidate.
            pool: Of its task.
            leased: The caller holds the device.
        """
        key = (case.task.source, case.source)
        if key not in self._ahead and compiles(case.source) and self._too_long(case) is None:
            rehearsal = self._rehearsed(case, pool, leased=leased)
            with self._lock:
                self._ahead[key] = rehearsal

    def _rehearsal(self, case: Case) -> Rehearsal | None:
        with self._lock:
            return self._ahead.pop((case.task.source, case.source), None)

    def _rehearsed(self, case: Case, pool: Pool, *, leased: bool) -> Rehearsal:
        began = time.perf_counter()
        arm, folder = self._fork(case, pool, None, core=None)
        fault: Fault | None = None
        snapshot: Path | None = None
        try:
            arm.build(case.source)
            snapshot = self._compiled(arm, folder, leased=leased)
        except Fault as error:
            fault = error
        finally:
            arm.close()
            self._folders.drop(folder)
        return Rehearsal(fault, snapshot, time.perf_counter() - began, arm.worker.log)

    def _compiled(self, arm: Arm, folder: Path | None, *, leased: bool) -> Path | None:
        """Let an imported program compile the rest; None where it fails, which its own launch will tell again.

        Others that rehearse may use the device at the same time, and nobody measures on it.
        """
        seed = int.from_bytes(os.urandom(7), "little")
        try:
            with lease(*() if leased else self.device.locks, shared=True):
                arm.rehearse(seed, self.device)
            arm.freeze()
        except (Fault, Dead, Late):
            return None
        return self._folders.keep(folder, arm.worker.pid)

    def reference(self, case: Case, pool: Pool) -> Arm:
        """Fork a fresh worker for a task's reference, which is not imported yet."""
        with case.watch.phase("start"):
            worker = self.zygote.fork("arm", self.spec(None, core=self.core))
        return self.arm(worker, pool.anatomy, "Model")

    def arm(self, worker: Worker, anatomy: Anatomy, wanted: str, role: Role = "candidate") -> Arm:
        """Return the arm of a fresh worker; see `Arm`."""
        return Arm(worker, self.device, self._keeper, anatomy, limits(self.settings, role), wanted)

    def drop(self, built: Built) -> None:
        """Kill a candidate, if it lives, and remove what it compiled."""
        if built.arm is not None:
            built.arm.close()
        self._folders.drop(built.folder)
        self._folders.drop(built.snapshot)

    def again(self, built: Built, pool: Pool) -> Arm:
        """Return a candidate's arm, in a new worker if the last one is dead.

        Raises:
            Fault: It can be imported no more.
        """
        if built.arm is None:
            fresh = self.build(built.case, pool, built.snapshot, leased=True)
            self._folders.drop(built.folder)
            built.arm, built.folder = fresh.arm, fresh.folder
            if fresh.fault is not None:
                raise fresh.fault
        assert built.arm is not None
        return built.arm

    def close(self) -> None:
        """Stop every process and remove every file that was made here."""
        self.zygote.close()
        self._keeper.close()
        self._folders.close()
