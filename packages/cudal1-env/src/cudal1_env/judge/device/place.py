"""Chooses the device, and lists the folders that programs must not see."""

from __future__ import annotations

import sys
from pathlib import Path

from cudal1_data.sources.starter import STARTER_FOLDER

from cudal1_env.hardware import resolve_device
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.settings import JudgeSettings


def choose_device(settings: JudgeSettings, core: int | None) -> Device:
    """Return the device that the settings request.

    Raises:
        MachineError: The settings request a GPU, and there is no usable one.
    """
    if resolve_device(settings.device) == "cpu":
        return CpuDevice(core)
    from cudal1_env.judge.device.cuda.device import CudaDevice  # starts torch and the GPU

    return CudaDevice(tf32=settings.arithmetic == "tf32")


def answers() -> tuple[str, ...]:
    """Return the folders with correct programs for bundled tasks, of this package and its copies on the module path."""
    copies = (Path(entry) / "cudal1_data" / "starter" for entry in sys.path)
    return tuple({str(STARTER_FOLDER), *(str(copy.resolve()) for copy in copies if copy.is_dir())})
