"""Config files: every one parses, later ones and flags go over earlier ones, faults and differences are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cudal1_agent.config import PRETRAINED, differences, load_settings, merged, read_config, with_flags
from cudal1_agent.errors import ConfigError
from cudal1_agent.settings import Settings

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.toml")), ids=lambda path: path.stem)
def test_every_config_file_parses(path: Path) -> None:
    settings = load_settings(path)
    assert settings.stages


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


def test_a_contradiction_between_settings_is_named_in_plain_words() -> None:
    with pytest.raises(ConfigError, match=r"invalid settings: evaluation: samples is 3 and temperature 0"):
        load_settings(None, {"evaluation": {"samples": 3, "temperature": 0.0}})


def test_messages_say_whose_config_files_they_name() -> None:
    """A user who installed wheels has no folder `configs`."""
    with pytest.raises(ConfigError, match=r"config.json of a run, or configs/quickstart.toml of the source repository"):
        load_settings(None, {"seed": "many"})
    for path in (CONFIGS.parent / "packages").glob("*/src/**/*.py"):
        for found in re.finditer(r"configs/[\w/]+\.toml`?(.{32})", path.read_text(), re.DOTALL):
            assert "repository" in " ".join(found[1].split()), path


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
        ("seed = 4294967296", "seed"),
        ("stages = ['contrast', 'sft']", "order"),
        ("stages = ['sft', 'contrst']", "stages.1: unknown choice 'contrst'; did you mean 'contrast'"),
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
