"""`cudal1-data overlaps`: near-duplicates between two suites, by their operator graphs."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import tyro
from pydantic import BaseModel, ConfigDict
from tyro.conf import Positional

from cudal1_data.graphs import TaskGraph, find_overlaps, trace_tasks
from cudal1_data.graphs.process import TIMEOUT_S
from cudal1_data.kernelbench import known_graphs
from cudal1_data.suites import load_suite
from cudal1_data.task import Device

NOTES = "notes"


class Overlaps(BaseModel):
    """Find the tasks of a suite that have the operator graph of a task of another, whatever the shape.

    The references are executed, on tensors without values, in a process that is no sandbox: name only suites whose
    code you would run. KernelBench's own graphs are known and need no tracing.
    """

    model_config = ConfigDict(frozen=True)

    spec: Positional[str]
    """Suite whose tasks are in question, as for `list`."""
    with_: Annotated[str, tyro.conf.arg(name="with")] = NOTES
    """Suite to compare with; `notes` for the graphs of KernelBench that this package knows."""
    device: Device = "cpu"
    """Whose default sizes to trace; the sizes make no difference to a graph."""
    timeout_s: float = TIMEOUT_S
    """Longest time for one task."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the report as JSON."""

    def run(self) -> None:
        """Trace both suites and print the report."""
        graphs = self.traced(self.spec)
        name, others = ("kernelbench", known_graphs()) if self.with_ == NOTES else (self.with_, self.traced(self.with_))
        report = find_overlaps((self.spec, graphs), (name, others))
        print(report.model_dump_json() if self.json_ else report.text())

    def traced(self, spec: str) -> list[TaskGraph]:
        """Return the graphs of a suite's tasks, telling how far it has come."""
        suite = load_suite(spec, device=self.device)
        for entry in suite.broken:
            print(f"left out: {entry.error}", file=sys.stderr)
        done = 0

        def told(_: TaskGraph) -> None:
            nonlocal done
            done += 1
            if done % 50 == 0 or done == len(suite):
                print(f"[{done}/{len(suite)}] tasks of {spec} traced", file=sys.stderr)

        return trace_tasks(suite, timeout_s=self.timeout_s, told=told)


class Trace(BaseModel):
    """Print what a task computes, operator by operator, its fingerprint, and what its tensors take.

    The reference is executed, on tensors without values.
    """

    model_config = ConfigDict(frozen=True)

    spec: Positional[str]
    """Task or suite, as for `list`."""
    device: Device = "cpu"
    """Whose default sizes to trace."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON array."""

    def run(self) -> None:
        """Trace and print."""
        found = trace_tasks(load_suite(self.spec, device=self.device))
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
