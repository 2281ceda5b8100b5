"""Notes on KernelBench's tasks: facts by task, from scripts/kernelbench_notes.py, without its programs.

A note holds for a program that is the same up to sizes, texts and comments; its memory holds for the exact text only.
It applies to the task from a checkout, the hub and CUDA-L1's release.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from cudal1_data.errors import BrokenTaskError
from cudal1_data.hashes import digest, program_hash, text_hash
from cudal1_data.task import Memory, Task, parse
from cudal1_data.tracing.tasks import TaskGraph

FILE = Path(__file__).with_name("kernelbench.json")
PLACE = re.compile(r"(?:kernelbench|cuda-l1)/(?P<place>level\d+/\d+)")


class Note(BaseModel):
    """The facts about one task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str
    """`program_hash` of the reference."""
    source_sha256: str
    """Hash of the traced reference."""
    category: str
    """Kind of operation, in the words of KernelBench's groups."""
    degenerate: bool = False
    """Whether a trivial answer passes KernelBench's comparison (tolerance 1e-4)."""
    random: bool = False
    """Whether an output depends on random numbers drawn in the call."""
    memory: Memory | None = None
    """Size of inputs, state and outputs; None if the reference cannot be traced."""
    graph: str | None = None
    """Fingerprint of its operator graph (`cudal1_data.tracing`)."""


class Notes(BaseModel):
    """The contents of `kernelbench.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    torch: str
    """Version of torch that traced the graphs; another version may decompose operators differently."""
    references: str
    """Source of the references."""
    tasks: dict[str, Note] = Field(min_length=1)
    """Notes by place: `level1/12`."""


@functools.cache
def load_notes() -> Notes:
    """Return the contents of the file, read once."""
    return TypeAdapter(Notes).validate_json(FILE.read_bytes())


def notes() -> Mapping[str, Note]:
    """Return the notes by place (`level1/12`)."""
    return load_notes().tasks


def known_graphs() -> list[TaskGraph]:
    """Return the graphs in the notes, with KernelBench's ids."""
    return [
        TaskGraph(id=f"kernelbench/{place}", fingerprint=note.graph, random=note.random, memory=note.memory)
        for place, note in notes().items()
        if note.graph is not None
    ]


def release(version: str) -> str:
    """Return the part of torch's version that affects the notes' graphs.

    >>> release("2.13.0+cu130")
    '2.13'
    """
    return ".".join(version.split(".")[:2])


def place_of(task_id: str) -> str | None:
    """Return a task's place in KernelBench, for any source of the task; None if it has none.

    >>> place_of("cuda-l1/level1/12@M=64"), place_of("starter/diag_matmul")
    ('level1/12', None)
    """
    match = PLACE.match(task_id)
    return match["place"] if match else None


def noted(task: Task) -> Task:
    """Return a KernelBench task with the facts in its note; other tasks unchanged."""
    note = notes().get(place_of(task.id) or "")
    if note is None:
        return task
    facts: dict[str, object] = {"category": task.category or note.category}
    if program_hash(task.source) == note.program:
        known = {"degenerate": note.degenerate, "random": note.random}
        facts["tags"] = (*task.tags, *(tag for tag, holds in known.items() if holds and tag not in task.tags))
        if digest(task.source) == note.source_sha256:
            facts["memory"] = note.memory
    return task.model_copy(update=facts)


class Why(StrEnum):
    """Evidence that a task duplicates a task of the test; the first that holds counts."""

    ID = "id"
    """The task is in the test itself, in any form."""
    DECLARED = "overlaps"
    """Its `overlaps` names a task of the test, or vice versa."""
    TEXT = "text"
    """Its reference equals that of a test task, up to sizes, texts and comments."""
    GRAPH = "graph"
    """Its reference has the operator graph of a test task."""
    BEHAVIOUR = "behaviour"
    """Its reference gives the same results on small inputs as a test task's."""


class Same(NamedTuple):
    """The match of a task with the test."""

    test: str
    """Id of the test's task."""
    why: Why
    """Evidence."""


def same_tasks(tasks: Iterable[Task], test: Iterable[Task]) -> dict[str, Same]:
    """Return the tasks that duplicate a task of a test suite, as far as known without tracing.

    A task duplicates a test task if it is in the test itself (in any form), if the `overlaps` of one names the other,
    if their references share a `text_hash`, or if their KernelBench tasks (by id, `overlaps` or text) share an
    operator graph.

    Args:
        tasks: Tasks for training.
        test: Tasks for reporting results.
    """
    places = places_by_text(notes())
    known: dict[str, str] = {}
    for task in test:
        for _, name in _signs(task, places):
            known.setdefault(name, task.id)
    found: dict[str, Same] = {}
    for task in tasks:
        same = next((Same(known[name], why) for why, name in _signs(task, places) if name in known), None)
        if same is not None:
            found.setdefault(task.id, same)
    return found


def is_kernelbench(task_id: str, source: str) -> bool:
    """Return whether a task is KernelBench's, by its id or by its reference up to sizes, texts and comments.

    >>> is_kernelbench("cuda-l1/level1/12", ""), is_kernelbench("starter/diag_matmul", "")
    (True, False)
    """
    return place_of(task_id) is not None or bool(source and text_hash(source) in places_by_text(notes()))


def _signs(task: Task, by_text: Mapping[str, tuple[str, ...]]) -> list[tuple[Why, str]]:
    """Return the signs that a task shares with its duplicates, the surest first."""
    by_id, named = place_of(task.id), place_of(task.overlaps or "")
    text = text_hash(task.source) if task.source else ""
    places = {Why.ID: [by_id], Why.DECLARED: [named], Why.TEXT: by_text.get(text, ())}
    signs = [(Why.ID, task.id)]
    signs += [(why, place) for why, some in places.items() for place in some if place is not None]
    if text:
        signs.append((Why.TEXT, text))
    graphs = [note.graph for _, place in signs if (note := notes().get(place)) is not None]
    return [*signs, *((Why.GRAPH, graph) for graph in graphs if graph is not None)]


def places_by_text(known: Mapping[str, Note]) -> dict[str, tuple[str, ...]]:
    """Return the KernelBench places of each program in the notes, by `text_hash`: most have one, copies two."""
    places: dict[str, tuple[str, ...]] = {}
    for place, note in known.items():
        places[note.program] = (*places.get(note.program, ()), place)
    return places


def described(source: str) -> str:
    r"""Return the first sentence of a reference's class docstring; empty if there is none.

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
