"""The sandbox from the judge's side: which layers this machine offers, and the control groups around a worker.

The layers themselves are entered inside, in `cudal1_worker.sandbox`.
"""

from __future__ import annotations

from cudal1_env.sandbox.advice import advice
from cudal1_env.sandbox.cgroup import Cage, CgroupUnavailable
from cudal1_env.sandbox.layers import (
    available_layers,
    clean_environment,
    default_spec,
    require_layers,
    successful_attempts,
)

__all__ = [
    "Cage",
    "CgroupUnavailable",
    "advice",
    "available_layers",
    "clean_environment",
    "default_spec",
    "require_layers",
    "successful_attempts",
]
