"""Long work tells how far it has come; short work and the library itself say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from cudal1_data import load_suite
from cudal1_data.cli import main
from cudal1_data.progress import LOG, paced


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands at its first entry."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_lines_come_soon_then_seldom(clock: list[float]) -> None:
    told: list[str] = []
    for _ in paced(range(60), 60, "things done", notify=told.append):
        clock[0] += 1
    assert told == [f"{done} of 60 things done" for done in (3, 18, 33, 48, 60)]


def test_short_work_prints_no_progress(clock: list[float]) -> None:
    told: list[str] = []
    for _ in paced(range(2), 2, "things done", notify=told.append):
        clock[0] += 1
    assert told == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("order", ["family", "curriculum"])
def test_generating_prints_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str) -> None:
    spec = f"generated:softmax?n=3&seed=4711&order={order}"
    assert main(["export", spec, str(tmp_path / "tasks.jsonl")]) == 0
    assert "1 of 3 tasks generated\n2 of 3 tasks generated\n3 of 3 " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_fitting_prints_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "starter:diag_matmul,rms_norm", "--memory-gib", "1"]) == 0
    assert "1 of 2 tasks of starter made to fit" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient")
def test_the_library_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    level = LOG.level
    assert main(["list", "starter:diag_matmul"]) == 0
    assert (LOG.handlers, LOG.level) == ([], level)
    capsys.readouterr()
    assert len(load_suite("generated:softmax?n=2&seed=4712")) == 2
    assert capsys.readouterr().err == ""
