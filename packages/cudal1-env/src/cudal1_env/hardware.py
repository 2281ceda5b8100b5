"""Detection of this machine's devices and compilers, without importing torch or triton."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Literal

from cudal1_worker.gpus import has_gpu as has_gpu

from cudal1_env.records import Device


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Device:
    """Return the device; `auto` means a GPU if there is one."""
    if device != "auto":
        return device
    return "cuda" if has_gpu() else "cpu"


def available_needs() -> set[str]:
    """Return which of a variant's `needs` this machine has."""
    needs: set[str] = set()
    if shutil.which("gcc") is not None:
        needs.add("compiler")
    if all(shutil.which(name) is not None for name in ("nvcc", "g++", "ninja")):
        needs.add("cuda")
    if importlib.util.find_spec("triton") is not None:
        needs.add("triton")
    return needs
