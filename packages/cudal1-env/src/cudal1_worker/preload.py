"""What the zygote imports beside torch, without opening a GPU."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator

import torch

from cudal1_worker import gpus


def preload(names: Iterable[str]) -> None:
    """Import modules that are installed; those that look for a GPU when imported get their answer from /dev."""
    with _asked_without_the_driver():
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@contextlib.contextmanager
def _asked_without_the_driver() -> Iterator[None]:
    """`torch.cuda.is_available` starts CUDA, and torch 2.11's inductor asks it when it is imported."""
    ask = torch.cuda.is_available
    torch.cuda.is_available = lambda: torch.version.cuda is not None and gpus.has_gpu()
    try:
        yield
    finally:
        torch.cuda.is_available = ask
