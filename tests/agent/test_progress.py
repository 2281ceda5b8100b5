"""Bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

SCRIPT = """
from cudal1_agent.progress import Progress
progress = Progress()
with progress.bar("outer") as outer:
    outer(1, 2)
    with progress.bar("inner") as inner:
        inner(3, 3)
        progress.line("said [between] bars")
    outer(2, 2)
progress.line("after")
print("result")
"""


def test_without_a_terminal_progress_is_plain_lines() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "result\n"
    said = [line.partition("] ")[2] for line in done.stderr.splitlines()]
    assert said == ["inner: 3 of 3", "said [between] bars", "outer: 2 of 2", "after"]


def test_on_a_terminal_bars_nest_and_stdout_holds_results_only() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    drawn = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # Linux ends a pseudo-terminal so
            break
        if not part:
            break
        drawn += part
    os.close(ours)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, drawn.decode()
    assert printed == "result\n"
    for text in (b"outer", b"inner", b"3/3", b"2/2", b"said [between] bars", b"after"):
        assert text in drawn
