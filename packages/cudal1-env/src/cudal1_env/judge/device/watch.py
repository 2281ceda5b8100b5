"""Sees whether anything else runs on the GPU, by a kernel of the judge's that looks at the time without a pause.

Kernels of two processes take turns (MPS is off): while this one runs, another process's kernel can only run when this
one is taken off the GPU, and that is a gap in the times that it reads. What copy engines do leaves none.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from cudal1_worker import vmm

from cudal1_env.errors import MachineError

_SOURCE = b"""
extern "C" __global__ void watch(volatile unsigned *words, unsigned long long least_ns, unsigned long long most_ns) {
    unsigned long long began, last, now, taken = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    last = began;
    words[0] = 1;
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - last > least_ns) taken += now - last;
        last = now;
    } while (!words[1] && now - began < most_ns);
    words[2] = (unsigned)taken;
    __threadfence_system();
}
"""
_STARTED, _STOP, _TAKEN = 0, 1, 2
_LEAST_NS = 50_000
"""Gaps below this are reads over a busy bus; taking a context off the GPU and putting it back takes over 100 us."""
_MOST_NS = 1_000_000_000
_HOLD_S = 4e-3
"""How long it stays when the inputs are there: longer than the turn that the GPU gives to one process."""
_START_S = 1.0


class Watch:
    """The kernel, compiled once.

    Raises:
        MachineError: NVRTC refuses it, or it does not start.
    """

    def __init__(self) -> None:
        self._function = _compiled(_SOURCE, b"watch")
        self._stream: Any = vmm.check(vmm.driver.cuStreamCreate(1))  # CU_STREAM_NON_BLOCKING
        address = int(vmm.check(vmm.driver.cuMemHostAlloc(64, 0)))
        self._words = np.ctypeslib.as_array((ctypes.c_uint32 * 16).from_address(address))
        self._address = address
        self.taken_s = 0.0
        """Seconds that others took of the GPU the last time."""

    @contextmanager
    def watching(self) -> Generator[None]:
        """Hold the GPU during a block, and a little longer; `taken_s` tells the rest.

        Raises:
            MachineError: The kernel does not start.
        """
        words = self._words
        words[:3] = 0
        arguments = (self._address, _LEAST_NS, _MOST_NS)
        types = (ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_ulonglong)
        vmm.check(vmm.driver.cuLaunchKernel(self._function, 1, 1, 1, 1, 1, 1, 0, self._stream, (arguments, types), 0))
        limit = time.perf_counter() + _START_S
        while not words[_STARTED]:
            if time.perf_counter() > limit:
                raise MachineError(f"expected a kernel of the judge's to start within {_START_S:g} s, it did not")
        try:
            yield
            limit = time.perf_counter() + _HOLD_S
            while time.perf_counter() < limit:
                pass
        finally:
            words[_STOP] = 1
            vmm.check(vmm.driver.cuStreamSynchronize(self._stream))
            self.taken_s = int(words[_TAKEN]) * 1e-9


def _compiled(source: bytes, name: bytes) -> Any:
    """Compile a kernel for the current device."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")  # it carries no types

    def done(result: tuple[Any, ...]) -> Any:
        status, *values = result
        if int(status) != 0:
            raise MachineError(f"expected NVRTC to compile the judge's own kernel, it said {status.name}")
        return values[0] if len(values) == 1 else values

    driver = vmm.driver
    device = vmm.check(driver.cuCtxGetDevice())
    kinds = driver.CUdevice_attribute
    major = vmm.check(driver.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = vmm.check(driver.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    program = done(nvrtc.nvrtcCreateProgram(source, b"watch.cu", 0, [], []))
    done(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()]))
    image = bytearray(int(done(nvrtc.nvrtcGetCUBINSize(program))))
    done(nvrtc.nvrtcGetCUBIN(program, image))
    module = vmm.check(driver.cuModuleLoadData(bytes(image)))
    return vmm.check(driver.cuModuleGetFunction(module, name))
