"""`cudal1-env serve`: an HTTP service in one process that owns this host's GPUs."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from cudal1_data.commandline import STATED_DEFAULT

from cudal1_env.commands.campaign import Baselines, Machine
from cudal1_env.commands.output import log, plain
from cudal1_env.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudal1_data import Task

    from cudal1_env.gate import AuditReport
    from cudal1_env.judge import JudgeSettings
    from cudal1_env.records import Device
    from cudal1_env.service.slot import Slot


@dataclass(frozen=True)
class Address:
    """Address and tokens of the service."""

    host: str = "127.0.0.1"
    """Address to listen on; addresses other than loopback need a token file."""
    port: int = 8011
    """Port to listen on; 0 takes a free one."""
    token_file: Path | None = None
    """File of accepted tokens, one per line; every route then requires one (Authorization: Bearer TOKEN)."""


@dataclass(frozen=True)
class Measurement:
    """What to measure."""

    baselines: Baselines = ()
    """Other ways to run the references, to compare correct programs with, as for `evaluate`."""
    policy: Literal["strict", "kernelbench"] = "strict"
    """`kernelbench` adds a verdict by KernelBench's rules; the reward is unchanged."""


@dataclass(frozen=True)
class Ray:
    """Judges on a Ray cluster."""

    ray: str = ""
    """Judge on this Ray cluster instead of this host: its address, or `auto` (extra `ray`)."""
    ray_judges: int = 1
    """With --ray: number of judges, each with its own GPU."""
    ray_accelerator: str = ""
    """With --ray: GPU model of all judges, as Ray names it (H100, H200)."""


@dataclass(frozen=True)
class Limits:
    """Limits of the service."""

    max_queue: int = 4096
    """Maximum number of waiting jobs; further requests are answered with 429 and Retry-After."""
    max_body_bytes: int = 8 << 20
    """Maximum size of a request's body."""
    deadline_s: float = 1800.0
    """A judge that gives no verdict for this long after it took its jobs is killed and started again. Time in the queue
    does not count."""


@dataclass(frozen=True)
class Serve:
    """Judge programs for clients over HTTP, with one judge for each GPU of this host; docs/service.md.

    Example: cudal1-env serve --device cpu --port 8011
    """

    suite: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SUITE ...")] = ("starter",)
    """Suites whose tasks clients may name."""
    allow_tasks: bool = False
    """Also judge tasks that clients send; their references run in the sandbox."""
    store: Annotated[Path | None, STATED_DEFAULT] = None
    """SQLite file of verdicts: jobs posted again after a restart get the same record (default: a temporary
    one)."""
    address: Annotated[Address, tyro.conf.OmitArgPrefixes] = field(default_factory=Address)
    """Address and tokens of the service."""
    machine: Annotated[Machine, tyro.conf.OmitArgPrefixes] = field(default_factory=Machine)
    """Where programs run."""
    measurement: Annotated[Measurement, tyro.conf.OmitArgPrefixes] = field(default_factory=Measurement)
    """What to measure."""
    cluster: Annotated[Ray, tyro.conf.OmitArgPrefixes] = field(default_factory=Ray)
    """Judges on a Ray cluster."""
    limits: Annotated[Limits, tyro.conf.OmitArgPrefixes] = field(default_factory=Limits)
    """Limits of the service."""

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, then finish the jobs that judges have taken."""
        import importlib.util

        if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
            raise SettingsError(
                "serve needs the extra cudal1-env[serve]; install its packages with: "
                "pip install fastapi prometheus-client uvicorn"
            )
        from cudal1_env.baselines import resolve
        from cudal1_env.hardware import resolve_device
        from cudal1_env.judge import JudgeSettings
        from cudal1_env.sandbox import available_layers, require_layers
        from cudal1_env.service.access import read_tokens
        from cudal1_env.service.app import AppOptions
        from cudal1_env.service.dispatch import Dispatcher
        from cudal1_env.service.metrics import Metrics
        from cudal1_env.service.server import Server, listen, url_of
        from cudal1_env.service.store import Store

        limits = self.limits
        for name, value, least in (
            ("--max-queue", limits.max_queue, 1),
            ("--max-body-bytes", limits.max_body_bytes, 4096),
        ):
            if value < least:
                raise SettingsError(f"{name} is {value}; give at least {least}")
        if not 0 < limits.deadline_s < math.inf:
            raise SettingsError(f"--deadline-s is {limits.deadline_s:g}; give a finite number above 0")
        if not self.cluster.ray and self.cluster != Ray():
            raise SettingsError("--ray-judges and --ray-accelerator need a cluster; name it with --ray, or omit them")
        tokens = read_tokens(self.address.token_file, self.address.host)
        if self.address.token_file is not None and self.address.token_file.stat().st_mode & 0o077:
            log(f"other users of this machine may read the token file; type: chmod 600 {self.address.token_file}")
        device = resolve_device(self.machine.device)
        require_layers(self.machine.require_sandbox, available_layers(device))
        tasks, audits = _loaded(self.suite, device)
        settings = JudgeSettings(
            device=device,
            require_sandbox=self.machine.require_sandbox,
            baselines=resolve(self.measurement.baselines, device),
            policy=self.measurement.policy,
        )
        address = listen(self.address.host, self.address.port)
        options = AppOptions(
            {task.id: task for task in tasks},
            allow_tasks=self.allow_tasks,
            tokens=tokens,
            settings=settings.model_dump_json(),
            max_body_bytes=self.limits.max_body_bytes,
        )
        dispatcher = Dispatcher(
            self._slots(device, settings, audits),
            Store(self.store),
            Metrics(),
            max_queued=self.limits.max_queue,
        )
        with contextlib.closing(dispatcher):
            server = Server(dispatcher, options)
            at = ", ".join(slot.name for slot in dispatcher.slots)
            url = url_of(self.address.host, address.getsockname()[1])
            log(f"serving {len(tasks)} tasks at {url} on {server.facts.model} ({at})")
            server.run(sockets=[address])
        log("stopped after the jobs that judges had begun")
        return 0

    def _slots(self, device: Device, settings: JudgeSettings, audits: Sequence[AuditReport]) -> list[Slot]:
        if not self.cluster.ray:
            from cudal1_env.service.process import host_slots

            return host_slots(device, settings, audits, self.limits.deadline_s)
        from cudal1_env.service.ray_judges import RayJudges

        return RayJudges(
            settings,
            judges=self.cluster.ray_judges,
            address=self.cluster.ray,
            accelerator=self.cluster.ray_accelerator or None,
            audits=audits,
        ).slots()


def _loaded(suites: Sequence[str], device: Device) -> tuple[list[Task], list[AuditReport]]:
    """Return the tasks of suites, including their held-out sizes, and the suites' audits."""
    from cudal1_data import load_suite

    from cudal1_env.gate import find_audit

    tasks: list[Task] = []
    audits: list[AuditReport] = []
    for name in suites:
        suite = load_suite(name, device=device)
        for broken in suite.broken:
            log(f"left out: {plain(str(broken.error))}")
        for task in suite:
            tasks += [task, *task.held_out(device)]
        if (audit := find_audit("auto", suite.name, device)) is not None:
            audits.append(audit)
    return tasks, audits
