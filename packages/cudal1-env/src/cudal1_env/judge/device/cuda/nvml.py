"""A GPU's state as its driver reports it: clock rates, power, throttling, processes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection
from typing import Any

from cudal1_env.errors import MachineError
from cudal1_env.records import GpuState

THROTTLES = {
    0x02: "applications clocks",
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Throttle reasons by bit (NVML, nvmlClocksEventReason*); bit 0 (idle) is not one."""


class Nvml:
    """One GPU in the driver's management library.

    Raises:
        MachineError: The library does not know the GPU.
    """

    def __init__(self, uuid: str) -> None:
        pynvml: Any = importlib.import_module("pynvml")  # it carries no types
        self._nvml = pynvml
        self.fault: type[Exception] = pynvml.NVMLError
        """Exception that every method raises if the driver does not answer."""
        try:
            pynvml.nvmlInit()
            self._handle: Any = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            raise MachineError(
                f"NVML does not know GPU-{uuid}: {error}; turn MIG off, or install the driver again"
            ) from error

    def state(self) -> GpuState:
        """Read clock rates, power and throttle reasons; takes some 0.1 ms."""
        nvml, handle = self._nvml, self._handle
        reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return GpuState(
            sm_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            celsius=int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttled=tuple(name for bit, name in THROTTLES.items() if reasons & bit),
        )

    def processes(self) -> frozenset[int]:
        """Return the pids of processes that compute on the GPU, as far as this user may see them."""
        return frozenset(int(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))

    def process_bytes(self, pids: Collection[int]) -> int | None:
        """Return the GPU memory that some processes hold; of dead ones 0.

        Memory that another process allocated and shared with them counts for that process.

        Returns:
            The bytes; None where the driver does not name this user's processes, or not their memory.
        """
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        if os.getpid() not in {int(one.pid) for one in processes}:
            return None
        held = [one.usedGpuMemory for one in processes if int(one.pid) in pids]
        return None if None in held else sum(held)

    def mps_clients(self) -> int:
        """Return how many processes use the GPU through the multi-process service."""
        try:
            return len(self._nvml.nvmlDeviceGetMPSComputeRunningProcesses(self._handle))
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return 0

    def compute_mode(self) -> str:
        """Return the compute mode; see `GpuFacts`."""
        modes = ("default", "exclusive thread", "prohibited", "exclusive process")  # NVML_COMPUTEMODE_*
        mode = int(self._nvml.nvmlDeviceGetComputeMode(self._handle))
        return modes[mode] if mode < len(modes) else f"unknown ({mode})"

    def is_divided(self) -> bool:
        """Return whether the GPU is divided into instances (MIG)."""
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(self._handle)[0])
        except self._nvml.NVMLError_NotSupported:
            return False

    def driver(self) -> tuple[str, tuple[int, int]]:
        """Return the driver's version, and the newest CUDA version that it supports."""
        version = int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())
        return str(self._nvml.nvmlSystemGetDriverVersion()), (version // 1000, version % 1000 // 10)

    def bandwidth_gb_s(self) -> float:
        """Return the memory's peak bandwidth in 1e9 bytes/s: two transfers per cycle on each line of its bus."""
        megahertz = int(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, self._nvml.NVML_CLOCK_MEM))
        return 2e-3 * megahertz * int(self._nvml.nvmlDeviceGetMemoryBusWidth(self._handle)) / 8

    def minor(self) -> int:
        """Return the number of the GPU's node in /dev."""
        return int(self._nvml.nvmlDeviceGetMinorNumber(self._handle))
