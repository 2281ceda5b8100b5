"""Adapters: both trainers train them, and what a stage leaves is an ordinary model with them merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cudal1_agent.config import with_flags
from cudal1_agent.policies.transformers import load_model, load_tokenizer
from cudal1_agent.run.checkpoints import newest
from cudal1_agent.settings import Settings
from cudal1_agent.stages.contrast import run_contrast
from cudal1_agent.stages.scoring import Scorer
from cudal1_agent.stages.seeds import seed
from cudal1_agent.stages.sft import run_sft
from doubles.training import SMALL_MODEL, session
from peft.tuners.lora import LoraModel
from transformers import AutoModelForCausalLM

SFT = {"max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "save_steps": 1, "max_length": 256}
GRPO = {
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 8,
    "logging_steps": 1,
    "save_steps": 1,
    "mask_truncated_completions": False,
    "warmup_steps": 0,
}
SETTINGS = with_flags(
    Settings(),
    {
        "device": "cpu",
        "embedded": SMALL_MODEL.model_dump(),
        "peft": {"r": 4, "lora_alpha": 64, "lora_dropout": 0.0},
        "prompt": {"max_tokens": 400},
        "sft": {"trl": {**SFT, "learning_rate": 0.05, "warmup_steps": 0}},
        "contrast": {"trl": {**GRPO, "learning_rate": 0.05}},
    },
)
IDS = torch.arange(10, 30)[None]


def answer(model: Any) -> list[int]:
    return model.generate(
        input_ids=IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=12, do_sample=False
    ).tolist()


@pytest.fixture
def adapted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], torch.Tensor]]:
    """Answer and logits of each adapter model just before its adapters are merged."""
    seen: list[tuple[list[int], torch.Tensor]] = []
    merge = LoraModel.merge_and_unload

    def spy(self: LoraModel, *args: Any, **kwargs: Any) -> Any:
        self.model.eval()
        with torch.no_grad():
            seen.append((answer(self.model), self.model(IDS).logits))
        return merge(self, *args, **kwargs)

    monkeypatch.setattr(LoraModel, "merge_and_unload", spy)
    return seen


def check(folder: Path, base: Path, seen: tuple[list[int], torch.Tensor]) -> None:
    assert not list(folder.glob("adapter*"))
    merged = AutoModelForCausalLM.from_pretrained(folder).eval()
    untrained = AutoModelForCausalLM.from_pretrained(base).eval()
    tokens, logits = seen
    with torch.no_grad():
        assert torch.allclose(merged(IDS).logits, logits, atol=1e-4)
        assert not torch.allclose(untrained(IDS).logits, logits, atol=1e-2), "the adapters learnt nothing"
    assert answer(merged) == tokens
    assert load_model(folder, load_tokenizer(folder), use_cpu=True).generation_config.eos_token_id


@pytest.mark.slow
def test_stage_1_merges_what_its_adapters_learnt_and_resumes_exactly(
    tmp_path: Path, adapted: list[tuple[list[int], torch.Tensor]]
) -> None:
    with session(tmp_path / "run", SETTINGS) as run:
        model, folder = run.folder.path / "model", tmp_path / "stage"
        run_sft(run, None, model=model, folder=folder)
        check(folder / "model", model, adapted[0])
        weights = folder / "model" / "model.safetensors"
        whole = weights.read_bytes()
        last = newest(folder / "trainer")
        assert last is not None
        assert (last.path / "adapter_model.safetensors").is_file()
        (last.path / "cudal1.json").unlink()
        run_sft(run, newest(folder / "trainer"), model=model, folder=folder)
        assert weights.read_bytes() == whole


def test_stage_3_merges_what_its_adapters_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapted: list[tuple[list[int], torch.Tensor]]
) -> None:
    def by_place(scorer: Scorer, completions: Sequence[str], **_: Any) -> list[float]:
        return [float(number) for number, _ in enumerate(completions)]

    # An untrained model writes no program, so rewards are drawn from the place of an answer here.
    monkeypatch.setattr(Scorer, "__call__", by_place)
    with session(tmp_path / "run", SETTINGS) as run:
        model, folder = run.folder.path / "model", tmp_path / "stage"
        seed(run, None)
        run_contrast(run, None, model=model, folder=folder)
        check(folder / "model", model, adapted[0])
