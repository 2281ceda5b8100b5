"""A worker's sandbox: the layers asked for (`Spec`) and those in force (`Report`)."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

LAYERS = (
    "user-namespace",
    "pid-namespace",
    "network-namespace",
    "ipc-namespace",
    "uts-namespace",
    "mount-namespace",
    "unprivileged-uid",
    "rlimits",
    "no-new-privs",
    "landlock",
    "seccomp",
    "fork-gate",
)
"""Every layer by name, in the order in which a worker enters them."""

GPU_NODE = re.compile(r"nvidia[0-9]+")
"""Names in /dev that stand for one GPU each."""

BUILD_PATH = "/tmp/build"
"""Where the build folder is found inside a mount namespace: in the private /tmp, and bounded with it."""

NOBODY = 65534
"""User and group to which root drops."""


class SandboxFailure(RuntimeError):
    """A layer that was demanded could not be entered, or one broke half-way. The judge raises it as its own error."""


@dataclass(frozen=True)
class Spec:
    """One worker's sandbox. Crosses from judge to zygote as JSON."""

    device: Literal["cpu", "cuda"] = "cpu"
    """`cuda` leaves the NVIDIA devices and the worker's own /proc writable, and sets no memory limit by rlimit."""
    gpus: tuple[str, ...] | None = None
    """Which GPUs' nodes of /dev (`nvidia0`) a `cuda` worker finds; None: all. Nodes that stand for none are there."""
    layers: tuple[str, ...] = LAYERS
    """Layers to try: those that `available_layers()` found on this machine."""
    demanded: tuple[str, ...] = ()
    """Layers without which `enter` raises."""
    readable: tuple[str, ...] = ()
    """Folders visible read-only beside the system's own (see `readable_paths`); nothing else of the host is visible."""
    hidden: tuple[str, ...] = ()
    """Folders below visible ones that are covered by an empty one."""
    build_dir: str | None = None
    """Folder of the host: `BUILD_PATH` begins as a copy of it. Without a mount namespace the worker writes into it."""
    core: int | None = None
    """CPU core to which the worker is held from the start; None leaves it free (the judge can pin it later)."""
    tmp_bytes: int = 1 << 30
    """Size of the private /tmp (the build folder is in it), and of /dev/shm."""
    memory_bytes: int | None = 8 << 30
    """Private writable memory that the worker may add to what it was forked with (CPU only); None: no limit."""
    max_processes: int = 256
    """Tasks (threads and processes) of the worker."""

    @property
    def blind(self) -> bool:
        """Whether it is the sandbox of a CUDA worker that finds no GPU."""
        return self.device == "cuda" and self.gpus == ()

    def nvidia_nodes(self, folder: str = "/dev") -> list[str]:
        """Return the names in /dev of the NVIDIA nodes, and folders of nodes, that a worker may use."""
        found = sorted(name for name in os.listdir(folder) if name.startswith("nvidia"))
        return [name for name in found if self.gpus is None or name in self.gpus or not GPU_NODE.fullmatch(name)]

    def to_json(self) -> str:
        """Return the specification as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
        return cls(**values)


@dataclass
class Report:
    """Layers of a worker. Filled by the supervisor, then by the worker, before it runs an untrusted program."""

    entered: list[str] = field(default_factory=list)
    """Layers in force."""
    missing: dict[str, str] = field(default_factory=dict)
    """Layers not in force, with the reason."""
    tmp: str = "/tmp"
    """The folder in which the worker may write."""
    build: str | None = None
    """Where the build folder is found from inside."""

    @property
    def active(self) -> tuple[str, ...]:
        """Layers in force, in the order of `LAYERS`."""
        return tuple(name for name in LAYERS if name in self.entered)

    @contextlib.contextmanager
    def entering(self, layer: str) -> Generator[None]:
        """Record a layer as in force after the block; as missing, with the reason, where the kernel refuses."""
        try:
            yield
        except OSError as error:
            self.missing[layer] = str(error)
        else:
            self.entered.append(layer)
