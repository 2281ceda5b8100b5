"""A worker's sandbox: the requested layers (`Spec`) and the active ones (`Report`)."""

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
"""Names of single GPUs in /dev."""

BUILD_PATH = "/tmp/build"
"""Path of the build folder in a mount namespace: in the private /tmp, whose size limit includes it."""

HEADERS_PATH = "/tmp/headers"
"""Path of the judge's precompiled headers in a mount namespace."""

NOBODY = 65534
"""User and group to which root drops, unless the worker has its own (`Spec.user`)."""


class SandboxFailure(RuntimeError):
    """A demanded layer could not be entered, or a layer failed half-way. The judge raises it as its own error."""


@dataclass(frozen=True)
class Spec:
    """One worker's sandbox. Crosses from judge to zygote as JSON."""

    device: Literal["cpu", "cuda"] = "cpu"
    """`cuda` leaves the NVIDIA devices and the worker's own /proc writable, and sets no memory limit by rlimit."""
    gpus: tuple[str, ...] | None = None
    """GPU nodes in /dev (`nvidia0`) that a `cuda` worker sees; None shows all. The driver's control nodes are always
    visible."""
    layers: tuple[str, ...] = LAYERS
    """Layers to try, from `available_layers()`."""
    demanded: tuple[str, ...] = ()
    """Layers without which `enter` raises."""
    readable: tuple[str, ...] = ()
    """Folders visible read-only besides the system's (see `readable_paths`); the rest of the host is invisible."""
    hidden: tuple[str, ...] = ()
    """Visible folders to cover with an empty one."""
    build_dir: str | None = None
    """Folder on the host; `BUILD_PATH` starts as its copy. Without a mount namespace the worker writes into it."""
    headers: str | None = None
    """Folder on the host with precompiled headers, visible read-only as `HEADERS_PATH`; needs a mount namespace."""
    user: int = NOBODY
    """User and group of root's worker. The kernel bounds some resources by user, such as descriptors in flight; of
    these no worker may take another's."""
    core: int | None = None
    """CPU core to which the worker is pinned from the start; None leaves it free (the judge can pin it later)."""
    tmp_bytes: int = 1 << 30
    """Size of the private /tmp (including the build folder), and of /dev/shm."""
    memory_bytes: int | None = 8 << 30
    """Private writable memory that the worker may add after the fork (CPU only); None sets no limit."""
    max_processes: int = 256
    """Maximum tasks (threads and processes) of the worker."""

    @property
    def blind(self) -> bool:
        """Whether it is the sandbox of a CUDA worker without a GPU."""
        return self.device == "cuda" and self.gpus == ()

    def nvidia_nodes(self, folder: str = "/dev") -> list[str]:
        """Return the names in /dev of the NVIDIA nodes and folders of nodes that a worker may use."""
        found = sorted(name for name in os.listdir(folder) if name.startswith("nvidia"))
        return [name for name in found if self.gpus is None or name in self.gpus or not GPU_NODE.fullmatch(name)]

    def to_json(self) -> str:
        """Return the specification as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Parse the output of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
        return cls(**values)


@dataclass
class Report:
    """Layers of a worker. Supervisor and worker fill it before the worker runs an untrusted program."""

    entered: list[str] = field(default_factory=list)
    """Active layers."""
    missing: dict[str, str] = field(default_factory=dict)
    """Inactive layers, with the reason."""
    tmp: str = "/tmp"
    """The worker's writable folder."""
    build: str | None = None
    """Path of the build folder from inside."""

    @property
    def active(self) -> tuple[str, ...]:
        """Active layers, in the order of `LAYERS`."""
        return tuple(name for name in LAYERS if name in self.entered)

    @contextlib.contextmanager
    def entering(self, layer: str) -> Generator[None]:
        """Record a layer as active after the block, or as missing, with the reason, if the kernel refuses."""
        try:
            yield
        except OSError as error:
            self.missing[layer] = str(error)
        else:
            self.entered.append(layer)
