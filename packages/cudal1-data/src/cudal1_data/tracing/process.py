"""Tracing tasks in a child process, with a limit on the time that each may take.

Tracing executes references. Task suites are code that you trust as far as you run it: the child is no sandbox, it
keeps torch and the programs' doings (prints, crashes, endless loops) out of this process. Candidates never go
through it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Self

from cudal1_data.errors import DataError
from cudal1_data.task import Task
from cudal1_data.tracing.tasks import TaskGraph

TIMEOUT_S = 120.0
"""The largest references of KernelBench take about 10 s on one slow core."""
START_TIMEOUT_S = 300.0
"""Importing torch on a busy machine."""


def trace_tasks(
    tasks: Iterable[Task],
    *,
    timeout_s: float = TIMEOUT_S,
    told: Callable[[TaskGraph], None] | None = None,
) -> list[TaskGraph]:
    """Trace references, one after another, in a process of their own.

    Args:
        tasks: Tasks whose references are executed.
        timeout_s: Longest time for one of them; then it has an error instead of a graph.
        told: Told each result as it comes.

    Returns:
        One result for each task, in order.

    Raises:
        DataError: torch is not installed.
    """
    results: list[TaskGraph] = []
    with Tracer(timeout_s=timeout_s) as tracer:
        for task in tasks:
            results.append(tracer.trace(task))
            if told is not None:
                told(results[-1])
    return results


class Tracer:
    """A child process that traces tasks; a new one takes its place when a task breaks it."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Start nothing yet.

        Args:
            timeout_s: Longest time for one task.

        Raises:
            DataError: That is no time that one can wait for.
        """
        if not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise DataError(
                f"the time limit for tracing one task is {timeout_s:g} s; it must be finite and above 0 s "
                f"(default: {TIMEOUT_S:g} s)"
            )
        self.timeout_s = timeout_s
        self.torch = ""
        """torch's version in the child, once it has started: fingerprints of other versions may differ."""
        self._child: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        """Return the tracer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the child."""
        self.close()

    def trace(self, task: Task) -> TaskGraph:
        """Trace one task.

        Raises:
            DataError: torch is not installed.
        """
        child = self._child or self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"id": task.id, "source": task.source}) + "\n")
            child.stdin.flush()
            line = self._lines.get(timeout=self.timeout_s)
        except queue.Empty:
            self.close()
            return TaskGraph(id=task.id, error=f"took more than {self.timeout_s:g} s to trace")
        except BrokenPipeError:
            line = ""
        if line:
            return TaskGraph.model_validate_json(line)
        code = child.wait()
        self.close()
        return TaskGraph(id=task.id, error=f"ended the process that traced it (exit status {code})")

    def version(self) -> str:
        """Return torch's version in the child, starting that if need be.

        Raises:
            DataError: torch is not installed.
        """
        if not self.torch:
            self._start()
        return self.torch

    def close(self) -> None:
        """End the child, if there is one."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()

    def _start(self) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "cudal1_data.tracing.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            # Nothing is computed, so no GPU is touched.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._child, self._lines = child, queue.SimpleQueue()
        assert child.stdout is not None
        threading.Thread(target=_read, args=(child.stdout, self._lines), daemon=True).start()
        try:
            line = self._lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            line = ""
        if not line or "missing" in json.loads(line):
            self.close()
            reason = json.loads(line)["missing"] if line else f"it did not start within {START_TIMEOUT_S:g} s"
            raise DataError(
                f"no working torch to trace references with ({reason}); install cudal1-env, which needs it too"
            )
        self.torch = str(json.loads(line)["torch"])
        return child


def _read(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Hand on the child's lines; an empty one says that it has ended."""
    try:
        for line in stream:
            lines.put(line)
    except ValueError:  # closed meanwhile
        pass
    lines.put("")
