"""Stage 2: it samples answers, keeps the correct ones, and trains on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cudal1_agent.config import merged
from cudal1_agent.data.examples import Pair
from cudal1_agent.data.prompts import build_answer
from cudal1_agent.run.checkpoints import newest
from cudal1_agent.run.folder import METRICS
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.run.session import Session
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import Settings
from cudal1_agent.stages.self_train import KEPT, chosen, collect, learn, repeated
from doubles.training import SMALL_MODEL, HashEvaluator, RefusingEvaluator, ScriptedPolicy, session

TRL = {"max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "save_steps": 1, "max_length": 256}
SETTINGS = Settings.model_validate(
    merged(
        Settings().model_dump(),
        {
            "seed": 5,
            "device": "cpu",
            "embedded": SMALL_MODEL.model_dump(),
            "self_train": {"samples": 2, "temperature": 0.7, "trl": TRL},
            "evaluation": {"max_new_tokens": 16},
        },
    )
)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Session]:
    with session(tmp_path / "run", SETTINGS) as opened:
        yield opened


def iteration(run: Session, number: int = 0) -> dict[str, Any]:
    path = run.folder.path
    return {"model": path / "model", "folder": path / "stages" / "self_train" / str(number), "iteration": number}


def scripted(run: Session, monkeypatch: pytest.MonkeyPatch) -> ScriptedPolicy:
    """Let each task's first two variants be the policy's answers."""
    answers = [[build_answer("a", "b", one.source) for one in task.variants[:2]] for task in run.tasks.train]
    policy = ScriptedPolicy(answers)
    monkeypatch.setattr(type(run), "policy", lambda *_: policy)
    return policy


def kept(folder: Path) -> list[dict[str, str]]:
    return json.loads((folder / KEPT).read_bytes())


def test_correct_answers_are_kept_with_the_prompt_that_they_answer(
    run: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, where = scripted(run, monkeypatch), iteration(run)
    collect(run, None, **where)
    prompts = run.prompts(where["model"])
    expected = [
        {"task": task.id, "prompt": prompts(task), "answer": build_answer("a", "b", one.source)}
        for task in run.tasks.train
        for one in task.variants[:2]
        if HashEvaluator().evaluate(task, one.source).correct
    ]
    assert 0 < len(expected) < 6, "some answers of the script must be correct and some not"
    assert kept(where["folder"]) == expected
    assert policy.prompts == [prompts(task) for task in run.tasks.train]
    assert policy.closed


def test_each_iteration_samples_with_its_own_seed(run: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = scripted(run, monkeypatch)
    for number in range(2):
        collect(run, None, **iteration(run, number))
    assert policy.samplings == [
        {"temperature": 0.7, "max_new_tokens": 16, "seed": 5},
        {"temperature": 0.7, "max_new_tokens": 16, "seed": 6},
    ]


def test_metrics_count_answers_and_solved_tasks(run: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(run, monkeypatch)
    collect(run, None, **iteration(run))
    pairs = kept(iteration(run)["folder"])
    [record] = read_metrics(run.folder.path / METRICS)
    assert record == {
        "event": "self_train",
        "stage": "self_train",
        "iteration": 0,
        "answers": 6,
        "correct": len(pairs),
        "kept": len(pairs),
        "tasks": 3,
        "tasks_solved": len({pair["task"] for pair in pairs}),
    }


def test_a_repeated_collection_finds_its_verdicts_in_the_archive(run: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(run, monkeypatch)
    collect(run, None, **iteration(run))
    measured, first = run.verdicts.measured, kept(iteration(run)["folder"])
    collect(run, None, **iteration(run))
    assert measured == 6
    assert run.verdicts.measured == measured
    assert kept(iteration(run)["folder"]) == first


def test_a_collection_leaves_out_a_task_that_cannot_be_judged(run: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(run, monkeypatch)
    refused = run.tasks.train[0].id
    run.verdicts = Verdicts(RefusingEvaluator([refused]), run.folder.archive)
    collect(run, None, **iteration(run))
    tasks = {pair["task"] for pair in kept(iteration(run)["folder"])}
    assert tasks
    assert refused not in tasks


def test_training_changes_the_model_and_reports_each_step(run: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(run, monkeypatch)
    where = iteration(run)
    collect(run, None, **where)
    learn(run, None, **where)
    trained = where["folder"] / "model"
    assert (trained / WEIGHTS).read_bytes() != (where["model"] / WEIGHTS).read_bytes()
    steps = [record for record in read_metrics(run.folder.path / METRICS) if record["event"] == "step"]
    assert [(record["stage"], record["step"]) for record in steps] == [("self_train", 1), ("self_train", 2)]


def test_training_resumed_from_a_checkpoint_gives_the_same_model(run: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(run, monkeypatch)
    where = iteration(run)
    collect(run, None, **where)
    learn(run, None, **where)
    whole = (where["folder"] / "model" / WEIGHTS).read_bytes()
    trainer = where["folder"] / "trainer"
    last = newest(trainer)
    assert last is not None
    (last.path / "cudal1.json").unlink()  # as if the process had been killed while it wrote this checkpoint
    checkpoint = newest(trainer)
    assert checkpoint is not None
    assert checkpoint.path.name == "checkpoint-1"
    learn(run, checkpoint, **where)
    assert (where["folder"] / "model" / WEIGHTS).read_bytes() == whole


def test_without_a_correct_answer_the_model_stays_as_it_is(run: Session) -> None:
    """An untrained model writes no program at all."""
    where = iteration(run)
    collect(run, None, **where)
    assert kept(where["folder"]) == []
    learn(run, None, **where)
    assert (where["folder"] / "model" / WEIGHTS).read_bytes() == (where["model"] / WEIGHTS).read_bytes()
    assert not (where["folder"] / "trainer").exists()
    assert (where["folder"] / "model" / "tokenizer.json").is_file()


def test_every_pass_repeats_every_pair_once_in_an_order_drawn_from_the_seed() -> None:
    pairs = [Pair("task", "prompt", str(number)) for number in range(5)]
    drawn = repeated(pairs, 12, seed=1)
    assert Counter(drawn[:5]) == Counter(drawn[5:10]) == Counter(pairs)
    assert len(drawn) == 12
    assert drawn == repeated(pairs, 12, seed=1)
    assert drawn != repeated(pairs, 12, seed=2)


def test_each_program_of_a_task_is_learnt_once_and_no_task_more_often_than_the_cap() -> None:
    def pair(task: str, code: str) -> Pair:
        return Pair(task, "prompt", build_answer("a", "b", code))

    same = [pair("t", "x = 1\n"), pair("t", "x  =  1  # again\n")]
    other = [pair("t", f"x = {number}\n") for number in range(2, 6)]
    bare = Pair("t", "prompt", "x = 9\n")
    elsewhere = pair("u", "x = 1\n")
    references = {"t": "y = 1\n", "u": "y = 1\n"}
    assert chosen([bare, *same, *other, elsewhere], 3, references) == [same[0], *other[:2], elsewhere]


def test_copies_of_the_reference_are_not_learnt() -> None:
    reference = "class Model(nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    copy = Pair("t", "prompt", build_answer("a", "b", f"{reference}\n\nclass ModelNew(Model):\n    pass\n"))
    other = Pair(
        "t", "prompt", build_answer("a", "b", reference.replace("Model", "ModelNew").replace("x + 1", "1 + x"))
    )
    assert chosen([copy, other], 4, {"t": reference}) == [other]
