"""Settings: every config file parses, the quickstart file is the defaults, flags and files merge."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from cudal1_agent.errors import ConfigError
from cudal1_agent.run.judge import make_judge, program_device
from cudal1_agent.settings import PRETRAINED, Settings, differences, load_settings, merged, read_config, with_flags
from doubles.evaluator import program, suite
from env.services import serving

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.toml")), ids=lambda path: path.stem)
def test_every_config_file_parses(path: Path) -> None:
    settings = load_settings(path)
    assert settings.stages


def test_the_quickstart_file_spells_out_the_defaults() -> None:
    path = CONFIGS / "quickstart.toml"
    assert load_settings(path) == Settings()
    spelled = tomllib.loads(path.read_text())
    silent = {name for name, value in Settings().model_dump(mode="json").items() if name not in spelled and value}
    assert not silent, "defaults that the file does not name"
    for table in ("embedded", "prompt", "sft", "self_train", "contrast", "evaluation"):
        named = Settings().model_dump(mode="json")[table]
        assert {name for name, value in named.items() if value is not None} == spelled[table].keys()


def test_the_pretrained_file_spells_out_what_a_model_changes() -> None:
    assert read_config(CONFIGS / "pretrained.toml") == PRETRAINED


def test_a_later_config_file_goes_over_an_earlier_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("seed = 7\n[sft.trl]\nmax_steps = 3\nsave_steps = 20\n")
    second.write_text("[sft.trl]\nmax_steps = 5\n")
    settings = load_settings([first, second], {"seed": 8})
    assert (settings.seed, settings.sft.trl["max_steps"], settings.sft.trl["save_steps"]) == (8, 5, 20)
    second.write_text("[sft]\nmax_step = 5\n")
    with pytest.raises(ConfigError, match=r"first.toml: .*second.toml: invalid settings: sft.max_step"):
        load_settings([first, second])


def test_a_config_file_changes_only_the_settings_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = 7\n[sft.trl]\nmax_steps = 3\n")
    settings = load_settings(path, {"suite": "kernelbench", "device": None})
    assert (settings.seed, settings.suite, settings.device) == (7, "kernelbench", "auto")
    assert settings.sft.trl == {**Settings().sft.trl, "max_steps": 3}


def test_a_named_model_gets_the_pretrained_defaults() -> None:
    settings = load_settings(None, {"model": "some/model"})
    assert settings == Settings.model_validate({**merged(Settings().model_dump(), PRETRAINED), "model": "some/model"})
    assert settings.contrast.trl["learning_rate"] < 1e-5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sed = 1", "sed"),
        ("seed = -1", "seed"),
        ("stages = ['contrast', 'sft']", "order"),
        ("[evaluation]\nsamples = 2", "temperature 0"),
        ("seed = ", "not valid TOML"),
    ],
)
def test_an_invalid_config_file_is_named_with_its_fault(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "invalid.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings(path)
    assert str(path) in str(caught.value)


def test_a_missing_config_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the config file"):
        load_settings(tmp_path / "none.toml")


def test_differences_name_each_changed_setting() -> None:
    other = with_flags(Settings(), {"seed": 3, "sft": {"trl": {"max_steps": 1}}})
    assert [line.split(":")[0] for line in differences(Settings(), other)] == ["seed", "sft.trl.max_steps"]
    assert differences(Settings(), Settings()) == []


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\nfrom cudal1_agent.cli import main\nsys.argv = ['cudal1-agent', 'train', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'gymnasium'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    began_s = time.process_time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--run-dir" in done.stdout
    assert time.process_time() - began_s < 5


def test_the_old_name_of_max_per_task_is_read_in_files_and_run_directories(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text("[sft]\nmost_per_task = 3\n")
    assert load_settings(path).sft.max_per_task == 3
    stored = json.loads(Settings().model_dump_json())
    stored["sft"]["most_per_task"] = stored["sft"].pop("max_per_task")
    assert Settings.model_validate_json(json.dumps(stored)) == Settings()


def test_a_service_judges_where_its_url_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as service:
        settings = load_settings(None, {"judge_url": service.url})
        assert program_device(settings) == "cpu"
        with contextlib.closing(make_judge(settings)) as judge:
            assert judge.evaluate(suite()[0], program(2.0)).correct
        with pytest.raises(ConfigError, match="judges on cpu"):
            program_device(load_settings(None, {"judge_url": service.url, "device": "cuda"}))
    with pytest.raises(ConfigError, match="exclude each other"):
        make_judge(load_settings(None, {"judge_url": service.url, "judge": {"lanes": 2}}))
