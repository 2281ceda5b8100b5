"""Are there NVIDIA GPUs, and has this process opened one? Neither question starts a library."""

from __future__ import annotations

import contextlib
import os

NODES = "/dev/nvidia"
"""How the names of GPUs and of their driver's controls begin."""


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU, and its user has not hidden it (`CUDA_VISIBLE_DEVICES=`, or -1)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return os.path.exists(f"{NODES}ctl") and visible != "" and not visible.startswith("-")


def touched_gpu(pid: int | None = None) -> bool:
    """Whether a process has opened a GPU: no process that is forked from it could use it then.

    Args:
        pid: Of the process; by default this one. One that is dead has opened nothing.
    """
    folder = f"/proc/{pid or 'self'}/fd"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # the folder's own, which is closed by now
                if os.readlink(f"{folder}/{name}").startswith(NODES):
                    return True
    return False
