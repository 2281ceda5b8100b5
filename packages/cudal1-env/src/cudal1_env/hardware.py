"""What kind of device this machine offers, found without starting a library."""

from __future__ import annotations

from typing import Literal

from cudal1_worker.gpus import has_gpu as has_gpu

from cudal1_env.records import Device


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Device:
    """Return the device that `auto` stands for: a GPU where there is one."""
    if device != "auto":
        return device
    return "cuda" if has_gpu() else "cpu"
