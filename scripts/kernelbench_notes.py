"""Write the notes on KernelBench's tasks: `python scripts/kernelbench_notes.py SUITE`.

SUITE is a KernelBench checkout, `kernelbench` (the hub) or CUDA-L1's release file. Each reference is traced on tensors
without values (`cudal1_data.tracing`), which executes it; nothing of its text goes into the notes. Two references of
level 3 (48 and 49) import einops: without it they are noted without graph and memory.

- category: by the operators of the graph, level 2 and 3 by their level;
- random: an output of the graph depends on a draw of random numbers (active dropout);
- memory: bytes of inputs, of parameters and buffers, and of outputs;
- graph: fingerprint of the operator graph;
- degenerate: the list below. It was found by running incorrect answers (zeros, constants, an input, another input's
  answer) through KernelBench's own comparison at its tolerance of 1e-4.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tyro
from cudal1_data import Task, load_suite
from cudal1_data.hashes import digest, program_hash
from cudal1_data.sources.kernelbench import FILE, Note, Notes, place_of
from cudal1_data.tracing import TaskGraph, Tracer

DEGENERATE = {
    1: (19, 20, 23, 31, 32, 37),
    2: (9, 23, 36, 38, 42, 65, 80, 83),
    3: (3, 7, 11, 12, 18, 28, 35),
}
"""Task numbers by level."""

LEVELS = {2: "fusion", 3: "network"}


def main(suite: tyro.conf.Positional[str], out: Path = FILE) -> None:
    """Trace every task and write the notes.

    Args:
        suite: KernelBench in any of its forms.
        out: Where to.
    """
    tasks = load_suite(suite)
    notes: dict[str, Note] = {}
    with Tracer() as tracer:
        for task in tasks:
            place = place_of(task.id)
            if place is None:
                raise SystemExit(f"expected tasks of KernelBench in {suite}, got {task.id}")
            found = tracer.trace(task)
            notes[place] = note(task, found)
            if found.error is not None:
                print(f"{task.id}: {found.error}", file=sys.stderr)
        file = Notes(torch=tracer.version(), references="the 250 references of CUDA-L1's release (H100)", tasks=notes)
    out.write_text(file.model_dump_json(indent=1, exclude_defaults=True) + "\n", encoding="utf-8")


def note(task: Task, found: TaskGraph) -> Note:
    """Return what is noted of a task."""
    number = int((place_of(task.id) or "").rpartition("/")[2])
    return Note(
        program=program_hash(task.source),
        source_sha256=digest(task.source),
        category=LEVELS.get(task.level) or category(found.operators, number),
        degenerate=number in DEGENERATE.get(task.level, ()),
        random=found.random,
        memory=found.memory,
        graph=found.fingerprint,
    )


def category(operators: tuple[str, ...], number: int) -> str:
    """Return the kind of a task of level 1: KernelBench numbers them in groups, two of which operators divide."""
    groups = [(18, "matmul"), (32, "activation"), (40, "norm"), (46, "pooling"), (53, "reduction")]
    groups += [(87, "convolution"), (88, "activation"), (93, "scan"), (100, "loss")]
    name = next(name for last, name in groups if number <= last)
    return "transposed_convolution" if name == "convolution" and "transposed" in " ".join(operators) else name


if __name__ == "__main__":
    tyro.cli(main)
