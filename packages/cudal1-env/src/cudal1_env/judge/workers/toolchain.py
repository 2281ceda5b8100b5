"""Versions of the tools that compile programs, as a text that changes whenever a build could."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cudal1_worker import compilers

_TIMEOUT_S = 20.0
_PACKAGES = ("torch", "triton", "ninja", "setuptools", "cudal1-env")


@functools.cache
def _said(*command: str) -> str:
    """Return a tool's path and output, or that it is missing or silent."""
    path = shutil.which(command[0])
    if path is None:
        return f"{command[0]}: none"
    try:
        done = subprocess.run([path, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return f"{path}: silent"
    return f"{path}: {done.stdout.decode('utf-8', 'replace').strip()}"


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package}: none"


def _scripts() -> str:
    """Return a hash of this project's own compiler wrappers."""
    whole = hashlib.sha256()
    for path in sorted(Path(compilers.FOLDER).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            whole.update(f"{path.relative_to(compilers.FOLDER)}\0".encode() + path.read_bytes())
    return whole.hexdigest()


def toolchain(environment: Mapping[str, str]) -> str:
    """Return a description of the tools that compile programs; the workers' environment may name compilers."""
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    nvcc = os.path.join(home, "bin", "nvcc") if home else "nvcc"
    parts = [
        sys.version,
        sys.prefix,
        platform.platform(),
        _scripts(),
        *(_version(package) for package in _PACKAGES),
        *(_said(environment.get(name, default), "--version") for name, default in (("CC", "cc"), ("CXX", "c++"))),
        _said(nvcc, "--version"),
        _said("ld", "--version"),
        _said("ninja", "--version"),
    ]
    return "\n".join(parts)
