"""A service for a benchmark, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Service:
    """A running service.

    Args:
        url: Its address.
        process: Its process, which `started` stops.
    """

    url: str
    process: subprocess.Popen[str]


@contextmanager
def started(device: str, environment: Mapping[str, str] = {}) -> Iterator[Service]:
    """Run `cudal1-env serve` on a free port of this host, which accepts tasks; at the end of the block, stop it."""
    command = [sys.executable, "-c", "from cudal1_env.cli import main; main()", "serve"]
    command += ["--device", device, "--port", "0", "--allow-tasks"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stderr is not None
    lines: list[str] = []
    url = ""
    for line in process.stderr:
        lines.append(line)
        if url := next((part for part in line.split() if part.startswith("http://")), ""):
            break
    if not url:
        raise SystemExit(f"the service did not start:\n{''.join(lines)}")
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        yield Service(url, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
