"""The notes on KernelBench: facts by task id, for every form that its tasks come in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cudal1_data import Task, load_suite
from cudal1_data.hashes import program_hash
from cudal1_data.sources.kernelbench import known_graphs, load_notes, noted, notes, place_of, release
from cudal1_data.task import Memory
from cudal1_data.tracing import Tracer
from task_programs import program

DEGENERATE = {
    *(f"level1/{number}" for number in (19, 20, 23, 31, 32, 37)),
    *(f"level2/{number}" for number in (9, 23, 36, 38, 42, 65, 80, 83)),
    *(f"level3/{number}" for number in (3, 7, 11, 12, 18, 28, 35)),
}


def test_every_task_is_noted() -> None:
    levels = {1: 100, 2: 100, 3: 50}
    assert notes().keys() == {
        f"level{level}/{number}" for level, count in levels.items() for number in range(1, count + 1)
    }
    assert {place for place, note in notes().items() if note.degenerate} == DEGENERATE
    assert all(note.graph and note.memory and note.memory.total_bytes > 0 for note in notes().values())
    assert len(known_graphs()) == 250
    assert load_notes().torch


def test_the_notes_hold_no_programs() -> None:
    text = json.dumps({place: note.model_dump() for place, note in notes().items()})
    assert not any(word in text for word in ("def ", "class ", "import ", "torch.", "nn."))


def test_a_note_knows_its_program_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "N = 8\n" + program(3)
    memory = Memory(inputs_bytes=1, state_bytes=2, outputs_bytes=3)
    note = notes()["level1/19"].model_copy(update={"program": program_hash(source), "random": True, "memory": memory})
    monkeypatch.setattr("cudal1_data.sources.kernelbench.notes", lambda: {"level1/19": note})
    for form in ("kernelbench", "cuda-l1"):
        task = Task(id=f"{form}/level1/19", source=source, name="t", level=1, origin=form)
        assert noted(task).tags == ("degenerate", "random")
        assert noted(task).category == "activation"
        assert noted(task).memory is None  # another text: another size, maybe
        other = task.model_copy(update={"source": source.replace("N = 8", "N = 9  # larger")})
        assert noted(other).tags == ("degenerate", "random")
        changed = task.model_copy(update={"source": source + "\nx = torch.ones(3)\n"})
        assert (noted(changed).tags, noted(changed).category) == ((), "activation")
    mine = Task(id="file/mine", source=source, name="t", level=1, origin="file")
    assert noted(mine) is mine
    assert place_of("kernelbench/level4/1") == "level4/1"


def test_forms_carry_the_notes(checkout: Path, release_file: Path) -> None:
    assert load_suite(checkout)["kernelbench/level1/12"].category == "matmul"
    assert load_suite(release_file)["cuda-l1/level1/12"].category == "matmul"


@pytest.mark.shared
@pytest.mark.slow
def test_the_published_references_are_those_of_the_notes(shared_data: Path) -> None:
    suite = load_suite(shared_data / "cuda-l1" / "h100.jsonl")
    assert all(task.memory is not None for task in suite)
    assert {task.id.removeprefix("cuda-l1/") for task in suite if "degenerate" in task.tags} == DEGENERATE
    assert {task.id for task in suite if "random" in task.tags} == {"cuda-l1/level2/66", "cuda-l1/level2/83"}
    assert (
        sum(task.name.startswith("KernelBench level") for task in suite) < 50
    )  # networks without a word on themselves
    with Tracer() as tracer:
        for task in suite[::40]:
            found = tracer.trace(task, behaviour=False)
            note = notes()[place_of(task.id) or ""]
            assert found.memory == note.memory
            if release(tracer.version()) == release(load_notes().torch):
                assert found.fingerprint == note.graph
