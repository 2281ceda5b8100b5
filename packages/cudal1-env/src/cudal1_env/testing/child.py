"""An adapter that runs an evaluator in a new process for each candidate, so that an attack on the process ends with it.

It is only a harness for tests of the evaluator inside; a program written against this harness could cheat it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from cudal1_env.testing.under_test import Claim


class ChildEvaluator:
    """Runs a command for each candidate, with three paths as arguments: task, candidate, and output file of the claim.

    The command judges and writes a `Claim` as JSON. A command that ends without a claim rejects the candidate.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float = 300.0) -> None:
        """Set the words of the command, and its time limit for one candidate."""
        self._command = tuple(command)
        self._timeout_s = timeout_s

    def judge(self, task: str, candidate: str, /) -> Claim:
        """Judge one candidate."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            paths = [Path(folder, name) for name in ("task.py", "candidate.py", "claim.json")]
            paths[0].write_text(task)
            paths[1].write_text(candidate)
            errors = Path(folder, "errors.txt")
            with errors.open("wb") as stream:
                process = subprocess.Popen(
                    [*self._command, *map(str, paths)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stream,
                    start_new_session=True,
                )
                ended = _ended(process, self._timeout_s)
            try:
                return Claim.model_validate_json(paths[2].read_bytes())
            except (OSError, ValidationError):
                said = errors.read_text(errors="replace").strip().splitlines()[-1:]
                return Claim(correct=False, message=" ".join([ended, *said]))


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Wait for a process, kill its whole group, and return how it ended."""
    try:
        return f"the process ended with {process.wait(timeout_s)} and no claim"
    except subprocess.TimeoutExpired:
        return f"no claim after {timeout_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
