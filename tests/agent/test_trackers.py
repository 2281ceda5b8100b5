"""Metrics go to the run directory alone unless trackers are named, and no tracker stops a run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from cudal1_agent.config import with_flags
from cudal1_agent.errors import ConfigError
from cudal1_agent.preflight import check_settings
from cudal1_agent.run.folder import METRICS
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.settings import Settings
from cudal1_agent.stages import trackers
from cudal1_agent.stages.sft import run_sft
from cudal1_agent.stages.trackers import TRACKERS, check_trackers
from doubles.training import SMALL_MODEL, session
from transformers import TrainerCallback
from transformers.integrations import integration_utils

TRL = {"max_steps": 2, "per_device_train_batch_size": 1, "logging_steps": 1, "save_steps": 2, "max_length": 512}
SETTINGS = with_flags(Settings(), {"device": "cpu", "embedded": SMALL_MODEL.model_dump(), "sft": {"trl": TRL}})


def trained(folder: Path, report_to: tuple[str, ...] = ()) -> tuple[Path, list[str]]:
    """Directory of a run whose stage 1 took two steps, and what was said."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    said: list[str] = []
    with session(folder / "run", with_flags(SETTINGS, {"report_to": report_to})) as run:
        run.progress.line = said.append  # type: ignore[method-assign]
        run_sft(run, None, model=run.folder.path / "model", folder=run.folder.path / "stages" / "sft")
    torch.set_num_threads(threads)
    steps = [record for record in read_metrics(folder / "run" / METRICS) if record["event"] == "step"]
    assert [record["step"] for record in steps] == [1, 2]
    return folder / "run", said


def test_by_default_metrics_go_nowhere_but_to_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(names: object) -> list[type]:
        assert not names
        return []

    monkeypatch.setattr(integration_utils, "get_reporting_integration_callbacks", asked)
    run, _ = trained(tmp_path)
    assert not (run / TRACKERS).exists()


def test_tensorboard_writes_event_files_that_outlive_the_stage(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: uv run --with tensorboard pytest ...")
    accumulators = import_module("tensorboard.backend.event_processing.event_accumulator")
    run, _ = trained(tmp_path, ("tensorboard",))
    events = accumulators.EventAccumulator(str(run / TRACKERS / "tensorboard" / "sft"))
    events.Reload()
    assert [one.step for one in events.Scalars("train/loss")] == [1, 2]


class FailsOnLog(TrainerCallback):
    def on_log(self, *_: Any, **__: Any) -> None:
        raise ConnectionError("no network")


def fails_at_once() -> TrainerCallback:
    raise RuntimeError("no account")


@pytest.mark.parametrize(("kind", "why"), [(FailsOnLog, "no network"), (fails_at_once, "no account")])
def test_a_tracker_that_fails_is_dropped_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[], TrainerCallback], why: str
) -> None:
    monkeypatch.setattr(
        integration_utils, "get_reporting_integration_callbacks", lambda names: [kind] if names == ["wandb"] else []
    )
    _, said = trained(tmp_path, ("wandb",))
    assert [why in line and "continues without it" in line for line in said if "wandb" in line] == [True]


def test_a_tracker_hears_of_every_step_and_the_name_of_run_and_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, int]] = []

    class Heard(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if "loss" in more["logs"]:
                heard.append((args.run_name, state.global_step))

    monkeypatch.setattr(
        integration_utils, "get_reporting_integration_callbacks", lambda names: [Heard] if names == ["trackio"] else []
    )
    trained(tmp_path, ("trackio",))
    assert heard == [("run-sft", 1), ("run-sft", 2)]


def test_a_tracker_that_is_not_installed_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="report_to names trackio, which is not installed: pip install trackio"):
        check_trackers(("trackio",))


def test_a_folder_of_earlier_runs_is_not_taken_for_an_installed_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb" / "run-1").mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="report_to names wandb, which is not installed"):
        check_trackers(("wandb",))


def test_report_to_in_a_table_of_trl_is_refused(tmp_path: Path) -> None:
    settings = with_flags(SETTINGS, {"sft": {"trl": {"report_to": ["wandb"]}}})
    with pytest.raises(ConfigError, match="to the top of the config file"):
        check_settings(settings, tmp_path)
