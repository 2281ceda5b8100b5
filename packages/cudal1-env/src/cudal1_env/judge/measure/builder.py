"""Builds arms: fresh, frozen workers with an imported program. Several threads may call it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from cudal1_worker.sandbox import Spec

from cudal1_env.judge.device.base import Device
from cudal1_env.judge.device.cpu import cpu_info
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Built, Case, Role
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.precompile import Precompilations, builds_extension, compiles, compiles_by_torch
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.judge.oracle.replies import IoSpec
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.build_folders import BuildFolders
from cudal1_env.judge.workers.build_store import BuildStore, build_key
from cudal1_env.judge.workers.headers import Headers
from cudal1_env.judge.workers.lease import Hold, core_name, sharing
from cudal1_env.judge.workers.toolchain import toolchain
from cudal1_env.judge.workers.worker import Worker
from cudal1_env.judge.workers.zygote import Zygote
from cudal1_env.records import Status
from cudal1_env.sandbox import clean_environment, default_spec

_NOT_FOR_WORKERS = ("cudal1_data", "cudal1_env", "cudal1_agent")
"""This project's packages that no worker imports."""
_MAX_SOURCE_BYTES = 1 << 20
"""Maximum length of a program."""
_EXTENSIONS = ("torch.utils.cpp_extension",)
"""Modules that programs with an extension import; preloading saves a second under the lease in each worker."""
_ON_GPUS = ("triton",)
"""Modules that most programs for a GPU import."""
_COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
"""Modules that `torch.compile` imports at first use; preloading saves seconds under the lease in each worker."""


class Builder:
    """Forks workers, lets them import programs, and keeps their compiled files for later trials."""

    def __init__(self, settings: JudgeSettings, device: Device, core: int | None) -> None:
        self.settings = settings
        self.device = device
        self.core = core
        always = (*_EXTENSIONS, *_ON_GPUS) if device.name == "cuda" else _EXTENSIONS
        self.zygote = Zygote(device.environment, preload=always)
        self._with_compiler = Zygote(device.environment, preload=(*always, *_COMPILER))
        self.folders = BuildFolders()
        self.store = BuildStore(settings.build_store_bytes)
        self.headers = Headers(device.environment, kept=settings.build_store_bytes > 0, core=core)
        self.precompilations = Precompilations(self)

    @property
    def leases(self) -> tuple[str, ...]:
        """What a program shares while it is imported or precompiled.

        It would disturb a measurement on any core, and two programs could agree to slow a reference (H40).
        """
        return core_name(self.core), *self.device.locks

    def spec(self, folder: Path | None, *, core: int | None, blind: bool = False) -> Spec:
        """Return a worker's sandbox: an arm has a core of its own, an oracle has none, a blind worker sees no GPU."""
        return default_spec(
            self.device.name,
            demanded=self.settings.require_sandbox,
            gpus=() if blind else self.device.gpus,
            hidden=own_packages(),
            build_dir=None if folder is None else str(folder),
            core=core,
            tmp_bytes=self.settings.scratch_bytes,
            memory_bytes=self.settings.memory_bytes,
            max_processes=self.settings.max_processes,
        )

    def private_files(self) -> bool:
        """Return whether workers have their own file system, which can hide GPUs and confines their writes."""
        return "mount-namespace" in self.spec(None, core=None).layers

    def key(self, case: Case) -> str | None:
        """Return the name of a program's entry in the store; None if workers could write to the store.

        The process that it is forked from has started then, before a lease is taken: torch's compiler takes seconds.
        """
        zygote = self._zygote_of(case)
        zygote.start()
        if not self.private_files():
            return None
        environment, cpu = clean_environment(**self.device.environment), cpu_info()
        return build_key(
            case.source,
            case.task.source,  # determines the inputs' shapes
            self.spec(None, core=None).layers,
            toolchain(environment),
            (zygote.torch, zygote.cuda),
            (cpu.get("flags"), cpu.get("model name")),  # `-march=native` depends on them
            (self.device.name, self.device.model, self.device.driver, self.device.tf32),
            sorted(environment.items()),
        )

    def build(self, case: Case, pool: Pool, snapshot: Path | None = None, *, hold: Hold | None = None) -> Built:
        """Import a candidate in a fresh worker and freeze it.

        Args:
            case: The candidate.
            pool: Its task's pool.
            snapshot: Files that an earlier trial of the program compiled.
            hold: The caller's hold of the device, exclusive (`Hold()`) or shared. With one, the program is not
                precompiled now, and the caller must close the candidate before releasing the device. By default a
                shared lease is taken for the import.
        """
        if (fault := self.too_long(case)) is not None:
            return Built(case, fault=fault)
        made = None if snapshot else self.precompilations.take(case, pool, leased=hold is not None)
        if made is None:
            return self._leased_import(case, pool, snapshot, hold)
        if made.fault is not None:
            return replace(made, case=case)
        try:
            built = self._leased_import(case, pool, made.snapshot, hold)
        except BaseException:
            self.folders.drop(made.snapshot)
            raise
        built.note = made.note
        if built.fault is not None:
            self.folders.drop(made.snapshot)
        return built

    def _leased_import(self, case: Case, pool: Pool, snapshot: Path | None, hold: Hold | None) -> Built:
        """Import a candidate under the caller's hold, or under a shared lease.

        A candidate that gave way, or that may have work queued on a GPU, is imported again under the next lease:
        queued work continues even if the candidate is frozen.
        """
        if hold is not None:
            return self._imported(case, pool, snapshot, hold)
        with sharing(*self.leases) as (hold, waited):
            case.watch.add("wait", waited)
            built = self._imported(case, pool, snapshot, hold)
            if hold.gave_way:
                built.fault = None
            queued = built.arm is not None and bool(self.device.locks) and built.arm.worker.uses_gpu()
            if built.arm is not None and (hold.gave_way or queued):
                built.arm.close()
                built.arm = None
        return built

    def _imported(self, case: Case, pool: Pool, snapshot: Path | None, hold: Hold) -> Built:
        """Import a candidate in a build folder that starts as a copy of `snapshot`; on a fault the caller keeps that.

        On a GPU, arms are pinned to their core only by `Arm.open`, because both are constructed at once. The same holds
        for programs that compile: each import or constructor repeats a failed build, in all arms of a batch.
        """
        # An untimed arm needs no core of its own.
        free = self.device.name == "cuda" or compiles(case.source) or case.precision == "correct"
        arm, folder = self.fork(case, pool, snapshot, core=None if free else self.core)
        worker = arm.worker
        hold.kills(worker.interrupt)
        try:
            with case.watch.phase("build"):
                arm.build(case.source)
            arm.freeze()
            kept = snapshot or self.folders.keep(folder, worker.pid)
        except BaseException as error:
            arm.close()
            self.folders.drop(folder)
            if not isinstance(error, Fault):
                raise
            fault = error.plain()
            return Built(case, None, fault, layers=worker.layers, missing=worker.missing, stderr=worker.log)
        return Built(case, arm, None, folder, kept, worker.layers, worker.missing)

    def too_long(self, case: Case) -> Fault | None:
        """Return the fault of a program that is too long, or None."""
        if (size := len(case.source.encode())) <= _MAX_SOURCE_BYTES:
            return None
        return Fault(Status.NO_CODE, f"expected a program of at most {_MAX_SOURCE_BYTES} bytes, got {size}")

    def fork(
        self, case: Case, pool: Pool, snapshot: Path | None, *, core: int | None, blind: bool = False
    ) -> tuple[Arm, Path | None]:
        """Return a candidate's empty arm, and its build folder if that is on the host."""
        begins_as, folder = self.folders.begin(snapshot, private=self.private_files())
        with case.watch.phase("start"):
            spec = self.spec(begins_as, core=core, blind=blind)
            if builds_extension(case.source):
                spec = replace(spec, headers=self.headers.folder)
            worker = self._zygote_of(case).fork("arm", spec)
        return self.arm(worker, pool.io_spec, "ModelNew", case.role), folder

    def reference(self, case: Case, pool: Pool) -> Arm:
        """Return an arm in a fresh worker for a task's reference, which is not yet imported."""
        with case.watch.phase("start"):
            core = None if self.device.name == "cuda" else self.core
            worker = self._zygote_of(case).fork("arm", self.spec(None, core=core))
        return self.arm(worker, pool.io_spec, "Model")

    def _zygote_of(self, case: Case) -> Zygote:
        """Return the zygote of both arms of a case: one process, so that the arms differ only in their program."""
        return self._with_compiler if compiles_by_torch(case.source) else self.zygote

    def arm(self, worker: Worker, io_spec: IoSpec, wanted: str, role: Role = "candidate") -> Arm:
        """Return the arm of a fresh worker; see `Arm`."""
        settings = self.settings
        if role == "baseline":  # the task's own, trusted text may compile for longer
            settings = settings.model_copy(update={"warmup_timeout_s": settings.baseline_warmup_timeout_s})
        return Arm(worker, self.device, self.core, io_spec, settings, wanted)

    def drop(self, built: Built) -> None:
        """Kill a candidate, if it is alive, and remove its compiled files."""
        if built.arm is not None:
            built.arm.close()
        self.folders.drop(built.folder)
        self.folders.drop(built.snapshot)

    def again(self, built: Built, pool: Pool) -> Arm:
        """Return a candidate's arm, in a new worker if the last one is dead."""
        if built.arm is None:
            fresh = self.build(built.case, pool, built.snapshot, hold=Hold())
            self.folders.drop(built.folder)
            built.arm, built.folder, built.snapshot = fresh.arm, fresh.folder, built.snapshot or fresh.snapshot
            built.layers, built.missing = fresh.layers, fresh.missing
            if fresh.fault is not None:
                raise fresh.fault
        assert built.arm is not None
        return built.arm

    def close(self) -> None:
        """Stop every process and remove every file that this builder made."""
        self.zygote.close()
        self._with_compiler.close()
        self.headers.close()
        self.folders.close()


def own_packages() -> tuple[str, ...]:
    """Return the folders on the module path of this project's packages, except that which workers import.

    They hold correct programs: variants of bundled tasks, a corpus, and templates that write programs for any task.
    """
    folders = (Path(entry) / name for entry in sys.path for name in _NOT_FOR_WORKERS)
    return tuple(sorted({str(folder.resolve()) for folder in folders if folder.is_dir()}))
