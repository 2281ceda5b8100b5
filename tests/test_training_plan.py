"""The plan of GPU trainings: its settings parse, its figures follow from records, its tasks are the recorded ones."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import detectable
import lanes
import large
import pytest
from cudal1_agent.config import load_settings
from cudal1_agent.preflight import check_settings
from cudal1_agent.settings import Settings
from cudal1_data import load_suite
from cudal1_data.generator import request
from cudal1_data.generator.make import make_task

PLANNED = "docs/results/training.md"


def settings_of(repository: Path) -> dict[str, Settings]:
    """Return the settings of each planned training and evaluation with config files, by the typed files."""
    found: dict[str, Settings] = {}
    for _, command in lanes.parts((repository / "benchmarks/training.plan").read_text(), Path("OUT")):
        text = " ".join(command)
        names = re.search(r"names=\(([\w ]+)\)", text)
        part = [text.replace("$c", name) for name in names[1].split()] if names else [text]
        for one in part:
            for files in re.findall(r"--config ((?:configs/[\w/]+\.toml ?)+)", one):
                paths = [repository / name for name in files.split()]
                model = "OUT/smollm2" if "smollm2" in one else None
                found[files.strip()] = load_settings(paths, {"model": model, "device": "cpu"})
    return found


def test_the_settings_of_each_planned_training_are_accepted(repository: Path, tmp_path: Path) -> None:
    found = settings_of(repository)
    assert len(found) == 9
    for settings in found.values():
        for table in (settings.sft.trl, settings.self_train.trl):
            table.pop("use_liger_kernel", None)  # an extra for GPUs
        check_settings(settings, tmp_path)
    pairs = {
        name.rpartition("/")[2]: settings.sft.trl["max_steps"] * settings.sft.trl["per_device_train_batch_size"]
        for name, settings in found.items()
    }
    assert (pairs["quarter.toml"], pairs["fast.toml"], pairs["four.toml"]) == (4000, 16000, 64000)
    scratch = next(settings for name, settings in found.items() if name.endswith("/scratch.toml"))
    assert scratch.model is None
    assert scratch.embedded.context >= scratch.prompt.max_tokens + scratch.evaluation.max_new_tokens


def test_what_is_held_out_of_the_suite_is_held_out_of_the_stream(repository: Path) -> None:
    for name in ("operators", "family"):
        settings = load_settings([repository / "configs/gpu.toml", repository / f"configs/gpu/{name}.toml"])
        assert isinstance(settings.sft.stream, str)
        assert settings.suite.partition("seed=0")[2] == settings.sft.stream.partition("seed=1")[2] != ""


def test_the_detectable_effect_is_the_one_written_down(repository: Path) -> None:
    paths = sorted((repository / "docs/results").glob("quickstart_seed*.jsonl.gz"))
    changes = [detectable.change(path) for path in paths]
    text = (repository / PLANNED).read_text()
    assert f"changes of {changes[0]:.3f}, {changes[1]:.3f} and +{changes[2]:.3f}" in text
    spread = detectable.statistics.stdev(changes)
    assert f"s = {spread:.3f}" in text
    assert f"d = {detectable.detectable(spread, seeds=3, contrasts=2):.3f}" in text
    assert detectable.detectable(1.0, seeds=12, contrasts=1) < 0.5 * detectable.detectable(1.0, seeds=3, contrasts=1)


@pytest.mark.slow
def test_the_test_tasks_are_those_written_down(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "make_task", functools.cache(make_task))  # the suites divide the same tasks
    rows = re.findall(
        r"^\| `([^`]+)` \| (\d+) \| `([0-9a-f]{16})` \|$", (repository / PLANNED).read_text(), re.MULTILINE
    )
    assert len(rows) == 4
    for suite, count, expected in rows:
        test = load_suite(suite, device="cuda").test
        found = hashlib.sha256("".join(f"{task.id}\n{task.source}\n" for task in test).encode()).hexdigest()[:16]
        assert (suite, len(test), found) == (suite, int(count), expected)


def test_an_estimate_that_is_far_off_is_told() -> None:
    assert large.close({"ratio": None})
    assert large.close({"ratio": 1.14})
    assert not large.close({"ratio": 0.8})


@pytest.mark.slow
@pytest.mark.parametrize("stage", large.STAGES)
def test_a_large_model_is_made_and_trained_for_one_step_of_a_stage(tmp_path: Path, stage: str) -> None:
    large.make(tmp_path / "model", large.SHAPES["tiny"])
    line = large.measured(stage, tmp_path / "model", tmp_path / "run", "cpu")
    assert (line["stage"], line["machine"], line["ratio"]) == (stage, "cpu", None)
    assert line["estimate_bytes"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "the run is removed"
