"""The sandbox from the judge's side: what this machine offers, and the hold on a worker from outside.

The layers themselves are entered inside, in `cudal1_worker.sandbox`.
"""

from __future__ import annotations

from cudal1_env.sandbox.cgroup import Cage, CgroupUnavailable
from cudal1_env.sandbox.layers import (
    available_layers,
    clean_environment,
    default_spec,
    require_layers,
    successful_attempts,
)
from cudal1_env.sandbox.worker import Worker, WorkerGone

__all__ = [
    "Cage",
    "CgroupUnavailable",
    "Worker",
    "WorkerGone",
    "available_layers",
    "clean_environment",
    "default_spec",
    "require_layers",
    "successful_attempts",
]
