"""What a GPU can do at best: the bandwidth of its memory, measured once and kept.

The floor of a task rests on it. A figure that is too low would call honest programs impossible, so it is the best of
several, spread over a second; and before a program is called impossible it is measured again.
"""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cudal1_env.calibration import cache_folder, write_aside
from cudal1_env.errors import MachineError

_SPREAD_OVER_S = 1.0
"""Time over which repetitions are spread: a GPU that is held back for a moment is not judged by that moment."""
_FEWEST_ROUNDS = 3
_BLOCK_BYTES = 1 << 30
"""Memory that is copied; far larger than any L2 cache."""
_LEAST_FREE_BYTES = 4 << 30
_TIMEOUT_S = 120


class Peaks(BaseModel):
    """The best that was seen of one GPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uuid: str
    """The GPU."""
    driver: str
    """Driver under which it was measured."""
    bandwidth_gb_s: float = Field(gt=1.0, lt=1e6, allow_inf_nan=False)
    """Memory: 1e9 bytes a second that are read or written, the best of copy, read and fill."""

    def better(self, other: Peaks) -> Peaks:
        """Return the better of two measurements of one GPU."""
        assert (self.uuid, self.driver) == (other.uuid, other.driver), "two GPUs"
        return max(self, other, key=lambda one: one.bandwidth_gb_s)


def peaks_path(uuid: str) -> Path:
    """File that keeps a GPU's peaks."""
    return cache_folder() / f"peaks-{''.join(sign for sign in uuid if sign.isalnum() or sign == '-')}.json"


def load_peaks(uuid: str, driver: str) -> Peaks | None:
    """Return what is kept of a GPU; None where nothing is, or nothing that can be believed.

    Believed is a whole record of this GPU and this driver in a file that only this user can write.
    """
    path = peaks_path(uuid)
    try:
        with open(path, encoding="utf-8") as file:
            info = os.fstat(file.fileno())
            if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            kept = Peaks.model_validate_json(file.read(1 << 16))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None
    return kept if (kept.uuid, kept.driver) == (uuid, driver) else None


def known_peaks(uuid: str, driver: str, measure: Callable[[], Peaks], *, again: bool = False) -> Peaks:
    """Return a GPU's peaks: those that are kept, or what is measured now, which is kept then.

    Args:
        uuid: The GPU.
        driver: Version of its driver.
        measure: Measures it.
        again: Measure in any case, and keep the better figures.
    """
    kept = load_peaks(uuid, driver)
    if kept is not None and not again:
        return kept
    peaks = measure()
    if kept is not None:
        peaks = peaks.better(kept)
    write_aside(peaks_path(uuid), peaks.model_dump_json())
    return peaks


def measure_peaks(uuid: str, driver: str) -> Peaks:
    """Measure the first visible GPU, of which the caller holds the lease; takes seconds.

    It is done in a process of its own: the memory of the judge's process stays as it is.

    Args:
        uuid: The GPU.
        driver: Version of its driver.

    Raises:
        MachineError: It cannot be measured.
    """
    command = [sys.executable, "-P", "-s", "-m", "cudal1_env.judge.device.cuda.peaks", uuid, driver]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"expected the GPU's peaks within {_TIMEOUT_S} s; try `{' '.join(command)}`") from error
    try:
        return Peaks.model_validate_json(done.stdout)
    except ValidationError as error:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise MachineError(f"expected the GPU's peaks, it said: {said}; try `{' '.join(command)}`") from error


def _measure(uuid: str, driver: str) -> Peaks:
    torch: Any = importlib.import_module("torch")
    free, _ = torch.cuda.mem_get_info()
    if free < _LEAST_FREE_BYTES:  # less would lie in the L2 cache, and that would be measured
        raise SystemExit(f"expected {_LEAST_FREE_BYTES >> 30} GiB of the GPU's memory free, got {free / 2**30:.2g}")
    size = min(_BLOCK_BYTES, free // 8) & ~0xFFFF
    source = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    works: list[tuple[float, Callable[[], object]]] = [  # bytes that are moved, and what moves them
        (2.0 * size, lambda: target.copy_(source)),
        (1.0 * size, lambda: source.sum()),
        (1.0 * size, lambda: target.fill_(1.0)),
    ]
    for _, work in works:
        work()
    torch.cuda.synchronize()
    best, rounds, began = 0.0, 0, time.perf_counter()
    while rounds < _FEWEST_ROUNDS or time.perf_counter() - began < _SPREAD_OVER_S:
        rounds += 1
        for amount, work in works:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            best = max(best, amount / (start.elapsed_time(end) * 1e-3))
    return Peaks(uuid=uuid, driver=driver, bandwidth_gb_s=best / 1e9)


if __name__ == "__main__":
    sys.stdout.write(_measure(*sys.argv[1:3]).model_dump_json())
