"""The command `optimize`, as a user types it: what it refuses, and one whole search through this machine's judge."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent.optimized import MODULE, module_file
from cudal1_agent import cli
from cudal1_agent.errors import TimeIsUpError
from cudal1_agent.optimize import run
from cudal1_agent.optimize.record import OptimizeRecord, report_text

# About 20 ms a call: on a busy machine the judge's own work was 1.7 ms, and a third of a call has to be more.
LARGE = (
    MODULE.replace("ROWS = 64", "ROWS = 4096")
    .replace("randn(ROWS, 8)", "randn(ROWS, 256)")
    .replace("[8]", "[256]")
    .replace("return torch.tanh(x)", "for _ in range(8):\n            x = torch.tanh(x)\n        return x")
)


def typed(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["cudal1-agent", "optimize", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.py",), "cannot read none.py: No such file or directory; name a file of Python text"),
        (("{file}:Scald",), "did you mean 'Scaled'"),
        (("{file}", "--budget", "soon"), "invalid --budget 'soon': write a time"),
        (("{file}", "--candidates", "0"), "give 1 or more"),
        (("{file}", "--url", "http://127.0.0.1:9/v1"), "--url and --model go together"),
        (("{file}", "--url", "u", "--model", "m", "--run", "r"), "exclude each other"),
        (("{file}", "--run", "{tmp}/none"), "no run in"),
    ],
)
def test_what_cannot_be_begun_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    file = module_file(tmp_path)
    assert typed(monkeypatch, *(word.format(file=file, tmp=tmp_path) for word in words), "--device", "cpu") == 2
    printed = capsys.readouterr()
    assert said in printed.err.strip().splitlines()[-1]
    assert printed.out == ""


def test_time_that_is_over_before_the_module_is_examined_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    assert typed(monkeypatch, module_file(tmp_path), "--device", "cpu", "--budget", "1s", "--out", out) == 75
    assert "the search's time was over before the module was examined" in capsys.readouterr().err
    assert not out.exists()


def test_time_that_is_over_before_the_module_is_measured_is_exit_code_75(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def over(*_: object, **__: object) -> None:
        raise TimeIsUpError("the time is over before the module was measured (1 s); give a larger --budget")

    monkeypatch.setattr(run, "optimize", over)
    assert typed(monkeypatch, module_file(tmp_path), "--device", "cpu", "--json") == 75
    printed = capsys.readouterr()
    assert "give a larger --budget" in printed.err
    assert json.loads(printed.out)["error"] == "TimeIsUpError"


def recorded(repository: Path) -> list[OptimizeRecord]:
    lines = (repository / "docs" / "results" / "optimize_cpu.jsonl").read_text().splitlines()
    return [
        OptimizeRecord.model_validate({key: value for key, value in json.loads(line).items() if key != "exit_code"})
        for line in lines
    ]


def test_a_record_has_a_winner_exactly_if_its_outcome_says_so(repository: Path) -> None:
    records = recorded(repository)
    assert {record.name for record in records} == {"GatedBlock", "RotaryAttention", "Model"}
    for record in records:
        assert (record.winner is not None) == (record.outcome == "faster")
        assert record.spent_s <= record.budget_s + 5
        if record.winner is not None:
            assert record.winner.end > 1
            assert record.winner.in_module.speedup.low > 1


def test_a_report_shows_hostile_text_as_text(repository: Path) -> None:
    record = recorded(repository)[0]
    hostile = record.model_copy(update={"notes": ("<script>alert(1)</script> | x\n# heading",)})
    text = report_text(hostile)
    assert "<script>" not in text
    assert "\n# heading" not in text


@pytest.mark.slow
def test_a_search_that_is_interrupted_goes_on_from_its_folder(tmp_path: Path) -> None:
    file, out = module_file(tmp_path, LARGE), tmp_path / "scaled"
    command = [
        sys.executable,
        "-m",
        "cudal1_agent",
        "optimize",
        str(file),
        "--out",
        str(out),
        "--device",
        "cpu",
        "--candidates",
        "4",
    ]
    # Where the tests run in the background, SIGINT is ignored, and a child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen([*command, "--budget", "10m"], stderr=subprocess.PIPE, text=True) as begun:
        signal.signal(signal.SIGINT, before)
        ends = time.monotonic() + 200
        while not (out / "search" / "archive.sqlite").is_file() and time.monotonic() < ends and begun.poll() is None:
            time.sleep(0.2)
        begun.send_signal(signal.SIGINT)
        _, said = begun.communicate(timeout=60)
    assert begun.returncode == 130, said
    assert f"what was judged is in {out}" in said
    done = subprocess.run([*command, "--budget", "90s", "--json"], capture_output=True, text=True, timeout=200)
    assert done.returncode in (0, 1, 75), done.stderr
    record = OptimizeRecord.model_validate_json(done.stdout)
    assert record.spent_s < 110
    assert (out / "__init__.py").exists() == (record.outcome == "faster")
    assert (out / "report.md").read_text().startswith("# Scaled of mine.py")
