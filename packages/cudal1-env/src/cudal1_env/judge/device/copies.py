"""Copies by the GPU's copy engines, many in one go, which leave its multiprocessors to the worker.

A kernel of the judge's would make the GPU switch from the worker's context to the judge's and back, unevenly, and on
the judge's clock. Copy engines work beside whatever the multiprocessors do.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_worker import vmm

from cudal1_env.errors import MachineError

_Places = npt.NDArray[np.uint64]
_IN_STREAM_ORDER = 1
_BESIDE_COMPUTE = 1


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes of the driver's interface; the hints of places are for managed memory only."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class CopyEngine:
    """Copies between device memory and pinned host memory.

    Raises:
        MachineError: The driver is older than copies in batches (CUDA 12.8).
    """

    def __init__(self) -> None:
        self._stream: Any = vmm.check(vmm.driver.cuStreamCreate(1))  # CU_STREAM_NON_BLOCKING
        try:
            self._batch: Any = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync
        except (OSError, AttributeError) as error:
            raise MachineError("expected a driver of CUDA 12.8 or later, it knows no cuMemcpyBatchAsync") from error
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._batch.argtypes = [pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer]
        self._attributes = _Attributes(order=_IN_STREAM_ORDER, flags=_BESIDE_COMPUTE)
        self._first = ctypes.c_size_t(0)
        self._failed = ctypes.c_size_t(0)

    def copy(self, targets: _Places, sources: _Places, sizes: _Places) -> None:
        """Copy pieces of memory and wait until all are there.

        Args:
            targets: Addresses, shape (n,).
            sources: Addresses, shape (n,).
            sizes: Bytes of each, shape (n,), none zero.

        Raises:
            MachineError: The driver refuses.
        """
        if not targets.size:
            return
        status = self._batch(
            targets.ctypes.data,
            sources.ctypes.data,
            sizes.ctypes.data,
            targets.size,
            ctypes.byref(self._attributes),
            ctypes.byref(self._first),
            1,
            ctypes.byref(self._failed),
            int(self._stream),
        )
        if status:
            raise MachineError(f"expected the driver to copy {targets.size} pieces, it said {status}")
        vmm.check(vmm.driver.cuStreamSynchronize(self._stream))

    def copy_one(self, target: int, source: int, size_bytes: int) -> None:
        """Copy one piece."""
        self.copy(*(np.array([number], dtype=np.uint64) for number in (target, source, size_bytes)))
