"""Run directories: begun once, resumed exactly, refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from cudal1_agent.config import with_flags
from cudal1_agent.errors import RunError
from cudal1_agent.evaluation.evaluate import run_of
from cudal1_agent.run.files import replace_folder, write_aside
from cudal1_agent.run.folder import METRICS, Mark, RunFolder, is_run, read_corpus_note, read_mark, read_settings
from cudal1_agent.run.metrics import Metrics, read_metrics
from cudal1_agent.settings import Settings
from doubles.training import evaluation, suite

TASK = suite()[0]


def begun(path: Path) -> None:
    RunFolder.begin(path, Settings(seed=5)).close()


def test_a_run_keeps_its_settings(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    assert read_settings(tmp_path / "run") == Settings(seed=5)
    with RunFolder.resume(tmp_path / "run") as folder:
        assert folder.settings.seed == 5


def test_the_folder_of_a_model_is_no_run_though_it_has_a_config_too(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    assert [is_run(tmp_path / name) for name in ("run", "model", "nothing")] == [True, False, False]
    assert run_of(str(tmp_path / "model")) == (None, None)
    assert run_of(f"{tmp_path}/run@sft") == (tmp_path / "run", "sft")


def test_an_unfinished_run_is_not_begun_again(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    with pytest.raises(RunError, match=rf"cudal1-agent train --run-dir {tmp_path}/run --resume"):
        begun(tmp_path / "run")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="other files"):
        begun(tmp_path)
    with pytest.raises(RunError, match="begin a run there"):
        RunFolder.resume(tmp_path)


def test_a_run_that_was_killed_before_it_began_can_be_begun(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    (tmp_path / "config.json.aside").write_text("{")
    begun(tmp_path)
    assert read_settings(tmp_path).seed == 5


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(RunError, match="seed: 5 in the run, 6 requested"):
        RunFolder.resume(tmp_path, Settings(seed=6))
    asked = with_flags(Settings(seed=5), {"sft": {"trl": {"learning_rate": 0.5}}})
    with pytest.raises(RunError, match=r"sft\.trl\.learning_rate"):
        RunFolder.resume(tmp_path, asked)
    RunFolder.resume(tmp_path, Settings(seed=5)).close()


def test_a_finished_run_is_neither_resumed_nor_begun(tmp_path: Path) -> None:
    begun(tmp_path)
    with RunFolder.resume(tmp_path) as folder:
        folder.mark("finished")
    with pytest.raises(RunError, match="nothing to resume"):
        RunFolder.resume(tmp_path)
    with pytest.raises(RunError, match="holds a finished run"):
        begun(tmp_path)


def test_a_run_directory_is_locked_by_one_process(tmp_path: Path) -> None:
    # The lock belongs to an open file, so a second opening meets it as a second process would.
    with (
        RunFolder.begin(tmp_path, Settings()),
        pytest.raises(RunError, match="another process is training"),
    ):
        RunFolder.resume(tmp_path)
    RunFolder.resume(tmp_path).close()


def test_metrics_and_archive_rewind_to_a_mark(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path, Settings()) as folder:
        folder.metrics.append({"event": "a"})
        folder.archive.add(evaluation(TASK, "one", 2.0))
        folder.mark("first", {"more": [1]})
        folder.metrics.append({"event": "b"})
        folder.archive.add(evaluation(TASK, "two", 3.0))
        mark = folder.marked("first")
        assert mark is not None
        assert mark.extra == {"more": [1]}
        assert folder.marked("second") is None
        folder.rewind(mark, archive=False)
        assert read_metrics(tmp_path / METRICS) == [{"event": "a"}]
        assert len(folder.archive) == 2
        folder.rewind(mark, archive=True)
        assert [one.source for one in folder.archive.evaluations()] == ["one"]
        folder.metrics.append({"event": "c"})
    assert read_metrics(tmp_path / METRICS) == [{"event": "a"}, {"event": "c"}]


@pytest.mark.parametrize("torn", [b"", b"{", b'{"event": "x"', b"\xff\x00"])
def test_a_torn_last_line_is_ignored_and_removed(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / METRICS
    path.write_bytes(b'{"event": "a"}\n' + torn)
    assert read_metrics(path) == [{"event": "a"}]
    metrics = Metrics(path)
    metrics.append({"event": "b"})
    metrics.close()
    assert read_metrics(path) == [{"event": "a"}, {"event": "b"}]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    path.write_bytes(b'{"event": "a"}\n{"ev\n{"event": "b"}\n')
    with pytest.raises(RunError, match="line 2"):
        read_metrics(path)


def test_metrics_shorter_than_a_mark_are_refused(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path, Settings()) as folder, pytest.raises(RunError, match="has 0 bytes and had 999"):
        folder.rewind(Mark(metrics_bytes=999, archive_position=0), archive=False)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"metrics_bytes": -1, "archive_position": 0}', "\x00"])
def test_a_note_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    for name in ("corpus.json", "sft.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=r"sft\.json cannot be read"):
        read_mark(tmp_path / "sft.json")
    with pytest.raises(RunError, match=r"corpus\.json cannot be read"):
        read_corpus_note(tmp_path)


def test_metrics_hold_no_nan(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / METRICS)
    with pytest.raises(ValueError, match="JSON"):
        metrics.append({"loss": float("nan")})
    assert metrics.position() == 0
    metrics.close()


def test_files_and_folders_are_replaced_atomically(tmp_path: Path) -> None:
    write_aside(tmp_path / "new" / "file", "old")
    write_aside(tmp_path / "new" / "file", "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").read_text() == "new"
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "x").write_text("x")
    replace_folder(tmp_path / "aside", tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x"]
