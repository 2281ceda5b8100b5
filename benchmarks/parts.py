"""Benchmarks in parts: one process for each pair of cores (`taskset -c 0,1 python X --part 0/8`), joined afterwards."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from cudal1_env.doctor import examine

_Job = TypeVar("_Job")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--part` and `--join` to a benchmark."""
    parser.add_argument("--part", default="0/1", help="K/N: only every N-th job, from the K-th on")
    parser.add_argument("--join", type=Path, nargs="+", help="measure nothing: join these files of parts into OUT")


def mine(jobs: Iterable[_Job], part: str) -> list[_Job]:
    """Return this part's jobs."""
    number, count = (int(word) for word in part.split("/"))
    return list(jobs)[number::count]


def machine_line() -> dict[str, Any]:
    """The machine, without the places of its files."""
    findings = examine().model_dump(mode="json")
    findings["tools"] = {name: path is not None for name, path in findings["tools"].items()}
    return {"kind": "machine", **findings}


def joined(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Lines of all parts, one machine line among them, without their summaries."""
    for number, path in enumerate(paths):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["kind"] != "summary" and not (line["kind"] == "machine" and number):
                yield line


def write(file: TextIO, line: dict[str, Any]) -> dict[str, Any]:
    """Append a line and have it on disk: a run of hours may be killed. Returns the line."""
    file.write(json.dumps(line) + "\n")
    file.flush()
    return line
