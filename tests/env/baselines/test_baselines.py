"""Baselines: their programs, what is kept of them, speedups against them, and the whole path on a CPU."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cudal1_data import Task, load_task
from cudal1_data.kernelgen.make import variants
from cudal1_data.techniques import classify
from cudal1_env.baselines import BASELINES, BaselineEntry, BaselineKey, BaselineStore, measured, program, resolve
from cudal1_env.commands.output import details
from cudal1_env.errors import RecordError, SettingsError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Evaluation, Precision, Speedup, Status
from cudal1_env.stats import against
from hypothesis import given
from hypothesis import strategies as st

REFERENCE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super(Model, self).__init__()
        self.norm = nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.norm(x).relu() * self.scale


def get_inputs():
    return [torch.randn(128, 512)]


def get_init_inputs():
    return [512]
"""
RIGHT = REFERENCE.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
UNWILLING = REFERENCE.replace(
    "    def forward", "    def __init_subclass__(cls):\n        raise TypeError('no child')\n\n    def forward"
)
"""A reference on which every baseline fails at once."""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++ is not on PATH")


def task(source: str) -> Task:
    return Task(id="file/norm", source=source, name="norm", level=1, origin="file")


# --- programs ---


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # what torch.compile imports
@pytest.mark.parametrize("name", measured(BASELINES))
def test_a_baseline_keeps_the_names_of_the_state(name: str) -> None:
    source = program(name, "from __future__ import annotations\n" + REFERENCE)  # type: ignore[arg-type]
    space: dict[str, type[torch.nn.Module]] = {"__name__": name}  # type: ignore[dict-item]
    before = torch.backends.cudnn.benchmark
    try:
        exec(compile(source, name, "exec"), space)
    finally:
        torch.backends.cudnn.benchmark = before
    one, reference = space["ModelNew"](4), space["Model"](4)
    assert list(one.state_dict()) == list(reference.state_dict())


def test_no_baseline_touches_tf32() -> None:
    assert all("tf32" not in program(name, "").lower() for name in measured(BASELINES))


def test_all_leaves_out_what_takes_minutes() -> None:
    everywhere = ("eager", "compile", "compile-reduce-overhead", "cuda-graph", "cudnn-flags")
    assert resolve(["all"], "cuda") == everywhere
    assert resolve(["compile-max-autotune", "all"], "cuda") == BASELINES
    assert resolve(["cuda-graph"], "cuda") == ("eager", "cuda-graph")
    assert resolve([], "cuda") == ()


def test_a_cpu_has_what_needs_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resolve(["all"], "cpu") == ("eager", "compile")
    with pytest.raises(SettingsError, match="cuda-graph: it needs an NVIDIA GPU"):
        resolve(["cuda-graph"], "cpu")
    (tmp_path / "g++").unlink()
    assert resolve(["all"], "cpu") == ("eager",)
    with pytest.raises(SettingsError, match=r"install g\+\+"):
        resolve(["compile"], "cpu")
    with pytest.raises(SettingsError, match="unknown baseline .fastest."):
        resolve(["fastest"], "cpu")


@pytest.mark.slow
def test_the_command_refuses_what_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(RIGHT)
    words = ["evaluate", "starter/softplus_mish", "new.py", "--device", "cpu", "--baselines", "compile", "cuda-graph"]
    done = subprocess.run(
        [sys.executable, "-c", "from cudal1_env.cli import main; main()", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "cuda-graph: it needs an NVIDIA GPU" in done.stderr) == (2, True), done.stderr


# --- one speedup over another ---

speedups = st.tuples(st.floats(0.01, 100.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0)).map(
    lambda parts: Speedup(low=parts[0] / parts[1], point=parts[0], high=parts[0] * parts[2])
)


@given(speedups, speedups)
def test_the_ratio_is_no_narrower_than_its_parts(candidate: Speedup, baseline: Speedup) -> None:
    found = against(candidate, baseline)
    assert found.point == pytest.approx(candidate.point / baseline.point)
    slack = 1 + 1e-9
    assert found.low <= min(candidate.low / baseline.point, candidate.point / baseline.high) * slack
    assert found.high * slack >= max(candidate.high / baseline.point, candidate.point / baseline.low)
    assert found.low * slack >= candidate.low / baseline.high, "no wider than if both erred at once"
    turned = against(baseline, candidate)
    assert turned.low == pytest.approx(1 / found.high)
    assert turned.high == pytest.approx(1 / found.low)


def test_the_ratio_covers_the_truth_95_times_in_100() -> None:
    random = np.random.default_rng(7)
    truth, hits, count = math.log(1.5 / 1.2), 0, 4000
    for _ in range(count):
        parts: list[Speedup] = []
        for mean, sigma in ((math.log(1.5), 0.02), (math.log(1.2), 0.05)):
            centre = random.normal(mean, sigma)
            ends = (centre - 1.96 * sigma, centre, centre + 1.96 * sigma)
            parts.append(Speedup(**dict(zip(("low", "point", "high"), map(math.exp, ends), strict=True))))
        found = against(*parts)
        hits += math.log(found.low) <= truth <= math.log(found.high)
    assert 0.94 < hits / count < 0.96


# --- what is kept ---

KEY = BaselineKey(
    baseline="compile",
    task_sha256="0" * 64,
    source_sha256="1" * 64,
    device="cuda",
    machine="a GPU",
    driver="1.2",
    torch="2.13.0",
    triton="3.7.1",
    arithmetic="strict",
)


def entry(
    status: Status = Status.CORRECT,
    *,
    spread: float = 0.01,
    limit_s: float = 300.0,
    precision: Precision = "training",
) -> BaselineEntry:
    right = status is Status.CORRECT
    return BaselineEntry(
        key=KEY,
        created_at="2026-11-21T12:00:00+00:00",
        precision=precision,
        status=status,
        message="",
        speedup=Speedup(low=1.5 * (1 - spread), point=1.5, high=1.5 * (1 + spread)) if right else None,
        warmup_timeout_s=limit_s,
    )


def test_an_entry_is_found_by_later_judges(tmp_path: Path) -> None:
    BaselineStore(tmp_path / "kept").keep(entry())
    assert BaselineStore(tmp_path / "kept").find(KEY, "training", 300.0) == entry()
    for field, value in {
        "torch": "2.14.0",
        "driver": None,
        "arithmetic": "tf32",
        "protocol": "0",
        "machine": "b",
    }.items():
        assert BaselineStore(tmp_path / "kept").find(KEY.model_copy(update={field: value}), "training", 300.0) is None


def test_unreadable_measurements_are_made_again(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    store.keep(entry())
    (file,) = tmp_path.iterdir()
    for text in (b"", file.read_bytes()[:-5], b'{"key": 3}', b"\xff\xfe", file.read_bytes().replace(b"1.2", b"1.3")):
        file.write_bytes(text)
        assert BaselineStore(tmp_path).find(KEY, "training", 300.0) is None
    store.keep(entry(Status.CRASH))
    assert BaselineStore(tmp_path).find(KEY, "training", 300.0) == entry(Status.CRASH)


@pytest.mark.parametrize(
    "one", [entry(spread=0.2), *map(entry, (Status.UNSTABLE, Status.TAMPERING, Status.OUT_OF_MEMORY))]
)
def test_measurements_of_a_busy_machine_are_not_kept(tmp_path: Path, one: BaselineEntry) -> None:
    store = BaselineStore(tmp_path / "kept")
    store.keep(one)
    assert store.find(KEY, "training", 300.0) == one
    assert not (tmp_path / "kept").exists()


def test_a_limit_that_grew_is_tried_again(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    store.keep(entry(Status.TIMEOUT, limit_s=60.0))
    assert store.find(KEY, "training", 60.0) is not None
    assert store.find(KEY, "training", 61.0) is None


def test_a_coarse_interval_does_not_serve_a_report(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    store.keep(entry())
    assert store.find(KEY, "report", 300.0) is None
    store.keep(entry(precision="report"))
    assert store.find(KEY, "report", 300.0) == store.find(KEY, "training", 300.0) == entry(precision="report")
    store.keep(entry(Status.CRASH))
    assert store.find(KEY, "report", 300.0) == entry(Status.CRASH), "no precision makes it run"


def test_a_folder_that_cannot_be_made_costs_only_the_keeping(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = BaselineStore(tmp_path / "file" / "kept")
    store.keep(entry())
    assert store.find(KEY, "training", 300.0) == entry()


# --- the whole path, on a CPU ---


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


SETTINGS = JudgeSettings(device="cpu", budget_report_s=1.0, profile="never", baselines=("compile",))


def judged(judge: Judge, reference: str, source: str, precision: Precision = "training") -> Evaluation:
    one = judge.evaluate(task(reference), source, precision=precision)
    assert one.status is Status.CORRECT, one.message + one.stderr
    return one


@pytest.mark.slow
@needs_compiler
def test_a_baseline_that_fails_is_reported_with_its_reason(cache: Path) -> None:
    with Judge(SETTINGS) as judge:
        one = judged(judge, UNWILLING, RIGHT)
        again = judged(judge, UNWILLING, RIGHT)
        wrong = judge.evaluate(task(UNWILLING), RIGHT.replace("relu()", "relu() * 1.1"))
    assert one.speedups == {}
    assert one.baselines_failed["compile"].status is Status.BUILD_ERROR
    assert "no child" in one.baselines_failed["compile"].message
    assert one.strongest is not None
    assert (one.strongest.name, one.strongest.speedup) == ("eager", one.speedup)
    assert one.seconds.baselines_s > 0.0
    assert (again.baselines_failed, again.seconds.baselines_s) == (one.baselines_failed, 0.0)
    assert (wrong.strongest, wrong.baselines_failed) == (None, {})
    assert len(list((cache / "cudal1" / "baselines").glob("compile-*.json"))) == 1
    assert any("compile failed (BUILD_ERROR)" in line for line in details(one))


@pytest.mark.slow
@needs_compiler
def test_a_record_gets_its_missing_baselines(cache: Path) -> None:
    with Judge(SETTINGS.model_copy(update={"baselines": ()})) as judge:
        one = judged(judge, UNWILLING, RIGHT)
    assert (one.strongest, one.baselines_failed) == (None, {})
    with Judge(SETTINGS, own_secrets=True) as judge:
        more = judge.compare(task(UNWILLING), one)
        assert list(more.baselines_failed) == ["compile"]
        assert judge.compare(task(UNWILLING), more) is more
        assert more.machine is not None
        elsewhere = one.model_copy(update={"machine": more.machine.model_copy(update={"name": "another"})})
        with pytest.raises(RecordError, match="made on cpu, another"):
            judge.compare(task(UNWILLING), elsewhere)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_program_is_a_candidate_like_any_other() -> None:
    with Judge(SETTINGS.model_copy(update={"baselines": ()})) as judge:
        one = judged(judge, REFERENCE, program("compile", REFERENCE))
    assert one.weights == "loaded"
    assert one.speedups == {}


@needs_compiler
@pytest.mark.slow
def test_a_compiled_baseline_is_measured_once(cache: Path) -> None:
    with Judge(SETTINGS) as judge:
        one = judged(judge, REFERENCE, RIGHT)
        assert one.baselines_failed == {}
        (kept,) = judge._extras.store._known.values()
        assert kept.speedup is not None
        assert one.speedup is not None
        baseline = one.speedups["compile"]
        assert baseline == against(one.speedup, kept.speedup)
        assert one.strongest is not None
        assert one.strongest.speedup.point == min(one.speedup.point, baseline.point)
        again = judged(judge, REFERENCE, RIGHT)
        assert list(again.speedups) == ["compile"]
        assert again.seconds.baselines_s == 0.0


def test_the_captured_reference_is_the_baseline_s() -> None:
    task = load_task("starter/layer_norm_manual", device="cuda")
    made = next(one for one in variants(task, ["pytorch"]) if one.template == "captured")
    ours, baseline = (text.partition("class ModelNew")[2] for text in (made.source, program("cuda-graph", task.source)))
    assert ours == baseline != ""
    tags = classify(made.source, task.source)
    assert tags is not None
    assert tags.techniques == ("async",)
