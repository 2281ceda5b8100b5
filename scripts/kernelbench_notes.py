"""Write the notes on KernelBench's tasks: `python scripts/kernelbench_notes.py SUITE`.

SUITE is a KernelBench checkout, `kernelbench` (the hub) or CUDA-L1's release file. Each reference is traced on tensors
without values (`cudal1_data.tracing`), which executes it; the notes contain none of its text. Two references of level
3 (48 and 49) import einops; if it is missing, their notes lack graph and memory.

- category: of level 1 by task number and operators, of levels 2 and 3 by level;
- random: an output of the graph depends on random numbers (active dropout);
- memory: bytes of inputs, of parameters and buffers, and of outputs;
- graph: fingerprint of the operator graph;
- degenerate: the list below. KernelBench's own comparison, at its tolerance of 1e-4, accepted incorrect answers
  (zeros, constants, an input, another input's answer).
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
"""Numbers of degenerate tasks by level."""

LEVELS = {2: "fusion", 3: "network"}


def main(suite: tyro.conf.Positional[str], out: Path = FILE) -> None:
    """Trace every task and write the notes.

    Args:
        suite: KernelBench in any of its forms.
        out: File to write.
    """
    tasks = load_suite(suite)
    notes: dict[str, Note] = {}
    with Tracer() as tracer:
        for task in tasks:
            place = place_of(task.id)
            if place is None:
                raise SystemExit(f"expected tasks of KernelBench in {suite}, got {task.id}")
            found = tracer.trace(task, behaviour=False)
            notes[place] = note(task, found)
            if found.error is not None:
                print(f"{task.id}: {found.error}", file=sys.stderr)
        file = Notes(torch=tracer.version(), references="the 250 references of CUDA-L1's release (H100)", tasks=notes)
    out.write_text(file.model_dump_json(indent=1, exclude_defaults=True) + "\n", encoding="utf-8")


def note(task: Task, found: TaskGraph) -> Note:
    """Return the note on a task."""
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
    """Return the category of a level 1 task: KernelBench numbers them in groups; operators show transposed ones."""
    groups = [(18, "matmul"), (32, "activation"), (40, "norm"), (46, "pooling"), (53, "reduction")]
    groups += [(87, "convolution"), (88, "activation"), (93, "scan"), (100, "loss")]
    name = next(name for last, name in groups if number <= last)
    return "transposed_convolution" if name == "convolution" and "transposed" in " ".join(operators) else name


if __name__ == "__main__":
    tyro.cli(main)
