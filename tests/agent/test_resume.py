"""A training that is killed at any moment and resumed is the training that was never killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cudal1_agent.run.metrics import read_metrics
from cudal1_env import Archive


def told(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics, less what depends on the clock."""
    return [record for record in read_metrics(run_dir / "metrics.jsonl") if record["event"] not in ("seconds", "time")]


def kept(run_dir: Path) -> list[tuple[str, str, str]]:
    with Archive(run_dir / "archive.sqlite") as archive:
        return [(one.task, one.source, one.status.value) for one in archive.evaluations()]


def weights(run_dir: Path) -> dict[str, bytes]:
    found = run_dir.glob("stages/**/model/model.safetensors")
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in found}


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_run_killed_in_any_stage_and_resumed_equals_the_undisturbed_run(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_runs.py")
    done = subprocess.run([sys.executable, script, tmp_path, "1"], capture_output=True, text=True, timeout=270)
    assert done.returncode == 0, done.stderr[-4000:]

    whole = tmp_path / "whole"
    records = told(whole)
    assert {record["event"] for record in records} == {
        "step",
        "batch",
        "champion",
        "seeds",
        "answer",
        "table",
        "change",
        "self_train",
    }
    stages = {record["stage"] for record in records if record["event"] == "step"}
    assert stages == {"sft", "self_train", "contrast"}
    losses = [record["loss"] for record in records if record["event"] == "step" and record["stage"] == "contrast"]
    assert any(loss != 0 for loss in losses), "stage 3 learnt nothing, so nothing could differ"
    assert len(kept(whole)) > 10

    said = json.loads((tmp_path / "said.json").read_text())
    assert [one["killed"] for one in said] == [True, True, True]
    for one in said:
        run_dir = tmp_path / one["stage"]
        assert told(run_dir) == records, one
        assert kept(run_dir) == kept(whole), one
        assert weights(run_dir) == weights(whole), one
        assert "not finished" not in (run_dir / "report.html").read_text()
