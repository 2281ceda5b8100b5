"""Preloads modules into the zygote without opening a GPU, and lets torch report a GPU in workers without one."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable

import torch

from cudal1_worker import gpus

_HASHES = (
    ("triton.runtime.cache", "triton_key"),
    ("triton.compiler.compiler", "triton_key"),
    ("torch._inductor.codecache", "torch_key"),
)
"""Functions that hash a compiler's own files for the keys of its cache, and remember the result.

Triton's takes 0.9 s (460 MB; `docs/log.md`). Called before workers are forked, they take no time in any of them.
"""


def preload(names: Iterable[str]) -> None:
    """Import those modules that are installed, and hash compilers.

    Meanwhile torch looks for a GPU in /dev instead of starting CUDA.
    """
    ask = torch.cuda.is_available  # starts CUDA, and torch 2.11's inductor calls it at import
    torch.cuda.is_available = lambda: torch.version.cuda is not None and gpus.has_gpu()
    logging.disable(logging.WARNING)  # torch's warnings about a missing GPU
    try:
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        for module, name in _HASHES:
            with contextlib.suppress(Exception):  # a program that needs this compiler will meet the fault
                getattr(sys.modules.get(module), name, str)()
    finally:
        logging.disable(logging.NOTSET)
        torch.cuda.is_available = ask


def pretend_gpu() -> None:
    """Let torch report a GPU as available, although this worker has none.

    Programs check for a GPU before they compile an extension, which needs none. Operations that need a GPU still raise.
    """
    major, minor = architecture(os.environ.get("TORCH_CUDA_ARCH_LIST", ""))
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (major, minor)


def architecture(named: str) -> tuple[int, int]:
    """Return the compute capability in torch's variable; if empty, the oldest that CUDA 13 compiles for.

    >>> architecture("9.0+PTX"), architecture("")
    ((9, 0), (7, 5))
    """
    found = re.match(r"(\d+)\.(\d+)", named)
    return (int(found[1]), int(found[2])) if found else (7, 5)
