"""The live view follows a run while it is written, and copes with one that is not begun, cut off or finished."""

from __future__ import annotations

import doctest
import io
import json
import threading
from pathlib import Path

import cudal1_agent.reporting.watch
import pytest
from cudal1_agent import cli
from cudal1_agent.reporting.watch import Follower, frame, verdicts_a_minute, watch
from cudal1_agent.run.folder import METRICS, RunFolder
from cudal1_agent.settings import Settings
from cudal1_env.archive_reader import Entry
from doubles.training import evaluation, suite
from report import HOSTILE
from rich.console import Console

TASK = suite()[0]


def step(number: int, stage: str = "sft") -> dict[str, object]:
    return {"event": "step", "stage": stage, "step": number, "loss": 1 / number}


def picture(run: Follower, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(frame(run, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_view_follows_a_run_line_by_line(tmp_path: Path) -> None:
    run = Follower(tmp_path / "run")
    run.update()
    assert "not begun" in picture(run)
    with RunFolder.begin(tmp_path / "run", Settings()) as folder:
        run.update()
        assert "beginning" in picture(run)
        for number in range(1, 4):
            folder.metrics.append(step(number))
            run.update()
            assert f"sft, step {number} of 780" in picture(run)
        folder.archive.add_all([evaluation(TASK, "a = 1", 2.5), evaluation(TASK, "b = 1", None)])
        spent = {"generating_s": 1.0, "judging_s": 3.0, "learning_s": 4.0, "waiting_s": 0.0}
        folder.metrics.append({"event": "time", "stage": "sft", "step": 3, **spent})
        run.update()
        for text in ("2.50 x", "WRONG_OUTPUT", "learning", "50%"):
            assert text in picture(run)
        folder.metrics.append({"event": "seconds", "phase": "sft", "wall_s": 8.0, **spent})
        folder.mark("finished")
        run.update()
    assert run.finished
    assert len(run.records) == 5
    assert "finished" in picture(run)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    RunFolder.begin(tmp_path / "run", Settings()).close()
    run = Follower(tmp_path / "run")
    text = json.dumps(step(1)).encode() + b"\n"
    for end in range(len(text)):
        (tmp_path / "run" / METRICS).write_bytes(text[:end])
        run.update()
        assert run.records == []
    (tmp_path / "run" / METRICS).write_bytes(text + b'{"event": "st')
    run.update()
    assert run.records == [step(1)]


def test_a_run_that_was_rewound_to_resume_is_read_anew(tmp_path: Path) -> None:
    run = Follower(tmp_path / "run")
    with RunFolder.begin(tmp_path / "run", Settings()) as folder:
        folder.metrics.append(step(1))
        folder.archive.add(evaluation(TASK, "a = 1", 2.0))
        mark = folder.position_now()
        for number in (2, 3):
            folder.metrics.append(step(number))
            folder.archive.add(evaluation(TASK, f"b = {number}", 3.0))
        run.update()
        assert (len(run.records), len(run.entries)) == (3, 3)
        folder.rewind(mark, archive=True)
        for number in (4, 5, 6):
            folder.metrics.append(step(number))
            folder.archive.add(evaluation(TASK, f"c = {number}", 4.0))
        run.update()
    assert [record["step"] for record in run.records] == [1, 4, 5, 6]
    assert [entry.point for entry in run.entries] == [2.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_cannot_command_the_terminal(tmp_path: Path, text: str) -> None:
    task = TASK.model_copy(update={"id": text})
    with RunFolder.begin(tmp_path / "run", Settings()) as folder:
        folder.metrics.append(step(1, text))
        folder.metrics.append({"event": "seconds", "phase": text, "wall_s": 1.0})
        folder.archive.add(evaluation(task, text, 2.0))
    run = Follower(tmp_path / "run")
    run.update()
    assert not set(picture(run)) & set("\x00\x07\x1b\u202e\u2066\u200b\ufeff")


def test_damaged_files_cost_what_they_hold_and_say_so(tmp_path: Path) -> None:
    RunFolder.begin(tmp_path / "run", Settings()).close()
    (tmp_path / "run" / "archive.sqlite").write_bytes(b"no database" * 500)
    (tmp_path / "run" / "config.json").write_text("{}x")
    (tmp_path / "run" / METRICS).write_bytes(b'{"event": "step"}\n' + json.dumps(step(1)).encode() + b"\n")
    run = Follower(tmp_path / "run")
    run.update()
    assert run.records == [step(1)]
    assert "archive.sqlite" in run.note


def entry(minute: float) -> Entry:
    time = f"2026-11-25T10:{int(minute):02d}:{int(minute * 60) % 60:02d}+00:00"
    return Entry(1, "t", "s", "CORRECT", 1.0, 1.0, 1.0, time, "2", "")


def test_verdicts_a_minute_are_those_of_the_last_ten_minutes() -> None:
    assert verdicts_a_minute([]) == verdicts_a_minute([entry(3)]) == 0.0
    assert verdicts_a_minute([entry(20 + number / 4) for number in range(9)]) == pytest.approx(4.0)
    assert verdicts_a_minute([*(entry(0) for _ in range(500)), entry(30), entry(31)]) < 1.0


def test_watching_ends_when_the_run_is_finished(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    with RunFolder.begin(tmp_path / "run", Settings()) as folder:
        later = threading.Timer(0.2, folder.mark, ["finished"])
        later.start()
        watch(tmp_path / "run", console, interval_s=0.05)
        later.join()
    assert isinstance(console.file, io.StringIO)
    assert "finished" in console.file.getvalue()


def test_once_prints_one_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.Watch(tmp_path / "none", once=True).run() == 0
    assert "no run in" in capsys.readouterr().out


def test_examples_in_docstrings() -> None:
    found = doctest.testmod(cudal1_agent.reporting.watch)
    assert found.attempted > 0
    assert found.failed == 0
