"""The judge's side of the sandbox: which layers this machine has, and the control groups of a worker.

The worker enters the layers, in `cudal1_worker.sandbox`.
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
