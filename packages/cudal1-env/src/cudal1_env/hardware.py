"""What kind of device this machine offers, found without starting a library."""

from __future__ import annotations

import os
from typing import Literal

from cudal1_env.records import Device


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU, and its user has not hidden it (`CUDA_VISIBLE_DEVICES=`, or -1)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return os.path.exists("/dev/nvidiactl") and visible != "" and not visible.startswith("-")


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Device:
    """Return the device that `auto` stands for: a GPU where there is one."""
    if device != "auto":
        return device
    return "cuda" if has_gpu() else "cpu"
