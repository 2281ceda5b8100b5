"""Settings: the quickstart file is the defaults, old names are read, help is quick, a service may judge."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from cudal1_agent.config import load_settings
from cudal1_agent.errors import ConfigError
from cudal1_agent.run.judge import make_judge, program_device
from cudal1_agent.settings import Settings
from doubles.evaluator import program, suite
from env.services import serving

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_quickstart_file_spells_out_the_defaults() -> None:
    path = CONFIGS / "quickstart.toml"
    assert load_settings(path) == Settings()
    spelled = tomllib.loads(path.read_text())
    silent = {name for name, value in Settings().model_dump(mode="json").items() if name not in spelled and value}
    assert not silent, "defaults that the file does not name"
    for table in ("embedded", "prompt", "sft", "self_train", "contrast", "evaluation"):
        named = Settings().model_dump(mode="json")[table]
        assert {name for name, value in named.items() if value is not None} == spelled[table].keys()


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
