"""What a GPU can do at best: bandwidth of its memory and rates of its matrix units, measured once and kept.

The floor of a task rests on the bandwidth. A figure that is too low would call honest programs impossible, so each is
the best of several, spread over a second; and before a program is called impossible they are measured again.
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
_SIDE = 8192
"""Rows and columns of the matrices: products of this size reach the peak of the largest GPUs."""


class Peaks(BaseModel):
    """The best that was seen of one GPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uuid: str
    """The GPU."""
    driver: str
    """Driver under which it was measured."""
    bandwidth_gb_s: float = Field(gt=1.0, lt=1e6, allow_inf_nan=False)
    """Memory: 1e9 bytes a second that are read or written, the best of copy, read and fill."""
    float32_tflop_s: float = Field(gt=0.0, lt=1e6, allow_inf_nan=False)
    """Matrix products in strict float32, 1e12 operations a second."""
    tf32_tflop_s: float = Field(gt=0.0, lt=1e6, allow_inf_nan=False)
    """The same, factors rounded to TF32."""
    bfloat16_tflop_s: float = Field(gt=0.0, lt=1e6, allow_inf_nan=False)
    """The same in bfloat16."""
    float16_tflop_s: float = Field(gt=0.0, lt=1e6, allow_inf_nan=False)
    """The same in float16."""

    def better(self, other: Peaks) -> Peaks:
        """Return the better figures of two measurements of one GPU."""
        assert (self.uuid, self.driver) == (other.uuid, other.driver), "two GPUs"
        mine, theirs = self.model_dump(), other.model_dump()
        best = {name: max(mine[name], theirs[name]) for name in mine if name.endswith("_s")}
        return self.model_copy(update=best)

    def text(self) -> str:
        """Return the figures for people."""
        return (
            f"{self.bandwidth_gb_s:.0f} GB/s; TFLOP/s: float32 {self.float32_tflop_s:.0f}, tf32 {self.tf32_tflop_s:.0f}"
            f", bfloat16 {self.bfloat16_tflop_s:.0f}, float16 {self.float16_tflop_s:.0f}"
        )


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
    """Measure the first visible GPU, of which the caller holds the lease; takes some six seconds.

    It is done in a process of its own: what the judge's process has set for matrix products, and its memory, stay as
    they are.

    Args:
        uuid: The GPU.
        driver: Version of its driver.

    Raises:
        MachineError: It cannot be measured.
    """
    command = [sys.executable, "-P", "-s", "-m", "cudal1_env.judge.device.peaks", uuid, driver]
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
    bandwidth = _best(torch, _memory_works(torch, min(_BLOCK_BYTES, free // 8) & ~0xFFFF)) / 1e9
    side = _SIDE if free > 16 * 4 * _SIDE**2 else _SIDE // 4
    rates: dict[str, float] = {}
    for name in ("float32", "tf32", "bfloat16", "float16"):
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        rates[f"{name}_tflop_s"] = _best(torch, [_product(torch, name, side)]) / 1e12
    return Peaks(uuid=uuid, driver=driver, bandwidth_gb_s=bandwidth, **rates)


_Work = tuple[float, Callable[[], object]]
"""How much is moved or computed, and what does it."""


def _memory_works(torch: Any, size: int) -> list[_Work]:
    source = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return [
        (2.0 * size, lambda: target.copy_(source)),
        (1.0 * size, lambda: source.sum()),
        (1.0 * size, lambda: target.fill_(1.0)),
    ]


def _product(torch: Any, name: str, side: int) -> _Work:
    """A product of two square matrices: 2 side^3 operations."""
    a = torch.randn(side, side, device="cuda").to(getattr(torch, "float32" if name == "tf32" else name))
    out = torch.empty_like(a)
    return 2.0 * side**3, lambda: torch.mm(a, a, out=out)


def _best(torch: Any, works: list[_Work]) -> float:
    """Return the largest amount a second of several works, each repeated over a while."""
    for _, work in works:
        work()
    torch.cuda.synchronize()
    best, rounds, began = 0.0, 0, time.perf_counter()
    share_s = _SPREAD_OVER_S / (1 if len(works) > 1 else 4)
    while rounds < _FEWEST_ROUNDS or time.perf_counter() - began < share_s:
        rounds += 1
        for amount, work in works:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            best = max(best, amount / (start.elapsed_time(end) * 1e-3))
    return best


if __name__ == "__main__":
    sys.stdout.write(_measure(*sys.argv[1:3]).model_dump_json())
