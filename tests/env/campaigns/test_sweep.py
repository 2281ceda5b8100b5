"""Sweeps: what a file of programs holds, resumption to the line, the tables, and a real judge on tiny tasks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cudal1_data import BrokenTaskError, Task, UnknownTaskError
from cudal1_env.baselines.compare import strongest_of
from cudal1_env.campaigns.sweep import Program, SweepFile, SweepLine, read_programs, summarise, sweep
from cudal1_env.cli import main
from cudal1_env.errors import TOO_LARGE, MachineError, RecordError, TaskError
from cudal1_env.judge import Judge
from cudal1_env.records import BaselineFault, Evaluation, Kernel, OutputError, Precision, Profile, Speedup, Status
from cudal1_env.stats import against
from doubles.evaluator import RuleEvaluator, evaluation, program

REFERENCE = """\
import torch

# task {number}


class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return []
"""
PROGRAM = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {forward}\n"


class EachDouble:
    """Judges by the text alone, one at a time; a reference with `# refuse` is a task that the judge refuses."""

    def __init__(self, *, baselines: bool = False) -> None:
        self.rule = RuleEvaluator()
        self.baselines = baselines
        self.compared: list[str] = []

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        for index, (task, source) in enumerate(jobs):
            if "# refuse" in task.source:
                done(index, TaskError(f"{task.id}: random"))
            else:
                done(index, self.rule.evaluate(task, source, precision=precision))

    def compare(self, task: Task, evaluation: Evaluation) -> Evaluation:
        """The program of a task whose source says so has a baseline; the text says how fast that is."""
        if not self.baselines or not evaluation.correct or evaluation.strongest is not None:
            return evaluation
        if "# elsewhere" in evaluation.source:
            raise RecordError("expected a record made here")
        assert evaluation.speedup is not None
        self.compared.append(task.id.rsplit("/", 1)[-1])
        failed, speedups = {}, {}
        if "# stubborn" in evaluation.source:
            failed = {"compile": BaselineFault(status=Status.TIMEOUT, message="it compiles for ever")}
        else:
            twice = Speedup(low=2.0, point=2.0, high=2.0)
            speedups = {"compile": against(evaluation.speedup, twice)}
        update = {"speedups": speedups, "baselines_failed": failed}
        return evaluation.model_copy(update={**update, "strongest": strongest_of(evaluation.speedup, speedups)})

    @property
    def judged(self) -> list[str]:
        return [name.rsplit("/", 1)[-1] for name, _ in self.rule.jobs]


def row(level: int, number: int, source: str | None, score: float | None, forward: str = "x + 1") -> dict[str, Any]:
    return {
        "level_id": level,
        "task_id": number,
        "ref_code": REFERENCE.format(number=number, forward=forward),
        "custom_code": source,
        "cuda_graph_code": program(1.0, "graph"),
        "score_default": score,
        "score_cudnn": 1.5,
    }


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(one) for one in rows))
    return path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Six tasks in CUDA-L1's form: as published, overstated, wrong, refused, without a program, on level 2."""
    rows = [
        row(1, 1, program(2.0), 2.05),
        row(1, 2, program(1.0), 6.0),
        row(1, 3, "# status WRONG_OUTPUT\n" + program(), 3.0),
        row(1, 4, program(1.5), 1.5, forward="x  # refuse"),
        row(1, 5, None, None),
        row(2, 1, program(4.0), 4.0),
    ]
    return write(tmp_path / "release.jsonl", rows)


def read(path: Path, *, only: str = "", column: str = "custom_code") -> tuple[Program, ...]:
    return read_programs(path, column=column, only=only, device="cpu").programs


def go(
    path: Path,
    out: Path,
    judge: EachDouble | None = None,
    precision: Precision = "training",
    noted: list[str] | None = None,
    *,
    texts: bool = True,
) -> list[SweepLine]:
    file = SweepFile(out, device="cpu", precision=precision, texts=texts)
    told: list[SweepLine] = []
    lines = sweep(
        judge or EachDouble(),
        read(path),
        file,
        device="cpu",
        precision=precision,
        notify=lambda done, total, line: told.append(line),
        noted=lambda text: None if noted is None else noted.append(text),
    )
    assert set(map(id, told)) <= set(map(id, lines))
    return lines


# --- what a file holds ---


def test_a_release_file_gives_programs_with_published_speedups(release: Path) -> None:
    found = read_programs(release, column="custom_code", only="", device="cpu")
    assert [one.task.id for one in found.programs] == [
        f"cuda-l1/level{part}" for part in ("1/1", "1/2", "1/3", "1/4", "2/1")
    ]
    assert found.programs[0].published == {"score_default": 2.05, "score_cudnn": 1.5}
    assert (found.without, found.broken) == (1, ())
    graphs = read(release, column="cuda_graph_code")
    assert (len(graphs), graphs[0].published) == (6, {})
    with pytest.raises(BrokenTaskError, match="takes cuda_graph_code, custom_code"):
        read(release, column="code")


@pytest.mark.parametrize(
    ("only", "names"),
    [("level2", ["level2/1"]), ("level1/2, level2", ["level1/2", "level2/1"]), ("cuda-l1/level1/1", ["level1/1"])],
)
def test_a_selection_takes_levels_and_ids(release: Path, only: str, names: list[str]) -> None:
    assert [one.task.id.removeprefix("cuda-l1/") for one in read(release, only=only)] == names


def test_a_selection_of_nothing_is_an_error(release: Path) -> None:
    with pytest.raises(UnknownTaskError, match="level3"):
        read(release, only="level1,level3")


def test_records_and_lines_of_a_sweep_are_judged_again(tmp_path: Path, release: Path) -> None:
    lines = go(release, tmp_path / "out.jsonl")
    again = read_programs(tmp_path / "out.jsonl", column="custom_code", only="level1", device="cpu")
    first = [one for one in read(release, only="level1") if "refuse" not in one.task.source]
    assert [(one.key, one.level, one.published) for one in again.programs] == [
        (one.key, one.level, one.published) for one in first
    ]
    assert again.without == 1
    records = tmp_path / "records.jsonl"
    twice = [line.evaluation for line in (*lines, *lines) if line.evaluation is not None]
    records.write_text("".join(one.model_dump_json() + "\n" for one in twice))
    assert [one.key for one in read(records)] == [line.key for line in lines if line.evaluation is not None]
    records.write_text(twice[0].model_dump_json() + '\n{"task": 3}\n')
    with pytest.raises(RecordError, match="line 2"):
        read(records)


def test_smaller_batches_are_other_tasks(tmp_path: Path) -> None:
    """The task's id and text say the size; what was published of the larger one is left out."""
    reference = (
        "import torch\nbatch_size = 8\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
        "def get_inputs():\n    return [torch.randn(batch_size, 4)]\ndef get_init_inputs():\n    return []\n"
    )
    fixed = reference.replace("batch_size, 4", "8, 4")
    rows = [
        {"level_id": 1, "task_id": number, "ref_code": text, "custom_code": "class ModelNew: ...", "score_default": 2.0}
        for number, text in ((1, reference), (2, fixed))
    ]
    path = tmp_path / "release.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_programs(path, column="custom_code", only="level1/1", device="cpu", scale=4)
    [one] = found.programs
    assert (one.task.id, one.published) == ("cuda-l1/level1/1@batch_size=2", {})
    assert "batch_size = 2" in one.task.source
    assert "cuda-l1/level1/2: no batch size can shrink" in found.broken[0]


@pytest.mark.shared
def test_the_published_file_is_read(shared_data: Path) -> None:
    found = read_programs(shared_data / "cuda-l1" / "h100.jsonl", column="custom_code", only="", device="cpu")
    assert (len(found.programs), found.without, found.broken) == (227, 23, ())
    assert all(one.published["score_default"] > 1.0 for one in found.programs)


# --- the file of a sweep ---


def test_a_sweep_that_was_cut_off_resumes(tmp_path: Path, release: Path) -> None:
    out = tmp_path / "out" / "lines.jsonl"
    whole = go(release, out)
    text = out.read_bytes()
    assert text.count(b"\n") == len(whole) == 5
    cut = text[: text.rfind(b"\n", 0, -1) + 40]  # inside the last line
    out.write_bytes(cut)
    judge = EachDouble()
    assert [line.key for line in go(release, out, judge)] == [line.key for line in whole]
    assert judge.judged == ["1"]
    assert out.read_bytes().count(b"\n") == 5
    judge = EachDouble()
    go(release, out, judge)
    assert judge.judged == []


def test_a_file_without_texts_serves_as_one_with_them(tmp_path: Path, release: Path) -> None:
    whole, bare = tmp_path / "whole.jsonl", tmp_path / "bare.jsonl"
    lines = go(release, whole)
    go(release, bare, texts=False)
    assert "ModelNew" in whole.read_text()
    assert "class" not in bare.read_text()
    judge = EachDouble(baselines=True)
    assert [one.key for one in go(release, bare, judge, texts=False)] == [one.key for one in lines]
    assert (judge.judged, judge.compared) == ([], ["1", "2", "1"])
    assert "class" not in bare.read_text()
    read_back = go(release, bare, texts=False)
    assert [one.evaluation and one.evaluation.source for one in read_back] == [
        one.evaluation and one.evaluation.source for one in lines
    ]


def test_a_broken_machine_ends_the_sweep_and_keeps_finished_lines(tmp_path: Path, release: Path) -> None:
    rows = [json.loads(line) for line in release.read_text().splitlines()]
    rows[2]["custom_code"] = "# broken machine\n" + program()
    write(release, rows)
    out = tmp_path / "out.jsonl"
    with pytest.raises(MachineError, match=r"2 of 5 programs are kept in .*out\.jsonl"):
        go(release, out)
    assert len(SweepFile(out, device="cpu", precision="training").lines) == 2


def test_a_join_says_how_many_programs_no_part_has(
    tmp_path: Path, release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part, out = tmp_path / "part-0.jsonl", tmp_path / "all.jsonl"
    go(release, part)
    lines = part.read_bytes().splitlines(keepends=True)
    for kept, told in ((lines, ""), (lines[:3], "2 of 5 programs have no verdict in these files")):
        out.unlink(missing_ok=True)
        part.write_bytes(b"".join(kept))
        command = ["cudal1-env", "sweep", str(release), "--device", "cpu", "--precision", "training"]
        monkeypatch.setattr("sys.argv", [*command, "--out", str(out), "--join", str(part), str(part)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert capsys.readouterr().err.partition(";")[0].strip() == told
        assert out.read_bytes() == part.read_bytes()


def test_a_full_disk_ends_the_sweep_and_the_same_command_resumes(small_disk: Path, release: Path) -> None:
    out, filler = small_disk / "out.jsonl", small_disk / "filler"
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 4096))
    with pytest.raises(MachineError, match=r"cannot write to .*out\.jsonl: No space left.*; 2 of 5 programs are kept"):
        go(release, out)
    filler.unlink()
    assert len(go(release, out)) == out.read_bytes().count(b"\n") == 5


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, release: Path) -> None:
    out = tmp_path / "out.jsonl"
    go(release, out)
    with pytest.raises(RecordError, match="give another --out"):
        go(release, out, precision="report")
    before = release.read_bytes() + b"\n"
    release.write_bytes(before)
    with pytest.raises(RecordError, match="line 1 is not one"):
        SweepFile(release, device="cpu", precision="training")
    assert release.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("precious.json", b'{"precious":1}'),
        ("record.json", evaluation().model_dump_json().encode()),
        ("old.jsonl", b'{"protocol":"0","task":"a task of an old sweep'),
        ("corpus.parquet", b"PAR1 a page\nanother page PAR1"),
    ],
)
def test_no_byte_of_a_file_of_something_else_is_lost(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RecordError, match="give another --out"):
        SweepFile(path, device="cpu", precision="training")
    assert path.read_bytes() == content


def test_something_behind_the_lines_of_a_sweep_is_not_taken_for_one_that_was_cut_off(
    tmp_path: Path, release: Path
) -> None:
    out = tmp_path / "out.jsonl"
    go(release, out)
    out.write_bytes(out.read_bytes() + b"notes of mine")
    before = out.read_bytes()
    with pytest.raises(RecordError, match="line 6 is not one"):
        SweepFile(out, device="cpu", precision="training")
    assert out.read_bytes() == before


def test_a_last_line_without_an_end_counts(tmp_path: Path, release: Path) -> None:
    out = tmp_path / "out.jsonl"
    go(release, out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-1])
    with pytest.raises(RecordError, match="give another --out"):
        SweepFile(out, device="cuda", precision="training")
    assert out.read_bytes() == whole[:-1]
    assert len(SweepFile(out, device="cpu", precision="training").lines) == 5
    assert out.read_bytes() == whole


def test_a_line_keeps_what_json_cannot_say(tmp_path: Path) -> None:
    nan = OutputError(output=0, error=float("nan"), tolerance=1e-6, reference_error=0.0)
    one = evaluation(source="print('\u2028')", status=Status.WRONG_OUTPUT, errors=(nan,))
    line = SweepLine(
        task=one.task,
        level=None,
        task_sha256=one.task_sha256,
        source_sha256=one.source_sha256,
        device="cpu",
        precision="training",
        evaluation=one,
    )
    SweepFile(tmp_path / "out.jsonl", device="cpu", precision="training").add(line)
    (again,) = SweepFile(tmp_path / "out.jsonl", device="cpu", precision="training").lines
    assert again.evaluation is not None
    assert again.evaluation.source == one.source
    assert again.evaluation.errors[0].error != again.evaluation.errors[0].error
    with pytest.raises(ValueError, match="either"):
        SweepLine.model_validate({**line.model_dump(), "refused": "random"})


# --- the tables ---


def test_tables_show_measured_next_to_published(tmp_path: Path, release: Path) -> None:
    report = summarise(go(release, tmp_path / "out.jsonl"), without=1)
    rows = {(row.tasks, row.figures): row.summary for row in report.rows}
    assert list(rows) == [
        (name, figures) for name in ("level 1", "level 2", "all") for figures in ("measured", "published")
    ]
    measured, published = rows["all", "measured"], rows["all", "published"]
    assert (measured.tasks, measured.successes, measured.above, measured.max) == (4, 3, 2, 4.0)
    assert measured.mean == pytest.approx((2.0 + 1.0 + 0.0 + 4.0) / 4)
    assert (published.tasks, published.successes) == (4, 4)
    assert published.mean == pytest.approx((2.05 + 6.0 + 3.0 + 4.0) / 4)
    assert report.statuses == {Status.CORRECT: 3, Status.WRONG_OUTPUT: 1}
    # 2.0 is within 10 % of 2.05, and 4.0 is what was published.
    assert [(one.task[-3:], one.status, one.published) for one in report.disagreements] == [
        ("1/3", Status.WRONG_OUTPUT, 3.0),
        ("1/2", Status.CORRECT, 6.0),
    ]
    assert list(report.refused) == ["cuda-l1/level1/4"]
    text = report.text()
    for words in ("1.00 (0.98 to 1.02)", "6.00", "WRONG_OUTPUT", "cuda-l1/level1/4: random", "1 tasks of the file"):
        assert words in text


def test_the_surest_program_of_a_task_counts_and_nothing_is_compared_without_scores() -> None:
    lines = [
        SweepLine(
            task=one.task,
            level=None,
            task_sha256=one.task_sha256,
            source_sha256=one.source_sha256,
            device="cpu",
            precision="training",
            evaluation=one,
        )
        for one in (evaluation(speedup=1.5), evaluation(speedup=2.0, spread=0.5), evaluation(status=Status.CRASH))
    ]
    report = summarise(lines, without=0)
    assert [(row.tasks, row.figures) for row in report.rows] == [("level unknown", "measured"), ("all", "measured")]
    assert report.rows[-1].summary.max == 1.5
    assert (report.programs, report.disagreements) == (3, ())
    nothing = summarise([], without=0)
    assert nothing.rows == ()
    assert "0 programs" in nothing.text()


def test_each_verdict_is_compared_with_its_published_speedup(tmp_path: Path, release: Path) -> None:
    report = summarise(go(release, tmp_path / "out.jsonl"), without=1)
    assert [(one.task, one.status, one.published) for one in report.verdicts] == [
        ("cuda-l1/level1/1", "CORRECT", 2.05),
        ("cuda-l1/level1/2", "CORRECT", 6.0),
        ("cuda-l1/level1/3", "WRONG_OUTPUT", 3.0),
        ("cuda-l1/level2/1", "CORRECT", 4.0),
    ]
    line = next(line for line in report.text().splitlines() if line.startswith("cuda-l1/level1/2"))
    assert line.split() == ["cuda-l1/level1/2", "CORRECT", "1.00", "(0.98", "to", "1.02)", "-", "-", "6.00"]


def test_a_task_that_was_too_large_is_tried_again_and_any_other_refusal_stands(tmp_path: Path, release: Path) -> None:
    out = tmp_path / "out.jsonl"
    lines = go(release, out)
    assert lines[3].refused == "random"
    out.write_bytes(out.read_bytes().partition(b"\n")[2])
    SweepFile(out, device="cpu", precision="training").add(
        lines[0].model_copy(update={"evaluation": None, "refused": f"no room; {TOO_LARGE}: take another"})
    )
    judge = EachDouble()
    again = go(release, out, judge)
    assert [job[1] for job in judge.rule.jobs] == [program(2.0)]
    assert again[0].evaluation is not None


# --- baselines and what ran ---


def test_verdicts_get_the_baselines_that_they_lack(tmp_path: Path, release: Path) -> None:
    rows = [json.loads(line) for line in release.read_text().splitlines()]
    rows[1]["custom_code"] = "# stubborn\n" + program(1.0)
    rows[5]["custom_code"] = "# elsewhere\n" + program(4.0)
    rows[0]["score_torch_compile_default"] = 1.25
    write(release, rows)
    out, noted = tmp_path / "out.jsonl", list[str]()
    plain = summarise(go(release, out), without=1)
    assert {row.baseline for row in plain.rows} == {"eager"}
    judge = EachDouble(baselines=True)
    lines = go(release, out, judge, noted=noted)
    assert (judge.judged, judge.compared) == ([], ["1", "2"])
    assert noted == ["cuda-l1/level2/1: no baselines: expected a record made here"]
    again = EachDouble(baselines=True)
    assert [line.evaluation for line in go(release, out, again)] == [line.evaluation for line in lines]
    assert again.compared == [], "what was compared is in the file"

    report = summarise(lines, without=1)
    rows_of = {(row.tasks, row.baseline, row.figures): row.summary for row in report.rows}
    assert rows_of["all", "eager", "measured"].tasks == 4
    # Task 1 is half as fast as it was against eager, task 3 is wrong; 2 and level 2 have no figure.
    compiled = rows_of["all", "compile", "measured"]
    assert (compiled.tasks, compiled.successes, compiled.max) == (2, 1, 1.0)
    assert rows_of["all", "compile", "published"].max == 1.25
    strongest = rows_of["all", "strongest", "measured"]
    assert (strongest.tasks, strongest.successes, strongest.mean) == (3, 2, pytest.approx(2 / 3))
    assert rows_of["all", "strongest", "published"].max == 6.0, "of the published columns those that were measured"
    assert report.apart == {
        "compile": {"cuda-l1/level1/2": "TIMEOUT: it compiles for ever", "cuda-l1/level2/1": "not measured"},
        "strongest": {"cuda-l1/level2/1": "not measured"},
    }
    text = report.text()
    assert "2 tasks with a correct program are in no row against compile:\ncuda-l1/level1/2: TIMEOUT" in text
    assert "all, strongest" in text


def test_one_program_with_a_long_sum_leaves_the_report_of_all() -> None:
    long = f"# speedup 2.0\nclass ModelNew:\n    def forward(self, x):\n        return {' + '.join(['x'] * 400)}\n"
    lines = [
        SweepLine(
            task="toy/add",
            level=1,
            task_sha256=one.task_sha256,
            source_sha256=one.source_sha256,
            device="cpu",
            precision="training",
            evaluation=one,
        )
        for one in (evaluation(source=long, speedup=2.0), evaluation())
    ]
    assert summarise(lines, without=0).programs == 2


def test_the_report_shows_the_origin_of_kernels() -> None:
    def line(name: str, *kernels: tuple[str, float]) -> SweepLine:
        parts = [Kernel(name="k", origin=origin, share=share, call_us=1.0, launches=1.0) for origin, share in kernels]  # type: ignore[arg-type]
        found = Profile(kind="kernels", call_us=2.0, kernels=tuple(parts), rest_share=0.0)
        one = evaluation(name).model_copy(update={"profile": found if kernels else None})
        return SweepLine(
            task=name,
            level=1,
            task_sha256=one.task_sha256,
            source_sha256=one.source_sha256,
            device="cuda",
            precision="training",
            evaluation=one,
        )

    lines = [line("a", ("own", 1.0)), line("b", ("own", 0.25), ("cublas", 0.5), ("cublas", 0.25)), line("c")]
    report = summarise(lines, without=0)
    assert (report.profiles, report.ran) == (2, {"own": 0.625, "cublas": 0.375})
    assert "mean shares of kernel time in 2 correct programs: 62 % own, 38 % cublas" in report.text()


# --- with the real judge ---


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Four tiny tasks: a correct program, an incorrect one, one that does not build, and a refused task."""
    rows = [
        row(1, 1, PROGRAM.format(forward="torch.add(x, 1)"), 9.0),
        row(1, 2, PROGRAM.format(forward="x + 1.001"), 1.2),
        row(1, 3, "import nothing_of_that_name\n" + PROGRAM.format(forward="x + 1"), 1.2),
        row(2, 1, PROGRAM.format(forward="x"), 1.2, forward="x + torch.rand(64, 128)"),
    ]
    return write(tmp_path / "tiny.jsonl", rows)


@pytest.mark.slow
def test_the_judge_reports_each_verdict_and_its_seed(tiny: Path) -> None:
    found: dict[int, Evaluation | TaskError] = {}
    programs = read(tiny)
    with Judge(own_secrets=True) as judge:
        judge.evaluate_each([(one.task, one.source) for one in (*programs, programs[1])], found.__setitem__)
        assert judge.retire() != {}
    statuses = [one.status if isinstance(one, Evaluation) else None for _, one in sorted(found.items())]
    assert statuses == [Status.CORRECT, Status.WRONG_OUTPUT, Status.BUILD_ERROR, None, Status.WRONG_OUTPUT]
    assert isinstance(found[3], TaskError)
    for one in found.values():
        if isinstance(one, Evaluation):
            assert one.seed is not None
            assert hashlib.sha256(bytes.fromhex(one.seed)).hexdigest() == one.seed_commitment
    seeds = {one.seed for one in found.values() if isinstance(one, Evaluation)}
    assert len(seeds) == 4, "each program has a pool of its own"


@pytest.mark.slow
def test_the_command_sweeps_and_resumes(tiny: Path) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-c", "from cudal1_env.cli import main; main()", "sweep", str(tiny), *arguments],
            cwd=tiny.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    options = ("--device", "cpu", "--precision", "training", "--only")
    code, out, err = run(*options, "level1/2,level1/3")
    assert (code, err.count("\n")) == (0, 3)
    assert err.startswith("programs to judge: 2")
    assert "[2/2] BUILD_ERROR [cuda-l1/level1/3]" in err
    assert "2 verdicts disagree" in out
    code, out, err = run(*options, "level1/2,level2", "--json")
    assert code == 0
    assert "known verdicts: 2; they are not judged again" in err
    assert "[2/2] cuda-l1/level2/1 refused: " in err
    report = json.loads(out)
    assert (report["programs"], list(report["refused"])) == (1, ["cuda-l1/level2/1"])
    code, out, err = run(*options, "level3", "--json")
    assert (code, json.loads(out)["error"]) == (2, "UnknownTaskError")
