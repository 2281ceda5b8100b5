"""Facts about a GPU and its driver, and which settings the judge refuses to work with."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.errors import MachineError
from cudal1_env.judge.device.cuda.nvml import Nvml

_COPIES_SINCE = (12, 8)
"""CUDA version of the first driver with batched copies (`copies.py`)."""
_MPS = "nvidia-cuda-mps"
"""Prefix of the names of MPS's processes; the system truncates the names."""


class GpuFacts(BaseModel):
    """One GPU and its driver."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Model."""
    uuid: str
    """UUID as in `nvidia-smi -L`, without `GPU-`."""
    driver: str
    """Version of the driver."""
    cuda: tuple[int, int]
    """Newest CUDA version that the driver supports."""
    compute_mode: str
    """`default`, `exclusive thread`, `exclusive process` or `prohibited`."""
    mig: bool
    """Whether it is divided into instances."""
    mps: bool
    """Whether NVIDIA's multi-process service runs on this machine."""
    memory_bytes: int = Field(gt=0)
    """Size of its memory."""
    level2_bytes: int = Field(gt=0)
    """Size of its L2 cache."""
    bandwidth_gb_s: float = Field(gt=0)
    """Peak memory bandwidth in 1e9 bytes/s."""
    foreign_processes: int = Field(ge=0)
    """Other processes that compute on it."""

    @property
    def obstacles(self) -> list[str]:
        """Why the judge refuses to work with it; each sentence says what to do."""
        found: list[str] = []
        if self.cuda < _COPIES_SINCE:
            found.append(
                f"expected a driver of CUDA {_COPIES_SINCE[0]}.{_COPIES_SINCE[1]} or later, driver {self.driver} is of "
                f"CUDA {self.cuda[0]}.{self.cuda[1]}; install a newer one"
            )
        if self.mps:
            found.append(
                "expected the multi-process service (MPS) to be off, because programs that share a context see each "
                "other's faults and speed; it runs: stop it with `echo quit | nvidia-cuda-mps-control`"
            )
        if self.compute_mode != "default":
            found.append(
                f"expected compute mode `default`, because judge, oracle and workers use the GPU side by side; it is "
                f"`{self.compute_mode}`: set it with `nvidia-smi -c DEFAULT`"
            )
        if self.mig:
            found.append(
                "expected a whole GPU, because instances (MIG) share memory and power with their neighbours; it is "
                "divided: switch that off with `nvidia-smi -mig 0`, or choose another with CUDA_VISIBLE_DEVICES"
            )
        return found

    def text(self) -> list[str]:
        """Return the facts as lines of text."""
        lines = [
            f"gpu       {self.name}, GPU-{self.uuid}",
            f"gpu       driver {self.driver} (CUDA {self.cuda[0]}.{self.cuda[1]}), "
            f"{self.memory_bytes / 2**30:.0f} GiB, L2 cache {self.level2_bytes / 2**20:.0f} MiB, "
            f"at most {self.bandwidth_gb_s:.0f} GB/s",
            f"gpu       compute mode {self.compute_mode}, MIG {'on' if self.mig else 'off'}, "
            f"MPS {'on' if self.mps else 'off'}",
        ]
        if self.foreign_processes:
            lines.append(f"gpu       BUSY: {self.foreign_processes} foreign processes: treat timings as unreliable")
        return lines


def gpu_facts() -> GpuFacts:
    """Return the facts about the first GPU that this process may use.

    Raises:
        MachineError: There is no GPU, or its driver does not answer.
    """
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise MachineError(
            f"torch finds no NVIDIA GPU with a driver for CUDA {torch.version.cuda} or later; look at nvidia-smi, or "
            "use device='cpu'"
        )
    try:
        properties: Any = torch.cuda.get_device_properties(0)
    except RuntimeError as error:
        raise MachineError(
            f"CUDA does not start: {error}; nvidia-smi shows whether another process has the GPU to itself"
        ) from error
    nvml = Nvml(str(properties.uuid))
    try:
        return _facts(properties, nvml)
    except nvml.fault as error:
        raise MachineError(
            f"the driver does not describe GPU-{properties.uuid}: {error}; install another driver"
        ) from error


def _facts(properties: Any, nvml: Nvml) -> GpuFacts:
    driver, cuda = nvml.driver()
    return GpuFacts(
        name=str(properties.name),
        uuid=str(properties.uuid),
        driver=driver,
        cuda=cuda,
        compute_mode=nvml.compute_mode(),
        mig=nvml.is_divided(),
        mps=mps_runs() or nvml.mps_clients() > 0,
        memory_bytes=int(properties.total_memory),
        level2_bytes=int(properties.L2_cache_size),
        bandwidth_gb_s=nvml.bandwidth_gb_s(),
        foreign_processes=len(nvml.processes() - {os.getpid()}),
    )


def mps_runs(processes: Path = Path("/proc")) -> bool:
    """Return whether a process of the multi-process service is visible on this machine."""
    for entry in processes.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name = (entry / "comm").read_text()
        except OSError:  # it has just ended
            continue
        if name.startswith(_MPS):
            return True
    return False
