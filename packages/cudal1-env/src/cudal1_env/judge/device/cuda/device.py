"""The CUDA device: inputs and outputs are in the judge's device memory, which the worker maps.

All tensors here are the judge's own, over memory that it allocated (`cudal1_worker.vmm`); no worker code runs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cudal1_worker import masks, vmm
from cudal1_worker import protocol as wire
from cudal1_worker.masks import Masks
from cudal1_worker.sandbox import GPU_NODE

from cudal1_env.errors import MachineError
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.device.cuda.compiled import compiled
from cudal1_env.judge.device.cuda.copies import CopyEngine
from cudal1_env.judge.device.cuda.gpu import gpu_facts
from cudal1_env.judge.device.cuda.memory import CudaBlock, CudaMemory, arena_sizes, masked_blocks
from cudal1_env.judge.device.cuda.nvml import Nvml
from cudal1_env.judge.device.roofline import Roofline, moved_bytes, roofline_of
from cudal1_env.records import GpuState

Tensor = Any
"""A torch tensor on the GPU."""

_NUMBERS = 1 << 16
"""How many numbers the judge adds up to check that the GPU still computes."""
_WRITING_SHARE = 0.44
"""Assumed share of the bandwidth for writing. Copies reach 0.89; a fill among other work may be half as fast."""
_POOL_SHARE = 0.4
"""Share of the GPU's memory for input sets and answers."""


class CudaDevice(Device):
    """One GPU, leased as a whole.

    Raises:
        MachineError: There is no usable GPU.
    """

    name: Literal["cpu", "cuda"] = "cuda"
    code = 1
    chained = True
    prepares_ahead = True
    neighbour_allowance = 1.0
    at_once_bytes = 256 << 20

    def __init__(self, *, tf32: bool) -> None:
        torch: Any = importlib.import_module("torch")
        facts = gpu_facts()
        if facts.obstacles:
            raise MachineError("; ".join(facts.obstacles))
        self.tf32 = tf32
        self._torch = torch
        self._properties: Any = torch.cuda.get_device_properties(0)
        self._facts = facts
        self.model = facts.name
        self.driver = facts.driver
        self.identity = facts.uuid
        self._nvml = Nvml(facts.uuid)
        torch_faults: tuple[type[Exception], ...] = (torch.AcceleratorError, torch.OutOfMemoryError)
        self.faults = (vmm.CudaError, self._nvml.fault, *torch_faults)
        try:
            torch.zeros(1, device="cuda")  # makes the context
            self.copies = CopyEngine()
            architecture = f"sm_{self._properties.major}{self._properties.minor}"
            self.masks_binary = compiled(masks.SOURCE, architecture)
            self.masks = Masks(self.masks_binary)
        except self.faults as error:
            raise MachineError(
                f"cannot start a context on GPU-{self.identity}: {type(error).__name__}: {error}; "
                f"{facts.foreign_processes} foreign processes use it: wait for them, or choose another GPU"
            ) from error
        self.locks = (f"gpu-{self.identity}",)
        # Torch detects this only where a GPU is visible; nvcc also runs in workers without one.
        architecture = f"{self._properties.major}.{self._properties.minor}+PTX"
        self.environment: dict[str, str] = {"TORCH_CUDA_ARCH_LIST": architecture}
        if sum(GPU_NODE.fullmatch(name) is not None for name in os.listdir("/dev")) > 1:
            # Show workers this GPU only, or a program could use a second one. Select it by uuid: if only one GPU is
            # visible, its number differs.
            self.gpus = (f"nvidia{self._nvml.minor()}",)
            self.environment["CUDA_VISIBLE_DEVICES"] = f"GPU-{self.identity}"

    def chain_limit(self, input_bytes: int) -> int:
        return masked_blocks(input_bytes)

    def free_bytes(self) -> int:
        free, _ = self._torch.cuda.mem_get_info()
        return int(free)

    def process_bytes(self, pids: Collection[int]) -> int | None:
        return self._nvml.process_bytes(pids)

    def computes(self) -> bool:
        return int(self._torch.arange(_NUMBERS, device="cuda").sum()) == _NUMBERS * (_NUMBERS - 1) // 2

    def settle(self) -> None:
        """Release persisting lines of the L2 cache; the untimed calls of a chain settle the rest."""
        vmm.check(vmm.driver.cuCtxResetPersistingL2Cache())

    def out_of_room(self, error: Exception) -> bool:
        return isinstance(error, self._torch.OutOfMemoryError) or wire.says_no_memory(str(error))

    def state(self) -> GpuState:
        return self._nvml.state()

    def foreign_processes(self, own: Collection[int]) -> int:
        return len(self._nvml.processes() - {os.getpid(), *own})

    def roofline(self, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float]) -> Roofline | None:
        """Return the roofline at this GPU's peak memory bandwidth."""
        moved = moved_bytes(input_bytes, output_bytes, shares, level2_bytes=self._facts.level2_bytes)
        return roofline_of(moved, self._facts.bandwidth_gb_s)

    def write_ms(self, size_bytes: int) -> float:
        """Return the time at `_WRITING_SHARE` of the GPU's bandwidth."""
        return size_bytes / (_WRITING_SHARE * self._facts.bandwidth_gb_s) * 1e-6

    def memory(self, pid: int, input_bytes: int, output_bytes: int, work_bytes: int) -> CudaMemory:
        sizes = arena_sizes(output_bytes, work_bytes, int(self._properties.total_memory))
        return CudaMemory(self, input_bytes, *sizes)

    def total_bytes(self) -> int:
        return int(self._properties.total_memory)

    def pool_bytes(self, wanted: int) -> int:
        """Return the memory for input sets and answers: a share of the GPU's, if that is more than `wanted`."""
        return max(wanted, int(_POOL_SHARE * self._properties.total_memory))

    def trim(self) -> None:
        self._torch.cuda.empty_cache()

    def block(self, size_bytes: int) -> CudaBlock:
        return CudaBlock(size_bytes)

    def copy(self, array: Tensor) -> Tensor:
        """Copy a tensor on the GPU and wait, because copy engines are not ordered with torch's streams."""
        copied = array.clone()
        self._torch.cuda.current_stream().synchronize()
        return copied

    def view(self, raw: Tensor, dtype: Literal["float64", "float32", "int64"]) -> Tensor:
        return raw.view(getattr(self._torch, dtype))

    def take(self, wanted: Sequence[tuple[Tensor, npt.NDArray[np.int64]]]) -> list[npt.NDArray[np.generic]]:
        """Copy elements of flat tensors to the host, with one transfer each way, because each transfer blocks."""
        if not wanted:
            return []
        double = self._torch.float64
        borders = np.cumsum([positions.size for _, positions in wanted])[:-1]
        flat = self._torch.from_numpy(np.concatenate([positions for _, positions in wanted])).cuda()
        parts = self._torch.tensor_split(flat, borders.tolist())
        taken = self._torch.cat([_bits(values[part], double) for (values, _), part in zip(wanted, parts, strict=True)])
        found = np.split(taken.cpu().numpy(), borders)
        is_double = [values.dtype.is_floating_point for values, _ in wanted]
        return [part if yes else part.view(np.int64) for part, yes in zip(found, is_double, strict=True)]

    def to_host(self, array: Tensor) -> npt.NDArray[np.uint8]:
        host: npt.NDArray[np.uint8] = array.cpu().numpy()
        return host


def _bits(values: Tensor, double: Any) -> Tensor:
    """Return floats as float64, and the bits of int64 values viewed as float64."""
    return values.to(double) if values.dtype.is_floating_point else values.view(double)
