from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from cudal1_data import BrokenTaskError, UnknownSuiteError, UnknownTaskError, load_suite, load_task
from cudal1_data.errors import DataError
from task_programs import program


def row_with(code: str) -> bytes:
    return json.dumps({"code": code, "level": 1, "name": "1_Row", "problem_id": 1}).encode()


@pytest.mark.parametrize("inner", ["", "KernelBench"])
def test_checkout(checkout: Path, inner: str) -> None:
    suite = load_suite(checkout / inner)
    assert suite.ids == ("kernelbench/level1/2", "kernelbench/level1/12", "kernelbench/level2/1")
    task = suite["kernelbench/level1/12"]
    assert (task.name, task.level, task.origin, task.split) == ("Twelfth task", 1, "kernelbench", "test")
    assert task.source == program(12)


def test_a_byte_order_mark_is_no_part_of_a_task(tmp_path: Path) -> None:
    path = tmp_path / "marked.py"
    path.write_text(program(1), encoding="utf-8-sig")
    assert load_task(path).source == program(1)


def test_broken_file_is_listed_and_the_rest_is_usable(checkout: Path) -> None:
    suite = load_suite(checkout)
    [(path, error)] = suite.broken
    assert path == checkout / "KernelBench" / "level1" / "3_Broken.py"
    assert isinstance(error, BrokenTaskError)
    assert str(path) in str(error)
    assert "does not define get_inputs, get_init_inputs" in str(error)
    assert len(suite) == 3


def test_a_broken_file_is_named_when_it_is_asked_for(checkout: Path) -> None:
    for name in ("level1/3", "kernelbench/level1/3", "3_Broken"):
        with pytest.raises(BrokenTaskError, match=r"3_Broken\.py.*does not define get_inputs"):
            load_suite(checkout, ids=[name])
    with pytest.raises(BrokenTaskError, match=r"3_Broken\.py"):
        load_task(f"{checkout}:level1/3")


def test_a_folder_with_a_broken_file_is_still_a_suite_and_not_one_task(checkout: Path) -> None:
    with pytest.raises(UnknownTaskError, match="a suite of 3 tasks, not one task"):
        load_task(checkout)


def test_two_files_of_one_number_are_both_named(checkout: Path) -> None:
    folder = checkout / "KernelBench" / "level1"
    (folder / "12_Another.py").write_text(program(1))
    suite = load_suite(checkout)
    reason = next(str(entry.error) for entry in suite.broken if "occurs here" in str(entry.error))
    assert all(text in reason for text in ("12_Another.py", "12_Twelfth_task.py", "kernelbench/level1/12"))
    assert len(suite) == 3
    assert load_task(f"{checkout}:level1/12") == suite["level1/12"]  # the one that counts
    assert load_suite(f"{checkout}:level1/12@N=4,level1/2").ids == ("kernelbench/level1/12@N=4", "kernelbench/level1/2")
    with pytest.raises(BrokenTaskError, match="which counts"):
        load_task(f"{checkout}:12_Twelfth_task")


def test_two_rows_of_one_id_are_both_named(tmp_path: Path, kernelbench_rows: list[dict[str, object]]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [*kernelbench_rows, kernelbench_rows[1]]))
    suite = load_suite(path)
    [(_, error)] = suite.broken
    assert "row 5: the task id kernelbench/level1/2 occurs here and in" in str(error)
    assert "row 2, which counts" in str(error)
    assert len(suite) == 4


def test_a_broken_row_is_named_when_it_is_asked_for(
    tmp_path: Path, release_file: Path, kernelbench_rows: list[dict[str, object]]
) -> None:
    rows = kernelbench_rows
    rows[1] = rows[1] | {"code": "def (:"}
    rows[2] = rows[2] | {"code": None}
    rows[3] = rows[3] | {"id": "mine/last@N=2", "code": "x = 1"}
    released = json.loads(release_file.read_text().splitlines()[0]) | {"ref_code": "x ="}
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, released, ["no row"]])))
    assert len(load_suite(path)) == 1
    for name, reason in [
        ("level1/2", "row 2.*syntax error"),
        ("kernelbench/level1/2@N=4", "row 2.*syntax error"),
        ("level2/1", "row 3.*code: "),
        ("last", "row 4.*does not define Model"),
        ("mine/last@N=2", "row 4.*does not define Model"),
        ("cuda-l1/level1/1", "row 5.*syntax error"),
    ]:
        with pytest.raises(BrokenTaskError, match=reason):
            load_suite(f"{path}:{name}")
    assert load_task(f"{path}:level1/1").id == "kernelbench/level1/1"


def test_selection(checkout: Path) -> None:
    assert load_suite(f"{checkout}:level2").ids == ("kernelbench/level2/1",)
    assert load_suite(f"{checkout}:level1,level2", levels=[1]).ids == ("kernelbench/level1/2", "kernelbench/level1/12")
    assert load_suite(checkout, ids=["level2/1", "kernelbench/level1/2"]).ids == (
        "kernelbench/level2/1",
        "kernelbench/level1/2",
    )
    assert load_task(f"{checkout}:level1/12").source == program(12)
    with pytest.raises(UnknownTaskError, match="leaves no task"):
        load_suite(checkout, levels=[4], ids=[])


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        ("generated?n=20:level1", "generated?n=20"),
        ("generated:softmax:level1,level2", "generated:softmax"),
        ("generated:softmax+scan?n=20&seed=7:level1", "generated:softmax+scan?n=20&seed=7"),
        ("generated:level1", "generated"),
    ],
)
def test_a_selection_of_generated_tasks(spec: str, whole: str) -> None:
    levels = {int(item.removeprefix("level")) for item in spec.rpartition(":")[2].split(",")}
    chosen = load_suite(spec)
    assert chosen.ids == load_suite(whole).where(lambda task: task.level in levels).ids
    assert 0 < len(chosen) < len(load_suite(whole))


def test_single_generated_tasks_behind_a_colon() -> None:
    assert load_suite("generated:softmax-7-12").ids == ("generated/softmax-7-12",)
    assert load_suite("generated:softmax?n=4:softmax-0-2").ids == ("generated/softmax-0-2",)


def test_one_file(checkout: Path, tmp_path: Path) -> None:
    assert load_task(checkout / "KernelBench" / "level1" / "2_Second_task_.py").id == "kernelbench/level1/2"
    path = tmp_path / "mine.py"
    path.write_text(program(7))
    task = load_task(str(path))
    assert (task.id, task.origin, task.level, task.split, task.source) == ("file/mine", "file", 1, "test", program(7))
    assert load_suite(path).ids == ("file/mine",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class Model: ...\ndef get_init_inputs(): ...\n", "does not define get_inputs"),
        ("def (:\n", r"syntax error in line 1: invalid syntax$"),
        ("a = 1\0\n", r"syntax error: source code string cannot contain null bytes$"),
        ("", "does not define Model, get_inputs, get_init_inputs"),
    ],
)
def test_broken_task_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(BrokenTaskError, match=reason) as caught:
        load_task(path)
    assert str(path) in str(caught.value)


def test_task_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BrokenTaskError, match="UTF-8"):
        load_task(path)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_table_with_kernelbench_columns(tmp_path: Path, kernelbench_rows: list[dict[str, object]], form: str) -> None:
    path = tmp_path / f"rows.{form}"
    if form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in kernelbench_rows) + "\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(kernelbench_rows), path)
    suite = load_suite(path)
    assert suite.ids == tuple(f"kernelbench/level{level}/{number}" for level in (1, 2) for number in (1, 2))
    assert suite["kernelbench/level2/1"].source == program(21)
    assert suite["kernelbench/level2/1"].name == "Task 1"
    assert {task.split for task in suite} == {"test"}
    assert load_task(f"{path}:level2/2").source == program(22)


def test_release_form(release_file: Path) -> None:
    suite = load_suite(release_file)
    assert suite.ids == ("cuda-l1/level1/1", "cuda-l1/level1/12")
    assert suite.programs["cuda-l1/level1/1"] == {"custom_code": "class ModelNew: ...", "cuda_graph_code": "# graph"}
    assert suite.programs["cuda-l1/level1/12"] == {"cuda_graph_code": "# graph"}
    assert suite.scores["cuda-l1/level1/1"] == {"score_default": 2.5}
    assert load_suite(f"{release_file}:level1/12").scores == {"cuda-l1/level1/12": {"score_default": 2.5}}
    assert suite[:1].scores.keys() == {"cuda-l1/level1/1"}
    assert suite["cuda-l1/level1/12"].overlaps == "kernelbench/level1/12"
    assert suite["cuda-l1/level1/12"].split == "test"


def test_bad_rows_are_listed_and_the_rest_is_usable(tmp_path: Path, release_file: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    bad = ["[1, 2]", "{not json", json.dumps({"code": program(), "level": 1}), json.dumps({"ref_code": "x = 1"})]
    path.write_text("\n".join([*bad, release_file.read_text()]))
    suite = load_suite(path)
    assert suite.ids == ("cuda-l1/level1/1", "cuda-l1/level1/12")
    reasons = [str(entry.error) for entry in suite.broken]
    assert all(str(path) in reason for reason in reasons)
    assert "holds a list; write one JSON object a line" in reasons[0]
    assert "line 2" in reasons[1]
    assert "problem_id" in reasons[2]
    assert "level_id" in reasons[3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"code": "\xff"}', "line 1: the line is no JSON object"),
        (b'{"a":' * 100_000, "line 1: the line is no JSON object"),
        (row_with("x = " + "-" * 100_000 + "1"), "nested too deeply"),
        (row_with("(" * 5000), "too many nested parentheses"),
        (row_with(program(1) + "x = " + " + ".join(["1"] * 3000)), "nested too deeply"),
    ],
)
def test_one_row_that_cannot_be_read_leaves_the_rest(
    tmp_path: Path, kernelbench_rows: list[dict[str, object]], line: bytes, reason: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([line, *(json.dumps(row).encode() for row in kernelbench_rows)]))
    suite = load_suite(path)
    [(_, error)] = suite.broken
    assert reason in str(error)
    assert len(suite) == 4


def test_a_task_file_that_is_nested_too_deeply_leaves_the_rest(checkout: Path) -> None:
    deep = program(1) + "x = " + " + ".join(["1"] * 3000)
    (checkout / "KernelBench" / "level1" / "1_Deep.py").write_text(deep)
    suite = load_suite(checkout)
    assert len(suite) == 3
    assert any("1_Deep.py" in str(error) and "nested too deeply" in str(error) for _, error in suite.broken)


@pytest.mark.parametrize(("name", "content"), [("empty.jsonl", b""), ("bad.parquet", b"PAR1 not really")])
def test_table_that_is_none(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BrokenTaskError, match=name):
        load_suite(path)


def test_unknown_suite_offers_the_nearest(tmp_path: Path, release_file: Path) -> None:
    with pytest.raises(UnknownSuiteError, match="did you mean starter"):
        load_suite("startr")
    with pytest.raises(UnknownSuiteError, match=r"did you mean .*release\.jsonl"):
        load_suite(tmp_path / "relaese.jsonl")
    with pytest.raises(UnknownSuiteError, match=r"there is no file nothing\.py"):
        load_suite("nothing.py")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UnknownSuiteError, match=r"bare holds no task: neither NAME\.py nor level1/NAME\.py"):
        load_suite(tmp_path / "bare")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UnknownSuiteError, match=r"name a \.jsonl, \.parquet or \.py file"):
        load_suite(tmp_path / "notes.txt")


def test_a_folder_of_task_files_is_a_suite(checkout: Path) -> None:
    level = checkout / "KernelBench" / "level1"
    numbered = ("kernelbench/level1/2", "kernelbench/level1/12")
    assert load_suite(level).ids == load_suite(f"{checkout}:level1").ids == numbered
    level.rename(checkout / "mine")
    mine = load_suite(checkout / "mine")
    assert mine.ids == ("file/2_Second_task_", "file/12_Twelfth_task")
    assert [broken.path.name for broken in mine.broken] == ["3_Broken.py"]


def test_a_device_that_is_none() -> None:
    with pytest.raises(DataError, match="unknown device 'tpu'; did you mean 'cpu'"):
        load_suite("starter", device="tpu")  # pyright: ignore[reportArgumentType]


def test_unknown_task_offers_the_nearest() -> None:
    with pytest.raises(UnknownTaskError, match="did you mean starter/diag_matmul"):
        load_suite("starter/diag_matmull")


def test_task_wanted_suite_given() -> None:
    with pytest.raises(UnknownTaskError, match=r"name one, e\.g\. starter:"):
        load_task("starter")


def test_published_release(shared_data: Path) -> None:
    path = shared_data / "cuda-l1" / "h100.jsonl"
    if not path.exists():
        pytest.skip(f"needs the published kernels; {path} is not there")
    suite = load_suite(path)
    assert len(suite) == 250
    assert suite.broken == ()
    assert [sum(task.level == level for task in suite) for level in (1, 2, 3)] == [100, 100, 50]
    assert sum("custom_code" in programs for programs in suite.programs.values()) == 227
    assert "class ModelNew" in suite.programs["cuda-l1/level1/12"]["custom_code"]


def test_import_brings_no_torch() -> None:
    code = "import sys, cudal1_data, cudal1_data.cli; cudal1_data.load_suite('starter'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
