"""Benchmarks in parts: one process for each pair of cores (`taskset -c 0,1 python X --part 0/8`), joined afterwards."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cudal1_env.calibration import cache_folder, load_spread, spread_path, write_aside
from cudal1_env.doctor import examine
from cudal1_env.records.results import Form, ResultsFile

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def _read(text: bytes) -> dict[str, Any] | None:
    """Read a line; None for a summary."""
    line = json.loads(text)
    if not isinstance(line, dict) or "kind" not in line:
        raise ValueError("expected an object with the key kind")
    return None if line["kind"] == "summary" else line


Line = dict[str, Any]
"""One line of a benchmark; `kind` is its type."""

LINES: Form[Line] = Form("a benchmark", b'{"kind": "', _read, lambda line: json.dumps(line).encode())
"""Form of a benchmark's results file, also of published ones."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--part` and `--join` to a benchmark."""
    parser.add_argument("--part", default="0/1", help="K/N: only every N-th job, from the K-th on")
    parser.add_argument(
        "--join", type=Path, nargs="+", default=[], help="measure nothing: copy what OUT lacks from these files"
    )


def add_known(parser: argparse.ArgumentParser) -> None:
    """Add `--known` to a benchmark that resumes."""
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="measure nothing again that these hold")


def results(out: Path, *, known: Sequence[Path] = (), join: Sequence[Path] = ()) -> ResultsFile[Line]:
    """Open a benchmark's results file to append lines; a summary at its end is removed."""
    return ResultsFile(out, LINES, known=known, join=join)


def fresh(out: Path, *, join: Sequence[Path] = ()) -> ResultsFile[Line]:
    """Open the results file of a benchmark that starts over, unless it joins others."""
    if not join:
        out.unlink(missing_ok=True)
    return results(out, join=join)


def machine_line() -> dict[str, Any]:
    """Return the line that describes the machine, without file paths.

    Examining a GPU takes ten seconds, so the findings are cached until the next boot, by the GPUs and cores that this
    process may use. The spread is read again, because it may have been calibrated since.
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
