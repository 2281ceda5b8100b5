"""Benchmarks in parts: one process for each pair of cores (`taskset -c 0,1 python X --part 0/8`), joined afterwards."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, TypeVar

from cudal1_env.calibration import cache_folder, load_spread, spread_path, write_aside
from cudal1_env.doctor import examine

_Job = TypeVar("_Job")

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--part` and `--join` to a benchmark."""
    parser.add_argument("--part", default="0/1", help="K/N: only every N-th job, from the K-th on")
    parser.add_argument("--join", type=Path, nargs="+", help="measure nothing: join these files of parts into OUT")


def add_known(parser: argparse.ArgumentParser) -> None:
    """Add `--known` to a benchmark that goes on where it was cut off."""
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="measure nothing again that these hold")


def mine(jobs: Iterable[_Job], part: str) -> list[_Job]:
    """Return this part's jobs."""
    number, count = (int(word) for word in part.split("/"))
    return list(jobs)[number::count]


def machine_line() -> dict[str, Any]:
    """The machine, without the places of its files.

    To look at a GPU takes ten seconds, so what was found is kept for the boot, by the GPUs and cores that this process
    may use. The spread is read anew: it may have been calibrated since.
    """
    seen = (
        _BOOT.read_text(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        sorted(os.sched_getaffinity(0)),
        version("torch"),
    )
    path = cache_folder() / f"machine-{hashlib.sha256(repr(seen).encode()).hexdigest()[:16]}.json"
    try:
        findings: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        findings = examine().model_dump(mode="json")
        findings["tools"] = {name: place is not None for name, place in findings["tools"].items()}
        write_aside(path, json.dumps(findings))
    gpu = findings["gpu"]
    identity = gpu["facts"]["uuid"] if gpu is not None and gpu["facts"] is not None else ""
    findings["spread"] = load_spread(findings["device"], identity).model_dump(mode="json")
    findings["calibrated"] = spread_path(findings["device"], identity).exists()
    return {"kind": "machine", **findings}


def joined(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Lines of all parts without their summaries; of equal lines on the machine the first."""
    machines: list[dict[str, Any]] = []
    for path in paths:
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["kind"] == "summary" or line in machines:
                continue
            if line["kind"] == "machine":
                machines.append(line)
            yield line


def left_by(out: Path) -> list[dict[str, Any]]:
    """Lines that an earlier run left in its file; the benchmark goes on behind them.

    A summary at the end, which would be one of a part, and a line that a kill cut off are taken off the file.
    """
    if not out.exists():
        return []
    lines: list[dict[str, Any]] = []
    size = 0
    for text in out.read_bytes().splitlines(keepends=True):
        if not text.endswith(b"\n") or (line := json.loads(text))["kind"] == "summary":
            break
        lines.append(line)
        size += len(text)
    os.truncate(out, size)
    return lines


def write(file: TextIO, line: dict[str, Any]) -> dict[str, Any]:
    """Append a line and have it on disk: a run of hours may be killed. Returns the line."""
    file.write(json.dumps(line) + "\n")
    file.flush()
    return line
