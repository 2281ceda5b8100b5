"""`cudal1-data overlaps`: near-duplicates between two suites, by their operator graphs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from cudal1_data.commands.broken import report_broken
from cudal1_data.progress import paced

if TYPE_CHECKING:
    from cudal1_data.task import Device
    from cudal1_data.tracing import TaskGraph, Tracer

NOTES = "notes"


@dataclass(frozen=True)
class Overlaps:
    """Find the tasks of a suite that have the operator graph of a task of another, at any shape.

    The references are executed, on tensors without values, in a process that is no sandbox: name only suites whose
    code you would run. KernelBench's own graphs are known and need no tracing.

    Example: cudal1-data overlaps starter
    """

    spec: Positional[str]
    """Suite whose tasks are in question, as for `list`."""
    with_: Annotated[str, tyro.conf.arg(name="with")] = NOTES
    """Suite to compare with; `notes` for the graphs of KernelBench that this package knows."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Whose default sizes to trace; the sizes make no difference to a graph."""
    timeout_s: float = 120.0
    """Longest time for one task."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the report as JSON."""

    def run(self) -> None:
        """Trace both suites and print the report."""
        from cudal1_data.dedup.overlaps import find_overlaps
        from cudal1_data.sources.kernelbench import known_graphs, load_notes, release
        from cudal1_data.tracing import Tracer

        with Tracer(timeout_s=self.timeout_s) as tracer:
            graphs = _traced(tracer, self.spec, self.device)
            if self.with_ == NOTES:
                name, others = "kernelbench", known_graphs()
                mine = tracer.version()
                if release(mine) != release(load_notes().torch):
                    print(
                        f"KernelBench's graphs were traced with torch {load_notes().torch}, these with {mine}: "
                        "what the two decompose otherwise is not found; --with SUITE traces both with one",
                        file=sys.stderr,
                    )
            else:
                name, others = self.with_, _traced(tracer, self.with_, self.device)
        report = find_overlaps((self.spec, graphs), (name, others))
        print(report.model_dump_json() if self.json_ else report.text())


def _traced(tracer: Tracer, spec: str, device: Device) -> list[TaskGraph]:
    """Return the graphs of a suite's tasks, telling how far it has come."""
    from cudal1_data.sources import load_suite

    suite = load_suite(spec, device=device)
    report_broken(suite)
    return [tracer.trace(task) for task in paced(suite, len(suite), f"tasks of {spec} traced")]


@dataclass(frozen=True)
class Trace:
    """Print what a task computes, operator by operator, its fingerprint, and what its tensors take.

    The reference is executed, on tensors without values.

    Example: cudal1-data trace starter/diag_matmul
    """

    spec: Positional[str]
    """Task or suite, as for `list`."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Whose default sizes to trace."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON array."""

    def run(self) -> None:
        """Trace and print."""
        from cudal1_data.sources import load_suite
        from cudal1_data.tracing import trace_tasks

        suite = load_suite(self.spec, device=self.device)
        report_broken(suite)
        found = trace_tasks(paced(suite, len(suite), f"tasks of {self.spec} traced"))
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
