"""A model that somebody brings, with a chat template: both TRL stages, the full prompt, and `evaluate` on the run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cudal1_agent.config import with_flags
from cudal1_agent.data.tasks import TRAIN
from cudal1_agent.evaluation.evaluate import evaluate_model, last_model, settings_for
from cudal1_agent.policies.embedded import MARK, is_embedded, make_embedded
from cudal1_agent.policies.transformers import TransformersPolicy
from cudal1_agent.run.folder import ARCHIVE
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.settings import EmbeddedModel, Settings
from cudal1_agent.stages.contrast import ContrastTrainer
from cudal1_agent.train import dry_run, train
from cudal1_env import Archive
from doubles.training import HashEvaluator, suite

CHAT = (
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
TRL: dict[str, Any] = {"max_steps": 2, "logging_steps": 1, "save_steps": 2, "per_device_train_batch_size": 4}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = EmbeddedModel(vocabulary=400, hidden=32, layers=1, heads=2, intermediate=64, context=2048)
    folder = make_embedded(tmp_path / "brought", tuple(suite().train), shape, seed=0)
    config = json.loads((folder / "config.json").read_text())
    del config[MARK]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHAT)
    assert not is_embedded(folder)
    return folder


@pytest.mark.slow
def test_a_chat_model_goes_through_the_stages(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = with_flags(
        Settings(),
        {
            "model": str(model),
            "device": "cpu",
            "stages": ("sft", "contrast"),
            "prompt": {"max_tokens": 2000},
            "sft": {"trl": {**TRL, "max_length": 2048}},
            "contrast": {"trl": {**TRL, "num_generations": 2, "max_completion_length": 8}},
            "evaluation": {"max_new_tokens": 16, "held_out_sizes": 1},
        },
    )
    prompts: list[Any] = []
    generate = ContrastTrainer._generate

    def spy(self: ContrastTrainer, given: list[Any]) -> Any:
        prompts.extend(given)
        return generate(self, given)

    monkeypatch.setattr(ContrastTrainer, "_generate", spy)
    run_dir = train(settings, tmp_path / "run", evaluator=HashEvaluator(), suite=suite())

    records = read_metrics(run_dir / "metrics.jsonl")
    assert [record["stage"] for record in records if record["event"] == "step"] == ["sft"] * 2 + ["contrast"] * 2
    assert all(message["role"] == "user" for prompt in prompts for message in prompt)
    assert all("You are an expert" in prompt[0]["content"] for prompt in prompts)
    assert not (run_dir / "model").exists(), "none is made where one is named"
    assert last_model(run_dir) == run_dir / "stages" / "contrast" / "model"

    asked: list[str] = []
    sample = TransformersPolicy.sample

    def listening(self: TransformersPolicy, given: list[str], n: int, **how: Any) -> list[list[str]]:
        asked.extend(given)
        return sample(self, given, n, **how)

    monkeypatch.setattr(TransformersPolicy, "sample", listening)
    flags = {"suite": "starter", "evaluation": {"train_tasks": 2, "held_out_sizes": 0, "held_out_tasks": 0}}
    asked_for = str(run_dir), settings_for(str(run_dir), flags)
    first, evaluated = (
        evaluate_model(*asked_for, evaluator=HashEvaluator(), out=tmp_path / "evaluated") for _ in range(2)
    )
    assert evaluated.record("a run") == first.record("a run")
    with Archive(tmp_path / "evaluated" / ARCHIVE) as archive:
        assert [one.marks for one in archive.evaluations()] == [()] * 2, "each was measured once"
    assert {group: len(found) for group, found in evaluated.groups.items()} == {TRAIN: 2}
    assert re.search(r"evaluating 2 of \d+ training tasks, 0 of \d+ held-out", capsys.readouterr().err)
    assert not evaluated.trained_on_test
    assert "trained_on_test" not in json.dumps(evaluated.record("a run")) + evaluated.text("a run")
    assert len(asked) == 4
    assert all("You are an expert" in prompt for prompt in asked)

    shutil.rmtree(model)
    assert "phases: seeds, contrast" in dry_run(settings, tmp_path / "fork", origin=(run_dir, "sft"))
    fork = train(
        with_flags(settings, {"seed": 1}),
        tmp_path / "fork",
        origin=(run_dir, "sft"),
        evaluator=HashEvaluator(),
        suite=suite(),
    )
    assert last_model(fork) == fork / "stages" / "contrast" / "model", "finished stages need no first model"
