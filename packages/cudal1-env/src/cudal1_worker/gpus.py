"""Detects NVIDIA GPUs and processes that have opened one, without loading a library."""

from __future__ import annotations

import contextlib
import os

NODES = "/dev/nvidia"
"""Prefix of the device nodes of GPUs and of their driver's controls."""


def has_gpu() -> bool:
    """Return whether an NVIDIA GPU is visible and not hidden by the user (`CUDA_VISIBLE_DEVICES=`, or -1)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return os.path.exists(f"{NODES}ctl") and visible != "" and not visible.startswith("-")


def touched_gpu(pid: int | None = None) -> bool:
    """Return whether a process has opened a GPU; processes forked from it could not use the GPU.

    Args:
        pid: The process; by default this one. False for a dead process.
    """
    folder = f"/proc/{pid or 'self'}/fd"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # listdir's own descriptor, already closed
                if os.readlink(f"{folder}/{name}").startswith(NODES):
                    return True
    return False
