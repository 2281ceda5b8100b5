"""Copies of the test under other names stay out of training: by their text, and by their operator graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cudal1_agent.data.tasks import TaskSets, choose_tasks
from cudal1_agent.errors import CorpusError
from cudal1_agent.settings import EvaluationSettings
from cudal1_agent.train import overlap_text
from cudal1_data import Suite, Task, load_suite
from cudal1_data.dedup import duplicates as found_by
from cudal1_data.dedup.duplicates import near_duplicates
from cudal1_data.hashes import program_hash
from cudal1_data.sources import kernelbench as known
from cudal1_data.sources.kernelbench import Same, Why, same_tasks
from cudal1_data.tracing import TaskGraph, Tracer
from cudal1_data.tracing.tasks import Behaviour

EVERYTHING = EvaluationSettings(held_out_sizes=None)

GATED = '''\
import torch
import torch.nn as nn


class Model(nn.Module):
    """A gate, and what it lets through."""

    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        opened = torch.sigmoid(self.gate(x))
        return opened * torch.cumsum(x, dim=-1)


BATCH = 8
WIDTH = 16


def get_inputs():
    return [torch.rand(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH]
'''
VERBATIM = GATED
RESIZED = GATED.replace("BATCH = 8", "BATCH = 4096  # larger").replace("A gate, and what it lets through.", "Mine.")
RENAMED = GATED.replace("opened", "share").replace("self.gate", "self.inner").replace("BATCH", "ROWS")
RESHAPED = RENAMED.replace("torch.rand(ROWS, WIDTH)", "torch.rand(3, 5, WIDTH)")
UNRELATED = GATED.replace("torch.cumsum(x, dim=-1)", "torch.exp(x)")
UNTRACEABLE = GATED.replace("opened * ", "undefined * ")


@pytest.fixture(autouse=True)
def nothing_traced_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_by, "_traced", {})


def mine(name: str, source: str) -> Task:
    return Task(id=f"mine/{name}", source=source, name=name, level=1, origin="mine", split="train")


def held_out(source: str = GATED, *, name: str = "bench/gate") -> Suite:
    return Suite("bench", [Task(id=name, source=source, name="Gate", level=2, origin="bench")])


def told_by(sets: TaskSets) -> dict[str, int]:
    return dict(sets.overlaps)


@pytest.mark.parametrize("source", [VERBATIM, RESIZED])
def test_a_copy_is_found_by_its_text_and_nothing_is_traced(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("nothing was to be traced")

    monkeypatch.setattr(Tracer, "trace", refused)
    copy = mine("copy", source)
    assert same_tasks([copy], held_out()) == {"mine/copy": Same("bench/gate", Why.TEXT)}
    with pytest.raises(CorpusError, match="are in the test suite 'bench'"):
        choose_tasks(Suite("mine", [copy]), "cpu", EVERYTHING, test=held_out())
    marked = choose_tasks(Suite("mine", [copy]), "cpu", EVERYTHING, test=held_out(), train_on_test=True)
    assert marked.trained_on_test
    assert [one.id for one in marked.train] == ["mine/copy"]
    assert marked.left_out == {}


def test_renamed_or_unrelated_programs_are_not_copies_by_text() -> None:
    others = [mine("renamed", RENAMED), mine("unrelated", UNRELATED), mine("trained", ""), mine("broken", "def")]
    assert same_tasks(others, held_out()) == {}
    assert same_tasks([mine("broken", "def")], held_out("def")) == {"mine/broken": Same("bench/gate", Why.TEXT)}


def test_a_copy_of_a_kernelbench_reference_is_found_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of its reference is the task, also where the test has it in another text, or a task of the same graph."""
    notes = dict(known.notes())
    notes["level1/12"] = notes["level1/12"].model_copy(update={"program": program_hash(GATED)})
    monkeypatch.setattr(known, "notes", lambda: notes)
    copy = mine("copy", RESIZED)
    for name in ("kernelbench/level1/12", "cuda-l1/level1/12"):
        assert same_tasks([copy], held_out(UNRELATED, name=name)) == {"mine/copy": Same(name, Why.TEXT)}
    assert same_tasks([copy], held_out(UNRELATED, name="kernelbench/level1/40")) == {}
    notes["level1/40"] = notes["level1/40"].model_copy(update={"graph": notes["level1/12"].graph})
    same = Same("kernelbench/level1/40", Why.GRAPH)
    assert same_tasks([copy], held_out(UNRELATED, name="kernelbench/level1/40")) == {"mine/copy": same}


@pytest.mark.slow
def test_tasks_with_the_graph_of_a_test_task_are_left_out_and_counted() -> None:
    tasks = [
        mine("verbatim", VERBATIM),
        mine("renamed", RENAMED),
        mine("reshaped", RESHAPED),
        mine("unrelated", UNRELATED),
        mine("untraceable", UNTRACEABLE),
    ]
    said: list[str] = []
    sets = choose_tasks(Suite("mine", tasks), "cpu", EVERYTHING, test=held_out(), notify=said.append)
    assert [one.id for one in sets.train] == ["mine/unrelated", "mine/untraceable"]
    assert sets.left_out == dict.fromkeys(["mine/verbatim", "mine/renamed", "mine/reshaped"], "bench/gate")
    assert told_by(sets) == {"text": 1, "graph": 2}
    assert not sets.trained_on_test
    assert "tracing 5 references" in said[0]
    assert [line for line in said if "cannot be traced" in line and line.startswith("mine/untraceable")]
    assert "(1 by text, 2 by graph): mine/verbatim" in overlap_text(sets)

    again: list[str] = []
    marked = choose_tasks(
        Suite("mine", tasks[1:]), "cpu", EVERYTHING, test=held_out(), train_on_test=True, notify=again.append
    )
    assert marked.trained_on_test
    assert len(marked.train) == 4
    assert (marked.left_out, told_by(marked)) == ({}, {"graph": 2})
    assert "trained on although the test has them" in overlap_text(marked)
    assert not [line for line in again if "tracing" in line]  # what was traced once in a process is known

    clean = choose_tasks(Suite("mine", tasks[3:4]), "cpu", EVERYTHING, test=held_out(), train_on_test=True)
    assert not clean.trained_on_test
    assert told_by(clean) == {}


class Told:
    """Stands for the process that traces."""

    def __init__(self, graphs: Callable[[Task], str | None], does: Mapping[str, Behaviour] | None = None) -> None:
        self.graphs, self.does = graphs, does or {}
        self.asked: list[str] = []

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def trace(_: Tracer, task: Task) -> TaskGraph:
            self.asked.append(task.id)
            graph = self.graphs(task)
            told = self.does.get(task.id, ())
            return TaskGraph(id=task.id, fingerprint=graph, behaviour=told, error=None if graph else "no graph")

        monkeypatch.setattr(Tracer, "trace", trace)


def test_a_rewrite_is_found_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    does = {"mine/renamed": ((4.0, 1.0, 0.5),), "mine/unrelated": ((4.0, 1.0, 0.6),), "bench/gate": ((4.0, 1.0, 0.5),)}
    Told(lambda task: task.id, does).put(monkeypatch)
    tasks = [mine("renamed", RENAMED), mine("unrelated", UNRELATED)]
    assert near_duplicates(tasks, held_out()) == {"mine/renamed": Same("bench/gate", Why.BEHAVIOUR)}


def test_two_untraceable_tasks_are_not_near_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    Told(lambda _: None).put(monkeypatch)
    said: list[str] = []
    assert near_duplicates([mine("other", UNRELATED)], held_out(), notify=said.append) == {}
    assert [line.partition(" ")[0] for line in said if "cannot" in line] == ["mine/other", "bench/gate"]


def test_bundled_tasks_are_traced_against_a_test_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Told(lambda task: "gate" if task.id in ("bench/gate", "starter/rms_norm") else task.id)
    double.put(monkeypatch)
    bundles = [*load_suite("starter").train, *load_suite("generated?n=4")]
    assert near_duplicates(bundles, []) == {}
    assert double.asked == []
    assert near_duplicates(bundles, held_out()) == {"starter/rms_norm": Same("bench/gate", Why.GRAPH)}
    assert set(double.asked) == {*(task.id for task in bundles), "bench/gate"}


@pytest.mark.slow
def test_copies_in_a_table_of_tasks_are_left_out(tmp_path: Path) -> None:
    """As a user has it: rows with a split of their own."""
    rows = [
        {"id": f"mine/{number}", "code": text, "level": 1, "name": "x", "problem_id": number, "split": "train"}
        for number, text in enumerate([VERBATIM, UNRELATED.replace("exp", "tanh")])
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    sets = choose_tasks(load_suite(path), "cpu", EVERYTHING, test=held_out())
    assert (sets.left_out, told_by(sets)) == ({"mine/0": "bench/gate"}, {"text": 1})
    assert [one.id for one in sets.train] == ["mine/1"]


@pytest.mark.slow
def test_a_copy_of_a_random_task_of_the_test_is_left_out() -> None:
    test = Suite(
        "bench", [*held_out(), held_out(UNRELATED, name="bench/random")[0].model_copy(update={"tags": ("random",)})]
    )
    tasks = [mine("copy", UNRELATED), load_suite("starter").train[0]]
    sets = choose_tasks(Suite("mine", tasks), "cpu", EVERYTHING, test=test)
    assert sets.left_out == {"mine/copy": "bench/random"}
    assert [one.id for one in sets.held_out] == ["bench/gate"]
