"""What is written where, and that a failure leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from cudal1_data import Task, load_suite
from cudal1_data.cli import main
from cudal1_data.errors import DataError
from cudal1_data.sources.export import export, problem_numbers
from task_programs import program


def task(task_id: str, name: str = "A task", level: int = 1) -> Task:
    return Task(id=task_id, source=program(), name=name, level=level, origin="file")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_size_behind_an_id_does_not_hide_its_number() -> None:
    tasks = [task("a/level1/3@N=4"), task("a/level1/12@N=4"), task("a/other@N=4"), task("a/level2/7", level=2)]
    assert list(problem_numbers(tasks).values()) == [3, 12, 3, 7]


def test_a_folder_names_files_as_kernelbench_does(tmp_path: Path, checkout: Path) -> None:
    sized = load_suite(f"{checkout}:level1/12@N=1024")[0]
    export([sized, task("mine/plain")], tmp_path / "out")
    assert files(tmp_path / "out") == ["level1/12_Twelfth_task.py", "level1/plain.py"]
    back = load_suite(tmp_path / "out")["kernelbench/level1/12"]
    whole = load_suite(checkout)["kernelbench/level1/12"]
    assert (back.source, back.name, back.category) == (sized.source, whole.name, whole.category)
    assert whole.category


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Performs a: softmax / (dim=1)\n", "5_Performs_a_softmax_dim_1.py"),
        ("word " * 60, f"5_{'word_' * 15}word.py"),
        ("\u4e2d ...", "5_Task.py"),
    ],
)
def test_a_name_of_any_text_becomes_a_file(tmp_path: Path, name: str, file: str) -> None:
    export([task("a/level3/5", name, level=3)], tmp_path / "out")
    assert files(tmp_path / "out") == [f"level3/{file}"]
    assert load_suite(tmp_path / "out").ids == ("kernelbench/level3/5",)


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "new" / "out"
    if there:
        out.mkdir(parents=True)
    with pytest.raises(OSError, match="name too long"):
        export([task("a/fine"), task(f"a/{'long' * 100}")], out)
    assert [path.name for path in out.parent.iterdir()] == (["out"] if there else [])
    assert files(tmp_path) == []
    export([task("a/fine")], out)
    assert files(out) == ["level1/fine.py"]
    with pytest.raises(DataError, match="is not empty"):
        export([task("a/fine")], out)


def test_an_unfinished_folder_next_to_the_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    with pytest.raises(DataError, match=r"out\.part exists already.*; remove it"):
        export([task("a/fine")], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out.part"]


def test_one_place_for_two_tasks_is_refused(tmp_path: Path) -> None:
    tasks = [task("a/level1/12@N=4", "One"), task("a/level1/12@N=2", "Two")]
    with pytest.raises(DataError, match=r"a/level1/12@N=4 and a/level1/12@N=2 .* name a file instead \(.*out\.parquet"):
        export(tasks, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    export(tasks, tmp_path / "out.parquet")
    assert len(load_suite(tmp_path / "out.parquet")) == 2


@pytest.mark.parametrize("command", [["export", "starter"], ["corpus", "export", "bundled"]])
def test_a_file_type_that_is_not_known_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, str(tmp_path / "x.csv")]) == 2
    assert "name a file that ends in .jsonl or .parquet, or a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_dot_in_its_name_may_be_there_already(tmp_path: Path) -> None:
    (tmp_path / "tasks.v2").mkdir()
    export([task("a/fine")], tmp_path / "tasks.v2")
    assert files(tmp_path / "tasks.v2") == ["level1/fine.py"]


def test_help_says_which_fields_a_folder_loses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["export", "--help"])
    text = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "split, tags and sizes in ids are lost" in text


@pytest.mark.slow
@pytest.mark.shared
def test_the_published_release_as_a_folder(tmp_path: Path, shared_data: Path) -> None:
    suite = load_suite(shared_data / "cuda-l1" / "h100.jsonl")
    export(suite, tmp_path / "out")
    back = load_suite(tmp_path / "out")
    assert [task.source for task in back] == [task.source for task in suite]
    assert back.broken == ()
    small = load_suite(shared_data / "cuda-l1" / "h100.jsonl", scale=2)
    numbers = problem_numbers(small)
    assert all(one.id.partition("@")[0].endswith(f"/{numbers[one.id]}") for one in small)
