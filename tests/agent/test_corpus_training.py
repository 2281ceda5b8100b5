"""Stage 1 on a corpus: a whole run, what it writes, and how it resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from agent.corpora import TASKS, built, judged
from cudal1_agent import train as train_module
from cudal1_agent.config import merged
from cudal1_agent.errors import CorpusError, RunError
from cudal1_agent.evaluation import champions
from cudal1_agent.evaluation.evaluate import corpus_tasks
from cudal1_agent.policies.embedded import make_embedded
from cudal1_agent.policies.transformers import as_messages, load_tokenizer, tokens_of
from cudal1_agent.run.folder import read_corpus_note
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.settings import EmbeddedModel, Settings
from cudal1_agent.stages import sft
from cudal1_agent.stages.trl import Keeper, arguments
from cudal1_agent.train import train
from cudal1_data import Suite, load_suite
from cudal1_data.corpus import Corpus, load_corpus
from cudal1_env import extract_source
from datasets import Dataset
from doubles.training import HashEvaluator
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

SHAPE = {"vocabulary": 600, "hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "context": 1024}
HELD_OUT = "starter/softplus_mish"
"""In the suite, not in the corpus."""


def settings(corpus: Path, **changes: Any) -> Settings:
    table = {"max_steps": 4, "logging_steps": 1, "save_steps": 2, "per_device_train_batch_size": 2, "max_length": 700}
    values = {
        "device": "cpu",
        "stages": ("sft",),
        "embedded": SHAPE,
        "sft": {"corpus": corpus, "max_per_task": 3, "trl": table},
        "evaluation": {"max_new_tokens": 16, "held_out_sizes": 0, "train_tasks": 1},
    }
    return Settings.model_validate(merged(merged(Settings().model_dump(), values), changes))


def suite() -> Suite:
    return load_suite("starter", device="cpu").where(lambda one: one.id in (*TASKS, HELD_OUT))


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """No reports, which take longer than the training, and no second thread for a model as small as this."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "write_report", lambda *_: None)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs in PyTorch that a double called correct on a CPU, among others without verdicts."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = built("cpu")
    good = [pair for pair in pairs if pair.label == "correct" and pair.backend in ("pytorch", "torch-compile")]
    verdicts = [(pair, 1.0 + number / 10) for number, pair in enumerate(good)]
    judged(pairs, verdicts, folder, device="cpu").save(folder / "corpus.parquet")
    return folder / "corpus.parquet"


def run(corpus: Path, folder: Path, *, resume: bool = False, **changes: Any) -> list[dict[str, Any]]:
    asked = None if resume else settings(corpus, **changes)
    train(asked, folder, resume=resume, evaluator=HashEvaluator(), suite=suite())
    return [record for record in read_metrics(folder / "metrics.jsonl") if record["event"] not in ("seconds", "time")]


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], list[Any]]:
    """A run that nothing disturbs: its folder, its metrics, and the pairs that it trained on."""
    trained: list[Any] = []
    supervise = sft.supervise

    def listening(session: Any, stage: str, model: Any, pairs: Any, *rest: Any) -> None:
        trained.extend(pairs)
        supervise(session, stage, model, pairs, *rest)

    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sft, "supervise", listening)
        return folder, run(corpus, folder), trained


def test_stage_1_learns_verified_corpus_pairs_and_records_which(whole: Any, corpus: Path) -> None:
    folder, records, trained = whole
    verified = {
        pair.source: pair for pair in load_corpus(corpus) if any(one.device == "cpu" for one in pair.evaluations)
    }
    taught = [verified[extract_source(pair.answer) or ""] for pair in trained]
    assert [one.task for one in taught] == [pair.task for pair in trained]
    assert len(trained) == 8
    tokenizer = load_tokenizer(folder / "model")
    assert all(tokens_of(tokenizer, pair.prompt, pair.answer) <= 700 for pair in trained)

    [said] = [record for record in records if record["event"] == "corpus"]
    left = said["left_out"]
    assert said["examples"] == len(trained)
    assert said["tasks"] == 3
    assert len({one.key for one in taught}) <= said["pairs"] <= 3 * said["tasks"]
    assert said["pairs"] + sum(left.values()) == len(load_corpus(corpus))
    assert left["surplus"] + left.get("too_long", 0) == len(verified) - said["pairs"]
    assert left["unverified"] > 0
    assert "trained_on_test" not in said
    note = read_corpus_note(folder)
    assert note is not None
    assert (note.tasks, note.sha256) == (tuple(sorted(TASKS)), said["sha256"])
    assert {one.id for one in corpus_tasks(folder)} == set(TASKS)
    assert [record["step"] for record in records if record["event"] == "step"] == [1, 2, 3, 4]
    assert {record["task"] for record in records if record["event"] == "answer"} >= {HELD_OUT}


def test_a_context_too_short_for_every_pair_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"too long.*raise max_length"):
        run(corpus, tmp_path / "run", sft={"trl": {"max_length": 64}})


def test_an_interrupted_run_resumes_with_the_same_corpus_only(
    whole: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, folder = tmp_path / "mine.parquet", tmp_path / "run"
    mine.write_bytes(corpus.read_bytes())
    step = Keeper.on_step_end

    def cut(self: Keeper, args: Any, state: Any, control: Any, **more: Any) -> None:
        step(self, args, state, control, **more)
        if state.global_step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Keeper, "on_step_end", cut)
        run(mine, folder)

    Corpus(list(load_corpus(corpus))[1:]).save(mine)
    with pytest.raises(RunError, match=r"has changed since the run .*put the old one back"):
        run(mine, folder, resume=True)

    mine.write_bytes(corpus.read_bytes())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(champions, "confirm", interrupted)
        run(mine, folder, resume=True)
    mine.unlink()  # stage 1 is finished and needs it no more
    assert run(mine, folder, resume=True) == whole[1]
    weights = "stages/sft/model/model.safetensors"
    assert (folder / weights).read_bytes() == (whole[0] / weights).read_bytes()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_on_kernelbench_pairs_is_marked(corpus: Path, tmp_path: Path) -> None:
    renamed = [
        pair.model_copy(update={"task": "kernelbench/level1/12", "split": "test"})
        for pair in load_corpus(corpus)
        if pair.task == TASKS[0]
    ]
    Corpus(renamed).save(tmp_path / "test.jsonl")
    held = Suite("starter", [one for one in suite() if one.id != TASKS[0]])
    asked = settings(tmp_path / "test.jsonl", train_on_test=True, sft={"trl": {"max_steps": 2}})
    train(asked, tmp_path / "run", evaluator=HashEvaluator(), suite=held)
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    marked = [record for record in records if record["event"] in ("corpus", "answer", "table")]
    assert {record["event"] for record in marked} == {"corpus", "answer", "table"}
    assert all(record["trained_on_test"] for record in marked)
    [seen] = corpus_tasks(tmp_path / "run")
    assert seen.overlaps == "kernelbench/level1/12"


@pytest.mark.parametrize("chat", [False, True])
def test_tokens_are_counted_as_trl_counts_them(tmp_path: Path, chat: bool) -> None:
    model = make_embedded(tmp_path / "model", tuple(suite().train), EmbeddedModel.model_validate(SHAPE), seed=0)
    if chat:
        (model / "chat_template.jinja").write_text(
            "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>\n{% endif %}"
        )
    texts = [("a prompt\n", "and its answer 123"), ("x" * 50, "class ModelNew:\n    pass\n" * 9)]
    tokenizer = load_tokenizer(model)
    rows = [
        {"prompt": as_messages(prompt), "completion": [{"role": "assistant", "content": answer}]}
        if chat
        else {"prompt": prompt, "completion": answer}
        for prompt, answer in texts
    ]
    table = {"max_steps": 1, "max_length": None, "logging_steps": 1, "save_steps": 1}
    config = arguments(SFTConfig, table, folder=tmp_path / "trainer", seed=0, use_cpu=True)
    trainer = SFTTrainer(
        model=str(model), args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    dataset: Any = trainer.train_dataset
    assert [len(row["input_ids"]) for row in dataset] == [tokens_of(tokenizer, *text) for text in texts]
