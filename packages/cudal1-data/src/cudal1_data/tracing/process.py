"""Tracing of tasks in child processes, with a time limit for each.

Tracing executes references, so use only trusted suites: the child is no sandbox. It keeps torch and the programs'
prints, crashes and endless loops out of this process. Candidates are never traced.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Self

from cudal1_data.errors import DataError
from cudal1_data.task import Task
from cudal1_data.tracing.tasks import TaskGraph

TIMEOUT_S = 120.0
"""Time limit for one task; KernelBench's largest references take about 10 s on one slow core."""
START_TIMEOUT_S = 300.0
"""Time limit to import torch on a busy machine."""
PER_CHILD = 32
"""Tasks for which another child process is worth its start: that takes 7 s of a core, and a generated task 0.07 s."""


def trace_tasks(tasks: Iterable[Task], *, timeout_s: float = TIMEOUT_S) -> Iterator[TaskGraph]:
    """Trace references in child processes, one for each core but no more than one for `PER_CHILD` tasks.

    Args:
        tasks: Tasks whose references are executed.
        timeout_s: Maximum time per task; a slower one gets an error instead of a graph.

    Yields:
        One result for each task, in order.

    Raises:
        DataError: torch is not installed.
    """
    tasks = list(tasks)
    count = max(1, min(len(os.sched_getaffinity(0)), len(tasks) // PER_CHILD))
    free: queue.SimpleQueue[Tracer] = queue.SimpleQueue()

    def traced(task: Task) -> TaskGraph:
        tracer = free.get()
        try:
            return tracer.trace(task)
        finally:
            free.put(tracer)

    with ExitStack() as opened, ThreadPoolExecutor(count) as threads:
        for _ in range(count):
            free.put(opened.enter_context(Tracer(timeout_s=timeout_s)))
        yield from threads.map(traced, tasks)


class Tracer:
    """Tracer of tasks in a child process, which is replaced when a task breaks it."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Create a tracer; its child starts at the first task.

        Args:
            timeout_s: Maximum time per task.

        Raises:
            DataError: The time is not finite and positive.
        """
        if not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise DataError(
                f"the time limit for tracing one task is {timeout_s:g} s; it must be above 0 s and at "
                f"most {threading.TIMEOUT_MAX:g} s (default: {TIMEOUT_S:g} s)"
            )
        self.timeout_s = timeout_s
        self._child = Child("cudal1_data.tracing.child", "trace references with", timeout_s)

    def __enter__(self) -> Self:
        """Return the tracer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the child."""
        self.close()

    def trace(self, task: Task, *, behaviour: bool = True) -> TaskGraph:
        """Trace one task.

        Args:
            task: The task.
            behaviour: Whether to run its reference on small inputs, too; this takes as long as the trace.

        Raises:
            DataError: torch is not installed.
        """
        line, reason = self._child.ask({"id": task.id, "source": task.source, "behaviour": behaviour})
        return TaskGraph.model_validate_json(line) if line else TaskGraph(id=task.id, error=reason)

    def version(self) -> str:
        """Return torch's version in the child; start it if needed. Fingerprints may differ between versions.

        Raises:
            DataError: torch is not installed.
        """
        return self._child.version()

    def close(self) -> None:
        """End the child, if there is one."""
        self._child.close()


class Child:
    """A process that imports torch and executes references: one JSON line in and one out for each.

    Args:
        module: Module for `python -m`. Its first line is `{"torch": VERSION}` or `{"missing": REASON}`.
        purpose: Its use of torch, for messages: `trace references with`.
        timeout_s: Maximum time per answer.
    """

    def __init__(self, module: str, purpose: str, timeout_s: float) -> None:
        self._module, self._purpose, self._timeout_s = module, purpose, timeout_s
        self._torch = ""
        self._child: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, request: dict[str, object]) -> tuple[str, str]:
        """Return the child's answer, or an empty string and the reason.

        Raises:
            DataError: torch is not installed.
        """
        child = self._child or self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            self.close()
            return "", f"took more than {self._timeout_s:g} s"
        except BrokenPipeError:
            line = ""
        if line:
            return line, ""
        code = child.wait()
        self.close()
        return "", f"ended the process that executed it (exit status {code})"

    def version(self) -> str:
        """Return torch's version in the child.

        Raises:
            DataError: torch is not installed.
        """
        if not self._torch:
            self._start()
        return self._torch

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
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",  # other children use the other cores
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
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
            raise DataError(f"no working torch to {self._purpose} ({reason}); install cudal1-env, which needs it too")
        self._torch = str(json.loads(line)["torch"])
        return child


def _read(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass on the child's lines, then an empty one when it has ended."""
    try:
        for line in stream:
            lines.put(line)
    except ValueError:  # the stream was closed
        pass
    lines.put("")
