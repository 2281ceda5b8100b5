"""What the tests share: a tracing process, and small files of every form that a suite can come from."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cudal1_data.tracing import Tracer
from task_programs import program


@pytest.fixture(scope="session")
def tracer() -> Iterator[Tracer]:
    """A process that executes references; importing torch there takes some seconds."""
    with Tracer() as started:
        yield started


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks at the clock a minute goes by, so every item is worth a line."""
    minutes, clock = itertools.count(), time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + 60 * next(minutes))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A KernelBench checkout: two levels, one broken file, files that are no tasks."""
    root = tmp_path / "checkout"
    for level, number, name in [(1, 2, "Second_task_"), (1, 12, "Twelfth_task"), (2, 1, "Other_level")]:
        folder = root / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}_{name}.py").write_text(program(number))
    (root / "KernelBench" / "level1" / "3_Broken.py").write_text("class Model:\n    pass\n")
    (root / "README.md").write_text("not a task")
    (root / "setup.py").write_text("print('not a task')")
    return root


@pytest.fixture
def kernelbench_rows() -> list[dict[str, object]]:
    """Rows with KernelBench's four columns."""
    return [
        {"code": program(level * 10 + number), "level": level, "name": f"{number}_Task_{number}", "problem_id": number}
        for level in (1, 2)
        for number in (1, 2)
    ]


@pytest.fixture
def release_file(tmp_path: Path) -> Path:
    """CUDA-L1's release form: the second row has no published program."""
    rows = [
        {
            "level_id": 1,
            "task_id": number,
            "ref_code": program(number),
            "custom_code": custom,
            "cuda_graph_code": "# graph",
            "score_default": 2.5,
        }
        for number, custom in [(1, "class ModelNew: ..."), (12, None)]
    ]
    path = tmp_path / "release.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path
