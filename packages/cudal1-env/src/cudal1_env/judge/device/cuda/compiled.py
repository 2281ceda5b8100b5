"""Compiles the judge's own kernels for a GPU, with torch's NVRTC."""

from __future__ import annotations

import importlib
from typing import Any

from cudal1_env.errors import MachineError


def compiled(source: str, architecture: str) -> bytes:
    """Return the binary of a CUDA C++ source.

    Raises:
        MachineError: NVRTC is missing or refuses the source.
    """
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")  # it carries no types
    try:
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"judge.cu", 0, [], [])
        (status,) = nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={architecture}".encode()])
    except RuntimeError as error:  # the library is not there
        raise MachineError(f"cannot load NVRTC: {error}; install a torch that was built for CUDA") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.decode("utf-8", "replace").strip("\0 \n")
        raise MachineError(f"NVRTC cannot compile the judge's kernel for {architecture}: {status.name}: {text}")
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    binary = b" " * size
    nvrtc.nvrtcGetCUBIN(program, binary)
    nvrtc.nvrtcDestroyProgram(program)
    return binary
