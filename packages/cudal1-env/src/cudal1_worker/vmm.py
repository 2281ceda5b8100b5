"""CUDA virtual memory shared between processes as a file descriptor. Judge and worker both use this module.

The judge allocates, maps and exports the memory; a worker imports and maps it at its own address. All calls go through
the driver interface of cuda-bindings, on the current context.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

driver: Any = importlib.import_module("cuda.bindings.driver")  # has no types
"""The driver's interface; the import does not start CUDA."""

GRANULARITY = 2 << 20
"""Sizes are multiples of this many bytes (the largest minimum granularity of existing devices)."""


class CudaError(RuntimeError):
    """A driver call failed; the text names it."""


def check(result: tuple[Any, ...]) -> Any:
    """Return the result of a driver call without its status.

    Raises:
        CudaError: The call failed.
    """
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"a call of the CUDA driver failed with {status.name}")
    return values[0] if len(values) == 1 else values


def rounded(size_bytes: int) -> int:
    """Round a size up to the granularity."""
    return max(1, -(-size_bytes // GRANULARITY)) * GRANULARITY


def _on(device: int) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return location


class Mapping:
    """Device memory mapped in this process."""

    def __init__(self, handle: Any, size_bytes: int, device: int) -> None:
        self._handle = handle
        self.size_bytes = size_bytes
        self.device = device
        self.address = 0
        try:
            self._map()
        except CudaError:
            self._undo()
            raise

    def _map(self) -> None:
        self.address = int(check(driver.cuMemAddressReserve(self.size_bytes, 0, 0, 0)))
        check(driver.cuMemMap(self.address, self.size_bytes, 0, self._handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = _on(self.device)
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(driver.cuMemSetAccess(self.address, self.size_bytes, [access], 1))

    def _undo(self) -> None:
        """Free the existing parts of a mapping and ignore driver errors."""
        if self.address:
            driver.cuMemUnmap(self.address, self.size_bytes)
            driver.cuMemAddressFree(self.address, self.size_bytes)
        driver.cuMemRelease(self._handle)
        self.address = 0

    @classmethod
    def create(cls, size_bytes: int, device: int) -> Mapping:
        """Allocate memory that can be exported."""
        size_bytes = rounded(size_bytes)
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        properties.location = _on(device)
        return cls(check(driver.cuMemCreate(size_bytes, properties, 0)), size_bytes, device)

    @classmethod
    def take(cls, fd: int, size_bytes: int, device: int) -> Mapping:
        """Map memory that another process exported; the descriptor may be closed afterwards."""
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return cls(check(driver.cuMemImportFromShareableHandle(fd, kind)), rounded(size_bytes), device)

    def export(self) -> int:
        """Return a new descriptor of the memory."""
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        fd = int(check(driver.cuMemExportToShareableHandle(self._handle, kind, 0)))
        os.set_inheritable(fd, False)
        return fd

    def tensor(self) -> Any:
        """Return the memory as a torch tensor of bytes, shape (size_bytes,); it must not outlive the mapping."""
        import torch

        return torch.as_tensor(_Bytes(self.address, self.size_bytes), device=f"cuda:{self.device}")

    def close(self) -> None:
        """Unmap the memory, which this process must no longer use; it is freed when no process holds it."""
        if self.address:
            check(driver.cuMemUnmap(self.address, self.size_bytes))
            check(driver.cuMemAddressFree(self.address, self.size_bytes))
            check(driver.cuMemRelease(self._handle))
            self.address = 0


class _Bytes:
    """CUDA array interface (version 3) over an address, from which torch makes a tensor."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
