"""Notes on KernelBench's tasks: facts by task, found by scripts/kernelbench_notes.py, none of its programs.

A note holds for a program that is the same up to its sizes, texts and comments; the memory that it tells of, for the
very same sizes. So it finds the task in a checkout, on the hub and in CUDA-L1's release.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from cudal1_data.errors import BrokenTaskError
from cudal1_data.graphs.tasks import TaskGraph
from cudal1_data.task import Memory, Task, parse

FILE = Path(__file__).with_name("kernelbench.json")
PLACE = re.compile(r"(?:kernelbench|cuda-l1)/(?P<place>level\d+/\d+)")


class Note(BaseModel):
    """What is known of one task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str
    """`program_hash` of the reference."""
    source_sha256: str
    """Hash of the reference as it was traced."""
    category: str
    """Kind of operation, by the words of KernelBench's own groups."""
    degenerate: bool = False
    """Whether a trivial answer passes KernelBench's comparison (tolerance 1e-4)."""
    random: bool = False
    """Whether an output depends on random numbers drawn in the call."""
    memory: Memory | None = None
    """What inputs, state and outputs take; None where the reference cannot be traced."""
    graph: str | None = None
    """Fingerprint of its operator graph (`cudal1_data.graphs`)."""


class Notes(BaseModel):
    """The file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    torch: str
    """Version of torch with which the graphs were traced; another one may decompose operators otherwise."""
    references: str
    """Which references were read."""
    tasks: dict[str, Note] = Field(min_length=1)
    """By place: `level1/12`."""


@functools.cache
def load_notes() -> Notes:
    """Read the file, once."""
    return TypeAdapter(Notes).validate_json(FILE.read_bytes())


def notes() -> Mapping[str, Note]:
    """Return the notes by place (`level1/12`)."""
    return load_notes().tasks


def known_graphs() -> list[TaskGraph]:
    """Return the graphs that the notes know, by KernelBench's ids."""
    return [
        TaskGraph(id=f"kernelbench/{place}", fingerprint=note.graph, random=note.random, memory=note.memory)
        for place, note in notes().items()
        if note.graph is not None
    ]


def release(version: str) -> str:
    """Return the part of torch's version on which the notes' graphs depend.

    >>> release("2.13.0+cu130")
    '2.13'
    """
    return ".".join(version.split(".")[:2])


def place_of(task_id: str) -> str | None:
    """Return a task's place in KernelBench, whatever form it was loaded from; None where it has none.

    >>> place_of("cuda-l1/level1/12@M=64"), place_of("starter/diag_matmul")
    ('level1/12', None)
    """
    match = PLACE.match(task_id)
    return match["place"] if match else None


def noted(task: Task) -> Task:
    """Return a task of KernelBench with what the notes know of it, any other as it is."""
    note = notes().get(place_of(task.id) or "")
    if note is None:
        return task
    facts: dict[str, object] = {"category": task.category or note.category}
    if program_hash(task.source) == note.program:
        known = {"degenerate": note.degenerate, "random": note.random}
        facts["tags"] = (*task.tags, *(tag for tag, holds in known.items() if holds and tag not in task.tags))
        if hashlib.sha256(task.source.encode()).hexdigest() == note.source_sha256:
            facts["memory"] = note.memory
    return task.model_copy(update=facts)


def overlapping(tasks: Iterable[Task], test: Iterable[Task]) -> dict[str, str]:
    """Return which tasks ask for what a task of a test suite asks for, with that one's id.

    A task does so when it is in the test itself (in whatever form it was loaded), when its `overlaps` names a task of
    the test, or when that one has the operator graph of a task of the test.

    Args:
        tasks: Tasks that may be trained on.
        test: Tasks that results are reported on.
    """
    known = notes()
    ids: dict[str, str] = {}
    for task in test:
        for place in (place_of(task.id), place_of(task.overlaps or "")):
            if place is not None:
                ids.setdefault(place, task.id)
                if place in known and known[place].graph is not None:
                    ids.setdefault(known[place].graph or "", task.id)
        ids.setdefault(task.id, task.id)
    found: dict[str, str] = {}
    for task in tasks:
        for place in (place_of(task.id), place_of(task.overlaps or "")):
            note = known.get(place or "")
            same = ids.get(place or "") or ids.get((note.graph if note is not None else None) or "")
            if same is not None:
                found.setdefault(task.id, same)
        if task.id in ids:
            found.setdefault(task.id, task.id)
    return found


def program_hash(source: str) -> str:
    r"""Hash a program without its sizes (top-level integer constants), texts and comments.

    >>> program_hash("N = 4\ndef f():\n    'Text.'\n    return N") == program_hash("N = 8  # other\ndef f(): return N")
    True

    Raises:
        BrokenTaskError: The text is no Python.
    """
    tree = parse(source, where="program")
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
            node.value = ast.Constant(0)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            kept = [line for line in node.body if not _is_text(line)]
            node.body = kept or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:32]


def described(source: str) -> str:
    r"""Return the first sentence that a reference says of itself, empty where it says nothing.

    >>> described('class Model:\n    "Simple model that adds. And more."')
    'Simple model that adds'
    """
    try:
        tree = parse(source, where="program")
    except BrokenTaskError:
        return ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            text = " ".join((ast.get_docstring(node) or "").split())
            return text.partition(". ")[0].rstrip(".")
    return ""


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
