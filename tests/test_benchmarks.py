"""Benchmarks resume interrupted runs, and summarise incomplete files."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge_cuda
import kernels
import lanes
import padding
import parts
import pytest
import redteam
import training_record
from cudal1_agent import cli as agent_cli
from cudal1_data import cli as data_cli
from cudal1_env import cli as env_cli
from cudal1_env.archive import Archive
from cudal1_env.errors import MachineError
from cudal1_env.judge import Judge
from cudal1_env.records import Status
from cudal1_env.testing.programs import programs
from doubles.evaluator import evaluation

RECORDED = "judge_cuda_training_part.jsonl"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def recorded(result_file: Callable[[str], Path]) -> list[dict[str, Any]]:
    return [line for line in lines_of(result_file(RECORDED)) if line["kind"] != "summary"]


# --- files ---


def test_resuming_keeps_complete_lines_and_drops_a_cut_one(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    assert parts.results(out).lines == []
    whole = '{"kind": "machine"}\n{"kind": "judge"}\n'
    for end in ("", '{"kind": "judge", "ta', '{"kind": "summary"}\n', '{"kind": "summary"}'):
        out.write_text(whole + end)
        assert parts.results(out).lines == [{"kind": "machine"}, {"kind": "judge"}]
        assert out.read_text() == whole


def test_a_join_keeps_each_machine_once(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path, name in zip(paths, "xxy", strict=True):
        judge = f'{{"kind": "judge", "of": "{path.name}"}}\n'
        path.write_text(f'{{"kind": "machine", "name": "{name}"}}\n{judge}{{"kind": "summary"}}\n')
    found = parts.results(tmp_path / "out", join=paths).lines
    assert [line.get("name") for line in found] == ["x", None, None, "y", None]
    assert parts.results(tmp_path / "out", join=paths).lines == found, "expected nothing twice"


def test_the_machine_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    looked: list[int] = []
    examine = parts.examine

    def counted() -> Any:
        looked.append(1)
        return examine()

    monkeypatch.setattr(parts, "examine", counted)
    first = parts.machine_line()
    assert (parts.machine_line(), len(looked)) == (first, 1)
    assert not first["calibrated"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    parts.machine_line()
    assert len(looked) == 2


# --- the judge on a GPU ---


def options(out: Path, **named: Any) -> argparse.Namespace:
    given = {"out": out, "only": ["relu_256", "sum_64"], "part": "0/1", "repeats": 2, "precision": "training"}
    return argparse.Namespace(**{**given, "no_ratios": False, "no_others": False, **named})


def test_a_resumed_run_measures_only_missing_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "examine", lambda: pytest.fail("looked at"))
    monkeypatch.setattr(judge_cuda, "machine_line", lambda: {"kind": "machine"})

    def judged(jobs: Any, precision: str) -> Any:
        return ({"kind": "judge", "task": job.id, "truth": truth} for job, _, truth in jobs)

    def others(name: str, expression: str, inputs: str) -> Any:
        yield {"kind": "refused", "task": f"file/{name}", "method": "others"}

    monkeypatch.setattr(judge_cuda, "judged", judged)
    monkeypatch.setattr(judge_cuda, "others", others)
    asked = options(tmp_path)
    whole = list(judge_cuda.measured(asked, []))
    assert [line["task"] for line in whole[1:5]] == ["file/relu_256", "file/sum_64"] * 2
    assert len(whole) == 1 + 2 * (2 + 5 + 1)
    read = [json.loads(json.dumps(line)) for line in whole]
    for cut in range(len(whole) + 1):
        more = list(judge_cuda.measured(asked, read[:cut]))
        assert sorted(map(str, [*read[:cut], *more])) == sorted(map(str, whole))


def test_items_of_known_files_are_not_measured_again(
    result_file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_cuda, "machine_line", lambda: {"kind": "machine"})
    monkeypatch.setattr(judge_cuda, "judged", lambda jobs, precision: asked.extend(jobs) or ())
    command = [
        "judge_cuda.py",
        str(tmp_path / "o.jsonl"),
        "--repeats",
        "3",
        "--no-ratios",
        "--no-others",
        "--only",
        "relu_256",
    ]
    for known, count in ([], 3), (["--known", str(result_file(RECORDED))], 1):
        asked: list[Any] = []
        monkeypatch.setattr(sys, "argv", [*command, *known])
        judge_cuda.main()
        assert len(asked) == count


def test_a_summary_counts_each_kind_of_outcome(recorded: list[dict[str, Any]]) -> None:
    unstable = {**recorded[1], "status": "UNSTABLE", "reference": None, "candidate": None}
    failed = {"kind": "refused", "task": "file/relu_256", "method": "others", "message": "no triton"}
    found = judge_cuda.summarise([*recorded, unstable, failed])
    assert found["statuses"] == {"CORRECT": 82, "OUT_OF_MEMORY": 3, "UNSTABLE": 1}
    assert ("file/relu_256", "no triton") in found["refused"]
    assert set(found["itself"]) == {"judge", "events", "do_bench"}
    assert len({tuple(figures) for figures in found["itself"].values()}) == 1, "expected the same figures for each"
    slower, wasteful = found["slower_candidates"]["nominal"], found["wasteful_references"]["nominal"]
    assert slower["count"] + wasteful["count"] + found["itself"]["judge"]["ratios"] == 82
    assert found["seconds_median_up_to_5_ms"]["warmup_s"] > 0
    assert judge_cuda.summarise([])["itself"] == {}


def test_each_way_of_timing_is_held_to_the_same() -> None:
    latency = {"median_ms": 0.05}
    judge = {"kind": "judge", "task": "t", "status": "CORRECT", "truth": 1.0, "reference": latency, "seconds": {}}
    lines = [{**judge, "speedup": {"low": 0.9, "point": point, "high": 1.1}} for point in (1.02, 1.04)]
    lines += [{"kind": "other", "task": "t", "method": "events", "ms": [1.0, 1.0, 1.1, 1.0]}]
    lines += [{"kind": "other", "task": "u", "method": "events", "ms": [1.0, 1.0]}]
    lines += [{"kind": "other", "task": "u", "method": "loop", "ms": dict.fromkeys(judge_cuda_models(), 2.0)}]
    found = judge_cuda.itself_figures(lines, lines[:2])
    assert found["judge"]["within_3_percent_below_100_us"] == 0.5
    assert found["judge"]["median_bias"] == pytest.approx(0.03)
    assert found["events"]["within_3_percent_below_100_us"] == 0.5
    assert (found["events"]["within_1_percent_above_100_us"], found["events"]["ratios"]) == (1.0, 3)


def judge_cuda_models() -> tuple[str, ...]:
    return ("Once", "OnceAndHalf", "Twice", "FiveTimes")


def test_a_broken_machine_costs_one_job_and_then_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, settings: object) -> None: ...

        def __enter__(self) -> Broken:
            return self

        def __exit__(self, *_: object) -> None: ...

        def evaluate(self, *_: object, **__: object) -> None:
            raise MachineError("the GPU fell off")

    monkeypatch.setattr(judge_cuda, "Judge", Broken)
    monkeypatch.setattr(judge_cuda, "JudgeSettings", lambda **_: None)
    lines = judge_cuda.judged(list(judge_cuda.jobs_of(judge_cuda.CASES[:3], 1, ratios=False)), "report")
    assert next(lines)["kind"] == "refused"
    with pytest.raises(MachineError, match="fell off"):
        next(lines)


@pytest.mark.slow
def test_another_way_that_fails_is_a_line() -> None:
    (line,) = judge_cuda.others("nothing", "torch.relu(x)", "no_such_function()")
    assert (line["kind"], line["task"], line["method"]) == ("refused", "file/nothing", "others")
    assert line["message"]


def test_tasks_fit_a_gpu_of_80_gb_and_have_names_of_their_own() -> None:
    assert len({name for name, _, _ in judge_cuda.CASES}) == len(judge_cuda.CASES) == 30
    sizes = [eval(inputs.replace("torch.randn", "")) for _, _, inputs in judge_cuda.CASES]
    assert max(4 * rows * columns for rows, columns in sizes) <= 1 << 30


# --- the red team ---


def test_every_second_attack_comes_with_its_look_alike() -> None:
    all_ = [program for program in programs([]) if program.runs_on("cuda")]
    half = redteam.every(all_, 2)
    assert abs(2 * len(half) - len(all_)) <= 2
    names = {program.name for program in half}
    attacks = {name for name in names if not name.endswith(".honest")}
    assert names == attacks | {f"{name}.honest" for name in attacks}
    assert redteam.every(all_, 1) == all_


@pytest.mark.slow
def test_each_outcome_is_measured_once_and_bad_ones_complete_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redteam, "machine_line", lambda: {"kind": "machine"})
    out = tmp_path / "o.jsonl"
    command = ["redteam.py", str(out), "--repeats", "1", "--only", "h14_nan", "--part"]
    monkeypatch.setattr(sys, "argv", [*command, "0/2"])
    assert redteam.main() == 0
    first = lines_of(out)
    assert [line["kind"] for line in first] == ["machine", "outcome", "outcome", "summary"]
    first[1] |= {"reward": 2.0, "rewarded": True}
    out.write_text("".join(json.dumps(line) + "\n" for line in first[:2]))
    monkeypatch.setattr(redteam, "Judge", lambda settings: asked.append(1) or Judge(settings))
    asked: list[int] = []
    assert redteam.main() == 0, "expected a part to be done, what it found stays found"
    again = lines_of(out)
    assert again[1] == first[1]
    assert [line["kind"] for line in again] == ["machine", "outcome", "outcome", "summary"]
    assert again[3]["attacks_rewarded"] == {first[1]["program"]: 1}
    assert redteam.main() == 0
    assert (lines_of(out), len(asked)) == (again, 1)
    monkeypatch.setattr(sys, "argv", [*command, "0/1"])
    assert redteam.main() == 1
    monkeypatch.setattr(sys, "argv", ["redteam.py", str(tmp_path / "rest"), *command[2:], "0/2", "--known", str(out)])
    assert redteam.main() == 0
    assert [line["kind"] for line in lines_of(tmp_path / "rest")] == ["summary"]


PLANS = (
    "cuda.plan",
    "open.plan",
    "training.plan",
    "lease/judge.plan",
    "lease/learning.plan",
    "lease/arms.plan",
    "lease/models.plan",
)


@pytest.mark.parametrize("plan", PLANS)
def test_each_part_of_a_plan_has_a_unique_name_and_an_existing_program(repository: Path, plan: str) -> None:
    jobs = list(lanes.parts((repository / "benchmarks" / plan).read_text(), Path("OUT")))
    assert len({name for name, _ in jobs}) == len(jobs)
    for _, command in jobs:
        text = " ".join(command)
        for path in re.findall(r"(?:benchmarks|tests|packages|configs)/[\w/.-]+\.(?:py|json|toml)", text):
            assert (repository / path).is_file(), path
        if command[0] == "bash":
            assert subprocess.run(["bash", "-n", *command[1:]], check=False).returncode == 0, text
        else:
            assert "$" not in text, f"no shell reads {text}"


def test_the_plans_name_options_that_exist(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [repository / "benchmarks" / name for name in PLANS]
    lines = [line for plan in plans for line in plan.read_text().splitlines() if line[:1] not in ("#", "")]
    asked: dict[str, set[str]] = {}
    for line in lines:
        for head, rest in re.findall(r"(cudal1-\w+ (?:corpus )?\w+|python benchmarks/\w+\.py)([^&;]*)", line):
            asked.setdefault(head, set()).update(re.findall(r"--[a-z][\w-]*", rest))
    assert len(asked) >= 8
    asked["python benchmarks/lanes.py"] = {"--limit-s", "--gpus"}
    commands = {"cudal1-data": data_cli.main, "cudal1-env": env_cli.main, "cudal1-agent": agent_cli.main}
    for head, options in asked.items():
        program, *rest = head.split()
        monkeypatch.setattr(sys, "argv", [program, *rest, "--help"])
        with pytest.raises(SystemExit) as ended:
            if program == "python":
                monkeypatch.setattr(sys, "argv", [*rest, "--help"])
                runpy.run_path(str(repository / rest[0]), run_name="__main__")
            else:
                commands[program]()
        assert not ended.value.code, head
        missing = options - set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))
        assert not missing, f"{head} has no {missing}"


# --- kernels ---


@pytest.mark.slow
def test_kernel_times_go_on_where_they_were_cut_off(tmp_path: Path) -> None:
    out = tmp_path / "kernels.jsonl"
    command = [sys.executable, str(Path(kernels.__file__)), str(out), "--device", "cpu", "--suite", "starter"]
    command += ["--per-family", "1", "--programs", "2", "--budget-s", "0"]
    for count in (1, 2):
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found = [line for line in lines_of(out) if "key" in line]
        assert len({line["key"] for line in found}) == len(found) == count
        out.write_text(out.read_text() + '{"kind": "pro')
    assert [line["kind"] for line in found] == ["reference", "program"]
    assert found[1]["error"] < kernels.TOLERANCE
    (family,) = told["families"].values()
    assert family["tasks"] == 1


def test_the_best_correct_program_of_a_task_counts() -> None:
    reference = {"kind": "reference", "task": "t", "family": "f", "error": 0.0}
    reference |= {"eager_ms": 4.0, "compile_ms": 2.0, "ideal_ms": 0.5}
    programs = [
        {"error": 0.0, "ms": 1.0, "backend": "triton"},
        {"error": 0.5, "ms": 0.1, "backend": "other"},
        {"failed": "RuntimeError", "backend": "other"},
        {"error": 0, "ms": 3.0, "backend": "cuda-nvrtc"},
    ]
    made = [{"kind": "program", "task": "t", "family": "f", **one} for one in programs]
    told = kernels.summary([reference, *made])
    assert told["families"] == {"f": {"tasks": 1, "over_eager": 4.0, "over_compile": 2.0, "of_roofline": 0.5}}
    assert (told["programs"], told["broken"], told["in_two_backends"]) == (4, 2, 1)
    assert (told["eager_beaten_by_1.2"], told["compile_beaten"]) == (1, 1)
    less = kernels.summary([reference | {"error": 0.6, "compile_ms": None}, *made])
    assert (less["broken"], less["compile_beaten"]) == (1, 0), "no program is broken that errs less than the reference"
    assert less["families"] == {"f": {"tasks": 1, "over_eager": 40.0, "over_compile": None, "of_roofline": 5.0}}


def test_the_recorded_padding_of_stage_1_is_under_a_tenth_and_counted_by_batch(repository: Path) -> None:
    assert padding.padding([4, 2, 3, 3], 2) == pytest.approx(1 / 7)
    line = json.loads((repository / "docs" / "results" / "padding_cpu.json").read_text())
    assert line["examples"] == 1024
    assert line["padding_share"] < 0.1 < line["padding_share_unsorted"]


# --- records of a training ---


def test_a_training_record_has_the_steps_tables_and_answers_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (out / "base").mkdir(parents=True)
    steps = [{"event": "step", "stage": "sft", "step": step, "loss": 1 / 3, "entropy": 1.0} for step in (100, 150)]
    (out / "base" / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (out / "held").mkdir()
    with Archive(out / "held" / "archive.sqlite") as archive:
        late = [evaluation(source=str(number), status=Status.TIMEOUT) for number in range(11)]
        archive.add_all([evaluation(source="first"), *late])
    (out / "held.json").write_text('{"table": {"correct": 1}}')
    monkeypatch.setattr(sys, "argv", ["training_record.py", str(out), str(tmp_path / "r.jsonl.gz")])
    training_record.main()
    assert capsys.readouterr().out == "held: 1 of 12 correct\n"
    lines = [json.loads(line) for line in gzip.decompress((tmp_path / "r.jsonl.gz").read_bytes()).splitlines()]
    assert lines[0] == {"event": "step", "run": "base", "stage": "sft", "step": 100, "loss": 0.3333}
    assert lines[1] == {"event": "table", "stage": "held", "table": {"correct": 1}}
    assert [line["source"] for line in lines[2:] if "source" in line] == ["first", "9"]
    assert [line["status"] for line in lines[2:4]] == ["CORRECT", "TIMEOUT"]
