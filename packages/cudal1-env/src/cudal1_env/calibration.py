"""The machine's spread from launch to launch: measured by `cudal1-env doctor --calibrate`, kept by machine."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from pydantic import ValidationError

from cudal1_env.stats import DEFAULT_SPREAD, Spread


def spread_path() -> Path:
    """File that keeps this machine's spread; the name holds host and kernel, so that a copied home does not mislead."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    host = hashlib.sha256(f"{platform.node()}/{platform.release()}".encode()).hexdigest()[:12]
    return Path(root) / "cudal1" / f"spread-{host}.json"


def load_spread() -> Spread:
    """Return the calibrated spread, or the default for machines that were not calibrated."""
    try:
        return Spread.model_validate_json(spread_path().read_text())
    except (OSError, ValidationError):
        return DEFAULT_SPREAD


def save_spread(spread: Spread) -> Path:
    """Keep a spread; return where."""
    path = spread_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.write_text(spread.model_dump_json())
    aside.rename(path)
    return path
