"""The process that executes references: one JSON line in for each program, one out with its graph.

`process.py` starts it with `python -m cudal1_data.tracing.child`. Programs' output goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import suppress

from cudal1_data.task import Memory
from cudal1_data.tracing.canonical.fold import fold
from cudal1_data.tracing.canonical.graph import fingerprint
from cudal1_data.tracing.tasks import TaskGraph


def main() -> None:
    """Answer each line of standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    try:
        from cudal1_data.tracing.behaviour import behaviour
        from cudal1_data.tracing.tracer import TORCH, trace
    except ImportError as error:
        answers.write(json.dumps({"missing": str(error)}) + "\n")
        return
    answers.write(json.dumps({"torch": TORCH}) + "\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            raw = trace(asked["source"], asked["id"])
            graph = fold(raw)
            answer = TaskGraph(
                id=asked["id"],
                fingerprint=fingerprint(graph),
                operators=tuple(graph.operators()),
                random=any(graph.nodes[place].op == "random" for place in graph.alive()),
                memory=Memory(
                    inputs_bytes=raw.inputs_bytes, state_bytes=raw.state_bytes, outputs_bytes=raw.outputs_bytes
                ),
            )
        except Exception as error:  # noqa: BLE001 - any exception is the fault of the program
            text = str(error).strip()
            answer = TaskGraph(id=asked["id"], error=f"{type(error).__name__}: {text.splitlines()[0] if text else ''}")
        if asked["behaviour"]:
            with suppress(Exception):  # a program that does not run has no behaviour
                answer = answer.model_copy(update={"behaviour": behaviour(asked["source"], asked["id"])})
        answers.write(answer.model_dump_json() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
