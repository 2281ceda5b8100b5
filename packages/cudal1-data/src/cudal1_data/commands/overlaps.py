"""`cudal1-data overlaps` and `trace`: near-duplicates between two suites, and a task's operator graph."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from cudal1_data.commands.broken import report_broken
from cudal1_data.errors import BrokenTaskError
from cudal1_data.progress import paced

if TYPE_CHECKING:
    from cudal1_data.suite import Suite
    from cudal1_data.tracing import TaskGraph

NOTES = "notes"
_TIMEOUT_S = 120.0
"""Default limit for one task; see `tracing.process.TIMEOUT_S`."""


@dataclass(frozen=True)
class Overlaps:
    """Find the tasks of a suite that share operator graph or behaviour with a task of another suite, at any shape.

    The references are executed, on tensors without values, in a process without a sandbox: name only suites whose
    code you trust. KernelBench's graphs come with this package and need no tracing.

    Example: cudal1-data overlaps starter
    """

    spec: Annotated[Positional[str], tyro.conf.arg(metavar="SUITE")]
    """Suite to check, as for `list`."""
    with_: Annotated[str, tyro.conf.arg(name="with")] = NOTES
    """Suite to compare with; `notes` for the KernelBench graphs in this package."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device whose default sizes to trace; a graph does not depend on sizes."""
    timeout_s: float = _TIMEOUT_S
    """Maximum time per task, in seconds."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the report as JSON."""

    def run(self) -> None:
        """Trace both suites and print the report."""
        from cudal1_data.dedup.overlaps import find_overlaps
        from cudal1_data.sources import load_suite
        from cudal1_data.sources.kernelbench import known_graphs, load_notes, release

        suite = load_suite(self.spec, device=self.device)
        other = None if self.with_ == NOTES else load_suite(self.with_, device=self.device)
        graphs = _traced(suite, self.spec, self.timeout_s)
        if other is None:
            name, others = "kernelbench", known_graphs()
            mine = version("torch")
            if release(mine) != release(load_notes().torch):
                print(
                    f"KernelBench's graphs were traced with torch {load_notes().torch}, these with {mine}: "
                    "what the two decompose otherwise is not found; --with SUITE traces both with one",
                    file=sys.stderr,
                )
        else:
            name, others = self.with_, _traced(other, self.with_, self.timeout_s)
        report = find_overlaps((self.spec, graphs), (name, others))
        print(report.model_dump_json() if self.json_ else report.text())


def _traced(suite: Suite, spec: str, timeout_s: float = _TIMEOUT_S) -> list[TaskGraph]:
    """Return the graphs of a suite's tasks; report progress under the name `spec`."""
    from cudal1_data.tracing import trace_tasks

    report_broken(suite)
    return list(paced(trace_tasks(suite, timeout_s=timeout_s), len(suite), f"tasks of {spec} traced"))


@dataclass(frozen=True)
class Trace:
    """Print a task's operators, its fingerprint, and the memory of its inputs, state and outputs.

    The reference is executed on tensors without values.

    Example: cudal1-data trace starter/diag_matmul
    """

    spec: Annotated[Positional[str], tyro.conf.arg(metavar="SUITE")]
    """Task or suite, as for `list`."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device whose default sizes to trace."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON array."""

    def run(self) -> None:
        """Trace and print.

        Raises:
            BrokenTaskError: No task could be traced.
        """
        from cudal1_data.sources import load_suite

        found = _traced(load_suite(self.spec, device=self.device), self.spec)
        if found and all(one.memory is None for one in found):
            others = f"; {len(found) - 1} more tasks neither" if len(found) > 1 else ""
            raise BrokenTaskError(f"{found[0].id} cannot be traced: {found[0].error}{others}; mend its reference")
        if self.json_:
            print(json.dumps([one.model_dump(mode="json") for one in found], indent=1))
            return
        for one in found:
            if one.memory is None:
                print(f"{one.id}: cannot be traced: {one.error}")
                continue
            print(f"{one.id}  {one.fingerprint}{'  random' if one.random else ''}")
            print(
                f"  inputs {one.memory.inputs_bytes} bytes, state {one.memory.state_bytes}, "
                f"outputs {one.memory.outputs_bytes}"
            )
            print(f"  {'; '.join(one.operators)}")
