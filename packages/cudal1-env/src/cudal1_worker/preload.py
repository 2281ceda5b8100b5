"""What the zygote imports beside torch, and whether that left GPUs alone.

A process that is forked from one that has opened a GPU cannot use it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable, Iterator

import torch

_GPUS = "/dev/nvidia"
"""How the names of GPUs and of their driver's controls begin."""


def preload(names: Iterable[str]) -> None:
    """Import modules, as far as they are there; those that ask for a GPU at their import get an answer from /dev."""
    with _asked_without_the_driver():
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@contextlib.contextmanager
def _asked_without_the_driver() -> Iterator[None]:
    """`torch.cuda.is_available` starts CUDA, and torch 2.11's inductor asks it when it is imported."""
    ask = torch.cuda.is_available
    torch.cuda.is_available = _seems_available
    try:
        yield
    finally:
        torch.cuda.is_available = ask


def _seems_available() -> bool:
    built = torch.version.cuda is not None and os.environ.get("CUDA_VISIBLE_DEVICES", "0") != ""
    return built and os.path.exists(f"{_GPUS}ctl")


def touched_gpu() -> bool:
    """Whether something here has opened a GPU."""
    folder = "/proc/self/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # the folder's own, which is closed by now
            if os.readlink(f"{folder}/{name}").startswith(_GPUS):
                return True
    return False
