"""Groups of options that several commands have: where programs run, and campaigns in parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

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
    """Where programs run, and whose task sizes are used."""
    require_sandbox: Layers = ()
    """Refuse to work unless these sandbox layers are active."""


@dataclass(frozen=True)
class MachineOrService(Machine):
    """Where programs run, and who judges them."""

    url: str = ""
    """Service that judges (`cudal1-env serve`), such as http://127.0.0.1:8011, instead of this machine; the environment
    variable CUDAL1_TOKEN has its token. Settings of the judge are the service's."""

    def service(self, **of_judge: object) -> RemoteEvaluator | None:
        """Return a client of the service, if one is to judge.

        Args:
            **of_judge: Options of the command that only a judge of its own would follow.

        Raises:
            SettingsError: Such an option is given with a service, or the service has another kind of device.
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
    """A campaign in parts, each with its own results file, and the files put together."""

    part: str = ""
    """K/N: only every N-th task, from the K-th on, for several GPUs or machines with an own `out` each."""
    known: Files = ()
    """Results files of other runs: what they hold is not judged again, and is not copied to `out`."""
    join: Files = ()
    """Judge nothing: copy what `out` lacks from these results files, and report on all."""


class Campaign:
    """A command that judges many programs and writes each verdict to its results file at once."""

    @property
    def results(self) -> Path | None:
        """Results file of this campaign; None if it has none."""
        return None

    def saved(self) -> str:
        """Return what was saved and how to go on after Ctrl-C."""
        if self.results is None:
            return "nothing was saved; with --out FILE the same command goes on behind what FILE holds"
        return f"what was judged is in {self.results}; the same command goes on behind it"
