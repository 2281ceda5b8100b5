"""The machine's spread from trial to trial: measured by `cudal1-env doctor --calibrate`, kept by machine."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from pydantic import ValidationError

from cudal1_env.records import Device
from cudal1_env.stats import DEFAULT_SPREAD, Spread


def cache_folder() -> Path:
    """Return the folder of this machine's measurements."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cudal1"


def write_aside(path: Path, text: str) -> None:
    """Write a cache file atomically, with access for this user only; several judges may write at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
    aside.rename(path)


def spread_path(device: Device = "cpu", gpu: str = "") -> Path:
    """Return the file of the spread of this machine's CPU, or of one GPU.

    Its name contains a hash of host, kernel and GPU: a copied home folder does not mislead, and devices have own files.

    Args:
        device: Kind of device.
        gpu: UUID of the GPU.
    """
    what = f"{platform.node()}/{platform.release()}" + (f"/{gpu}" if device == "cuda" else "")
    host = hashlib.sha256(what.encode()).hexdigest()[:12]
    return cache_folder() / f"spread-{'cuda-' if device == 'cuda' else ''}{host}.json"


def load_spread(device: Device = "cpu", gpu: str = "") -> Spread:
    """Return the calibrated spread, or the default for devices that were not calibrated."""
    try:
        return Spread.model_validate_json(spread_path(device, gpu).read_text())
    except (OSError, ValidationError):
        return DEFAULT_SPREAD


def save_spread(spread: Spread, device: Device = "cpu", gpu: str = "") -> Path:
    """Save a spread; return its file."""
    path = spread_path(device, gpu)
    write_aside(path, spread.model_dump_json())
    return path
