"""Groups of options that several commands share: where programs run, and campaigns in parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from cudal1_env.commands.output import log
from cudal1_env.errors import SettingsError

if TYPE_CHECKING:
    from cudal1_env.remote import RemoteEvaluator

Layers = Annotated[tuple[str, ...], tyro.conf.arg(metavar="LAYER ...")]
Files = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]
Baselines = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclass(frozen=True)
class Machine:
    """Where programs run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run; tasks have this device's sizes."""
    require_sandbox: Layers = ()
    """Refuse to work without these sandbox layers."""


@dataclass(frozen=True)
class MachineOrService(Machine):
    """Where programs run, and who judges them."""

    url: str = ""
    """Service that judges (`cudal1-env serve`) instead of this machine, such as http://127.0.0.1:8011; set its token in
    the environment variable CUDAL1_TOKEN. The service's settings of the judge apply."""

    def service(self, **of_judge: object) -> RemoteEvaluator | None:
        """Return a client of the service, or None without `--url`.

        Args:
            **of_judge: Options of the command that only a local judge can follow.

        Raises:
            SettingsError: One of these options is given with a service, or the service has another kind of device.
            MachineError: The service cannot be reached.
        """
        if not self.url:
            return None
        local = {"require_sandbox": self.require_sandbox, **of_judge}
        if given := [f"--{name.replace('_', '-')}" for name, value in local.items() if value]:
            raise SettingsError(f"{', '.join(given)} and --url exclude each other; give it to cudal1-env serve")
        from cudal1_env.remote import RemoteEvaluator

        remote = RemoteEvaluator(self.url)
        if self.device not in ("auto", remote.device):
            remote.close()
            raise SettingsError(f"{self.url} judges on {remote.device}, not on {self.device}; leave --device out")
        return remote


@dataclass(frozen=True)
class Parts:
    """Parts of a campaign, each with its own results file, and their union."""

    part: str = ""
    """K/N: only every N-th task, from the K-th on, for several GPUs or machines, each with its own `out`."""
    known: Files = ()
    """Results files of other runs: programs in them are not judged again, and are not copied to `out`."""
    join: Files = ()
    """Judge nothing: copy what `out` lacks from these results files, and report on all."""


def is_whole(missing: int, count: int, what: str) -> bool:
    """Return whether joined files lack nothing; log what they lack."""
    if missing:
        log(f"{missing} of {count} {what} have no verdict in these files; run their parts again")
    return not missing


class Campaign:
    """A command that judges many programs and writes each verdict to its results file immediately."""

    @property
    def results(self) -> Path | None:
        """Results file of this campaign; None if it has none."""
        return None

    def saved(self) -> str:
        """Return what was saved and how to continue after Ctrl-C."""
        if self.results is None:
            return "nothing was saved; with --out FILE the same command resumes after the verdicts in FILE"
        return f"the verdicts so far are in {self.results}; the same command resumes after them"
