"""The commands, as a user types them: what they refuse, and with which words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cudal1_agent import cli
from cudal1_agent.errors import RunError
from cudal1_agent.run.folder import RunFolder
from cudal1_agent.settings import Settings


def typed(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["cudal1-agent", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


def test_model_makes_a_folder_and_prints_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "small.toml"
    config.write_text("[embedded]\nhidden = 32\nheads = 2\nlayers = 1\nintermediate = 64\nvocabulary = 600\n")
    assert typed(monkeypatch, "model", "make", "--out", tmp_path / "m", "--config", config) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").is_file()
    assert typed(monkeypatch, "model", "make", "--out", tmp_path / "m") == 2
    assert "is not empty; name a new or an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--suite", "startr", "--run-dir", "{tmp}/new"), "starter"),
        (("train", "--stages", "sft,polish"), "stages"),
        (("train", "--corpus", "{tmp}/none.jsonl", "--device", "cpu", "--run-dir", "{tmp}/new"), "no corpus file"),
        (("train", "--corpus", "{tmp}/none.jsonl", "--device", "cpu", "--dry-run"), "no corpus file"),
        (("watch", "{tmp}/run", "--interval", "nan"), "invalid --interval nan"),
        (("watch", "{tmp}/run", "--interval", "1e300"), "at most 3600"),
        (("train", "--config", "{tmp}/none.toml"), "cannot read the config file"),
        (("train", "--run-dir", "{tmp}/run"), "--resume"),
        (("train", "--run-dir", "{tmp}/run", "--dry-run"), "--resume"),
        (("train", "--run-dir", "{tmp}", "--dry-run"), "holds other files; name a new or an empty one"),
        (("train", "--run-dir", "{tmp}/none", "--resume"), "begin a run there"),
        (("train", "--run-dir", "{tmp}/run", "--resume", "--seed", "9"), "seed: 0 in the run, 9 requested"),
        (("train", "--from", "{tmp}/run@sft", "--dry-run"), "is not finished, so there is nothing to fork from"),
        (("train", "--for", "9", "--run-dir", "{tmp}/new"), "write a time above 0"),
        (("report", "{tmp}/none"), "no run in"),
        (("evaluate", "{tmp}/run"), "finished stage"),
        (("evaluate", "{tmp}/run@sftt"), "unknown stage 'sftt'; did you mean 'sft'?"),
        (("train", "--run-dir", "{tmp}/none", "--resume", "--dry-run"), "no run in"),
    ],
)
def test_a_refused_command_prints_one_sentence_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    RunFolder.begin(tmp_path / "run", Settings()).close()
    assert typed(monkeypatch, *(word.format(tmp=tmp_path) for word in words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("cudal1-agent: ")
    assert said in last
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("judge_url = 'localhost'", "is not the URL of a service"),
        ("[judge]\nbaselnes = []", "the table [judge]: baselnes: no such setting; did you mean 'baselines'"),
    ],
)
def test_a_run_with_invalid_settings_of_the_judge_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, said: str
) -> None:
    (tmp_path / "mine.toml").write_text(f"device = 'cpu'\n{config}\n")
    assert typed(monkeypatch, "train", "--config", tmp_path / "mine.toml", "--run-dir", tmp_path / "new") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_resumed_run_is_compared_with_the_settings_that_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.begin(tmp_path / "run", Settings(suite="starter:level1", device="cpu")).close()
    assert typed(monkeypatch, "train", "--run-dir", tmp_path / "run", "--resume", "--seed", "9") == 2
    assert "was begun with other settings (seed: 0 in the run, 9 requested);" in capsys.readouterr().err


def test_ctrl_c_names_the_run_once_there_is_one(tmp_path: Path) -> None:
    command = cli.Train(folder=cli.Folder(run_dir=tmp_path / "run"))
    assert command.saved() == "nothing was saved; type the command again"
    RunFolder.begin(tmp_path / "run", Settings()).close()
    assert command.saved().endswith(f"cudal1-agent train --run-dir {tmp_path / 'run'} --resume")


def test_report_of_two_runs_writes_one_page_and_prints_both_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        RunFolder.begin(tmp_path / name, Settings()).close()
    out = tmp_path / "both.html"
    assert typed(monkeypatch, "report", tmp_path / "one", tmp_path / "two", "--out", out) == 0
    printed = capsys.readouterr().out
    for text in (f"{tmp_path / 'one'}:", f"{tmp_path / 'two'}:", f"report: {out}"):
        assert text in printed
    assert "one, two" in out.read_text()


def test_resume_without_run_dir_takes_the_newest_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to resume"):
        cli.newest_run(tmp_path)
    for name in ("a", "b"):
        RunFolder.begin(tmp_path / name, Settings()).close()
    assert cli.newest_run(tmp_path) == tmp_path / "b"
