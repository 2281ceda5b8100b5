"""Batched copies by the GPU's copy engines, which leave the multiprocessors to the worker.

A copy kernel of the judge would make the GPU switch between the worker's context and the judge's, in uneven time and on
the judge's clock. Copy engines run beside the multiprocessors.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_worker import vmm

from cudal1_env.errors import MachineError

Places = npt.NDArray[np.uint64]
"""Addresses, or sizes in bytes."""
_IN_STREAM_ORDER = 1
_BESIDE_COMPUTE = 1


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes of the driver's interface; the location hints apply to managed memory only."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class Batch:
    """Pieces of memory to copy together. The arrays may be written to, but not replaced.

    Args:
        targets: Addresses, shape (n,).
        sources: Addresses, shape (n,).
        sizes: Bytes of each piece, shape (n,), none zero.
    """

    def __init__(self, targets: Places, sources: Places, sizes: Places) -> None:
        self.targets, self.sources, self.sizes = targets, sources, sizes
        self.count = targets.size
        self.pointers = tuple(ctypes.c_void_p(one.ctypes.data) for one in (targets, sources, sizes))


class CopyEngine:
    """Copies between device memory and pinned host memory; needs a driver of CUDA 12.8 (`GpuFacts.obstacles`)."""

    def __init__(self) -> None:
        self._stream: Any = vmm.check(vmm.driver.cuStreamCreate(1))  # CU_STREAM_NON_BLOCKING
        stream = ctypes.c_void_p(int(self._stream))
        driver = ctypes.CDLL("libcuda.so.1")  # avoids the per-call cost of cuda-bindings
        self._batch: Any = driver.cuMemcpyBatchAsync
        self._wait: Any = functools.partial(driver.cuStreamSynchronize, stream)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._batch.argtypes = [pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer]
        self._shared: tuple[Any, ...] = (
            ctypes.byref(_Attributes(order=_IN_STREAM_ORDER, flags=_BESIDE_COMPUTE)),
            ctypes.byref(ctypes.c_size_t(0)),  # index of the first piece that the attributes apply to
            1,
            ctypes.byref(ctypes.c_size_t(0)),
            stream,
        )

    def run(self, batch: Batch) -> None:
        """Copy pieces of memory and wait for completion.

        Raises:
            MachineError: The driver refuses.
        """
        if not batch.count:
            return
        if status := self._batch(*batch.pointers, batch.count, *self._shared) or self._wait():
            raise MachineError(f"copying {batch.count} pieces of memory failed with error {status} of the driver")

    def copy_one(self, target: int, source: int, size_bytes: int) -> None:
        """Copy one piece."""
        self.run(Batch(*(np.array([number], dtype=np.uint64) for number in (target, source, size_bytes))))
