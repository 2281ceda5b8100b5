from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cudal1_data import load_suite
from cudal1_data.cli import main
from cudal1_data.corpus import Corpus, load_corpus


def test_list(capsys: pytest.CaptureFixture[str], release_file: Path) -> None:
    assert main(["list", str(release_file)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["cuda-l1/level1/1", "cuda-l1/level1/12"]


def test_list_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in entries] == list(load_suite("starter").ids)
    assert "source" not in entries[0]
    assert "c_rows" in next(entry["variants"] for entry in entries if entry["id"] == "starter/diag_matmul")


def test_list_reports_broken_tasks_on_stderr(capsys: pytest.CaptureFixture[str], checkout: Path) -> None:
    assert main(["list", str(checkout)]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "3_Broken.py" in captured.err


@pytest.mark.parametrize("command", [("list",), ("list", "--json"), ("export", "all.jsonl")])
def test_a_suite_without_a_task_that_can_be_used_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/1_Broken.py").write_text("x = 1\n")
    assert main([command[0], "mine", *command[1:]]) == 2
    assert "no task of mine can be used; mend its files, or name another suite" in capsys.readouterr().err
    assert not Path("all.jsonl").exists()


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    task = load_suite("starter/diag_matmul")[0]
    assert main(["show", "starter/diag_matmul"]) == 0
    assert capsys.readouterr().out == task.source
    assert main(["show", "starter/diag_matmul", "--size", "N=3,M=4", "--variants"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(task.at({"N": 3, "M": 4}).source)
    assert all(variant.source in out for variant in task.variants)


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.parquet"])
def test_export_and_load_again(tmp_path: Path, name: str) -> None:
    out = tmp_path / "new" / name
    assert main(["export", "starter", str(out)]) == 0
    suite, again = load_suite("starter"), load_suite(out)
    bare = {"sizes": {}, "variants": ()}
    assert [task.model_copy(update=bare) for task in suite] == list(again)
    assert [path.name for path in out.parent.iterdir()] == [name]


def test_export_folder_is_a_checkout(tmp_path: Path, checkout: Path) -> None:
    out = tmp_path / "exported"
    assert main(["export", str(checkout), str(out)]) == 0
    assert (out / "level1" / "12_Twelfth_task.py").exists()
    assert list(load_suite(out)) == list(load_suite(checkout))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "starter/diag_matmull"], "did you mean starter/diag_matmul"),
        (["show", "starter/diag_matmul", "--size", "N=x"], "invalid size"),
        (
            ["show", "starter/diag_matmul", "--size", "Q=1"],
            "defines no integer constant Q at its top level; its constants",
        ),
        (["show", "starter"], "not one task"),
        (["show", "file/relu@N=4"], "write FOLDER:relu@N=4, or the path of its .py file"),
        (["list", "no/such/folder"], "unknown suite 'no/such/folder'"),
        (["export", "starter", "tasks.txt"], "ends in .jsonl or .parquet"),
        (["export", "starter", "/proc/tasks.jsonl"], "/proc/tasks.jsonl"),
        (["list", "--scale", "0"], "less than 1 (it divides the batch)"),
        (["list", "--scale", "-1"], "less than 1 (it divides the batch)"),
        (["list", "--memory-gib", "nan"], "give a memory above 0 GiB"),
        (["list", "--memory-gib", "inf"], "give a memory above 0 GiB"),
        (["export", "starter", "tasks.jsonl", "--memory-gib", "0"], "give a memory above 0 GiB"),
        (["overlaps", "starter:diag_matmul", "--with", "startr"], "unknown suite 'startr'"),
    ],
)
def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert reason in captured.err
    assert len(captured.err.splitlines()) == 1


def test_export_refuses_a_folder_that_holds_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("")
    assert main(["export", "starter", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_command_exits_with_its_code(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; from cudal1_data.cli import main; sys.exit(main())"]
    done = subprocess.run([*command, "list", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    reader_gone = subprocess.run(
        f"{sys.executable} -m cudal1_data list | head -0", shell=True, capture_output=True, check=False, text=True
    )
    assert "Traceback" not in reader_gone.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_overlaps_of_a_suite_with_itself_under_other_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task file that holds a bundled task at another size, in other words, is found; another task is not."""
    same = (
        load_suite("starter/diag_matmul")[0].at({"N": 8, "M": 4}).source.replace("torch.diag(a) @ b", "a.diag().mm(b)")
    )
    (tmp_path / "same.py").write_text(same)
    assert main(["overlaps", str(tmp_path / "same.py"), "--with", "starter:diag_matmul,rms_norm", "--json"]) == 0
    captured = capsys.readouterr()
    assert "1 of 2 tasks of starter:diag_matmul,rms_norm traced" in captured.err
    report = json.loads(captured.out)
    assert [(one["task"], one["same"]) for one in report["overlaps"]] == [("file/same", ["starter/diag_matmul"])]
    assert (report["tasks"], report["others"], report["failed"]) == (1, 2, {})
    assert main(["overlaps", "starter:rms_norm", "--with", str(tmp_path / "same.py")]) == 0
    assert capsys.readouterr().out.startswith("0 of 1 tasks of starter:rms_norm")


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_trace(capsys: pytest.CaptureFixture[str]) -> None:
    spec = "starter:diag_matmul,rms_norm"
    assert main(["trace", spec, "--json"]) == 0
    captured = capsys.readouterr()
    assert f"1 of 2 tasks of {spec} traced" in captured.err
    [_, found] = json.loads(captured.out)
    assert found["operators"][0] == "pow 2"
    assert found["memory"]["outputs_bytes"] > 0


@pytest.mark.slow
def test_trace_ends_with_an_error_if_no_task_can_be_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "uneven.py"
    source = load_suite("starter/diag_matmul")[0].source
    path.write_text(source + "\n\ndef get_inputs():\n    return [torch.rand(2), torch.rand(3, 4)]\n")
    assert main(["trace", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert "file/uneven cannot be traced: " in captured.err
    assert json.loads(captured.out)["error"] == "BrokenTaskError"
    both = tmp_path / "both"
    both.mkdir()
    (both / "uneven.py").write_text(path.read_text())
    (both / "even.py").write_text(source)
    assert main(["trace", str(both)]) == 0
    assert "uneven: cannot be traced: " in capsys.readouterr().out


@pytest.mark.parametrize("command", [pytest.param("trace", marks=pytest.mark.slow), "build", "tags"])
def test_commands_report_tasks_that_they_leave_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], release_file: Path, command: str
) -> None:
    first = release_file.read_text().splitlines()[0]
    release_file.write_text(f"{first}\n{first}\nno JSON\n")
    out = str(tmp_path / "corpus.jsonl")
    arguments = {"trace": ["trace"], "build": ["corpus", "build", out], "tags": ["tags"]}[command]
    refused = command == "build"  # what is left are references of KernelBench
    assert main([*arguments, str(release_file)]) == (2 if refused else 0)
    told = capsys.readouterr().err
    assert ("is a reference of KernelBench" in told) == refused
    assert "left out: " in told
    assert "occurs here and in" in told
    assert "no JSON object" in told


def test_tags_of_a_program_a_table_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], release_file: Path
) -> None:
    head = "import torch\nclass ModelNew(torch.nn.Module):\n"
    program = head + "    def forward(self, x):\n        return torch.addmm(x, x, x)\n"
    (tmp_path / "mine.py").write_text(program)
    assert main(["tags", str(tmp_path / "mine.py")]) == 0
    assert "pytorch           fusion" in capsys.readouterr().out
    record = {"task": "t", "task_source": "x = 1", "source": program, "status": "CORRECT", "speedup": {"point": 2.0}}
    lines = [record, record | {"status": "CRASH", "speedup": None}, {"evaluation": None}]
    (tmp_path / "records.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    assert main(["tags", str(tmp_path / "records.jsonl"), "--json"]) == 0
    rows = {row["tag"]: row for row in json.loads(capsys.readouterr().out)["techniques"]}
    assert (rows["fusion"]["programs"], rows["fusion"]["correct"], rows["fusion"]["mean"]) == (2, 1, 2.0)
    assert main(["tags", str(release_file)]) == 0
    assert "cuda-l1/level1/1 " in capsys.readouterr().out
    assert main(["tags", str(release_file), "--column", "no_code"]) == 2
    assert "--column takes cuda_graph_code, custom_code" in capsys.readouterr().err


def test_a_program_is_tagged_with_the_reference_of_a_task(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = str(repository / "examples" / "diag_matmul.py")
    assert main(["tags", example]) == 0
    assert "algebra" not in capsys.readouterr().out
    assert main(["tags", example, "--task", "starter/diag_matmul"]) == 0
    assert "algebra: costly operation gone" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["corpus.parquet", "corpus.jsonl", "folder"])
def test_tags_of_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Each program with its own reference, as the corpus itself was tagged."""
    pairs = list(load_corpus("bundled"))[::60]
    path = tmp_path / name
    Corpus(pairs).save(path if path.suffix else path / "pairs.parquet")
    assert main(["tags", str(path), "--column", "source", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found = json.loads(captured.out)
    expected = {f"{pair.task}:{pair.source_sha256[:8]}": list(pair.techniques) for pair in pairs}
    assert {program: tags["techniques"] for program, tags in found["programs"].items()} == expected
    assert all(row["correct"] == row["programs"] for row in found["techniques"])


@pytest.mark.parametrize(
    ("name", "text", "more", "reason"),
    [
        ("mine.py", "", [], "mine.py: the program defines no class ModelNew"),
        ("mine.py", "class ModelNew(\n", [], "mine.py: not Python: syntax error in line 1"),
        ("mine.jsonl", "", [], "mine.jsonl: no records with programs"),
        ("mine.jsonl", "no JSON", [], "mine.jsonl, line 1: not JSON"),
        ("mine.jsonl", "{}", ["--task", "starter/diag_matmul"], "is for a single program (.py)"),
        ("none.parquet", None, [], "no file "),
        ("none.py", None, [], "no file "),
    ],
)
def test_tags_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, more: list[str], reason: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main(["tags", str(tmp_path / name), *more]) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert reason in told


def test_tags_takes_no_other_column_of_a_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tags", "bundled", "--column", "reference"]) == 2
    assert "the programs of a corpus are in source" in capsys.readouterr().err


def test_ten_reasons_and_a_count(capsys: pytest.CaptureFixture[str], release_file: Path) -> None:
    first = release_file.read_text().splitlines()[0]
    release_file.write_text(f"{first}\n" * 31)
    assert main(["list", str(release_file)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 11
    assert told[-1] == "left out: 20 more, 30 in all"


def test_tags_of_a_program_that_begins_with_a_byte_order_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("import torch\n\n\nclass ModelNew(torch.nn.Module): ...\n", encoding="utf-8-sig")
    assert main(["tags", str(tmp_path / "mine.py")]) == 0
    assert "pytorch" in capsys.readouterr().out


@pytest.mark.parametrize("time", ["-1", "0", "nan", "inf"])
def test_a_time_that_none_can_wait_for(capsys: pytest.CaptureFixture[str], time: str) -> None:
    assert main(["overlaps", "starter:diag_matmul", f"--timeout-s={time}"]) == 2
    assert "must be above 0 s and at most" in capsys.readouterr().err


def test_a_scaled_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        "import torch\nbatch_size = 8\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
        "def get_inputs():\n    return [torch.randn(batch_size, 4)]\ndef get_init_inputs():\n    return []\n"
    )
    (tmp_path / "task.py").write_text(source)
    assert main(["export", str(tmp_path / "task.py"), str(tmp_path / "small.jsonl"), "--scale", "4"]) == 0
    assert main(["list", str(tmp_path / "small.jsonl"), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["id"], found["tags"]) == ("file/task@batch_size=2", ["scaled"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "corpus.txt", "starter"], "name a file that ends in .parquet or .jsonl"),
        (["build", "corpus.jsonl", "starter", "--per-task", "0"], "--per-task is 0; give at least 1"),
        (["build", "corpus.jsonl", "starter", "--failures", "-1"], "--failures is -1; give at least 0"),
        (["merge", "bundled", "records.jsonl"], "name a file that ends in .parquet or .jsonl"),
    ],
)
def test_a_corpus_that_cannot_be_written_is_refused_before_work_begins(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cudal1_data.sources.load_suite", lambda *_, **__: pytest.fail("loaded a suite"))
    assert main(["corpus", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_corpus_verify_is_the_judges_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus, records = tmp_path / "corpus.jsonl", tmp_path / "records.jsonl"
    assert main(["corpus", "verify", str(corpus), "--device", "cpu", "--out", str(records)]) == 2
    said = capfd.readouterr().err
    assert str(corpus) in said.splitlines()[0], said
    assert "cudal1-env verify" in said
