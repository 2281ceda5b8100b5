"""A CPU worker's memory: what a call allocates lies elsewhere from turn to turn."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from cudal1_worker.program.cpu_side import CpuSide

side = CpuSide({"bytes": 1 << 19}, [])
places = []
for _ in range(100):
    if WAKE:
        side.begin()
    places.append(torch.empty(1 << 17).data_ptr())
print(len(set(places[50:])))
"""
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 40), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Large blocks come from the heap, as in a worker."""


def places(*, wake: bool) -> int:
    """Return how many places the last 50 of 100 outputs of 0.5 MB have, each given back before the next."""
    source = PROGRAM.replace("WAKE", str(wake))
    done = subprocess.run([sys.executable, "-c", source], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
def test_output_addresses_are_random_in_each_sample() -> None:
    assert places(wake=False) <= 3
    assert places(wake=True) >= 5
