"""What cannot work is refused before anything is spent, with what to change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cudal1_agent import train as training
from cudal1_agent.config import with_flags
from cudal1_agent.data import stream
from cudal1_agent.data.tasks import choose_tasks
from cudal1_agent.errors import AgentError, ConfigError, CorpusError, PolicyError, RunError, TimeIsUpError
from cudal1_agent.policies.embedded import MARK, make_embedded
from cudal1_agent.policies.prompting import prompt_builder
from cudal1_agent.policies.transformers import LARGE, parameters_of
from cudal1_agent.preflight import Shape, check_model, check_room, check_settings, embedded_shape, estimate, shape_of
from cudal1_agent.run.deadline import Deadline, seconds_of
from cudal1_agent.run.files import write_aside
from cudal1_agent.run.folder import ARCHIVE, Mark, RunFolder
from cudal1_agent.run.fork import fork
from cudal1_agent.run.metrics import Metrics
from cudal1_agent.settings import SHAPES, Settings
from cudal1_agent.train import check_time, train
from cudal1_env import Archive
from doubles.training import SMALL_MODEL, HashEvaluator, evaluation, suite

CPU = with_flags(Settings(), {"device": "cpu"})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"contrast": {"trl": {"learning_rat": 1.0}}}, r"\[contrast.trl\].*learning_rat"),
        ({"contrast": {"trl": {"per_device_train_batch_size": 7}}}, r"\[contrast.trl\]"),
        ({"self_train": {"trl": {"max_steps": 0}}}, r"\[self_train.trl\].*max_steps"),
        ({"evaluation": {"train_tasks": 0}}, "train_tasks = 0.*set it to 1"),
        ({"peft": {"rank": 8}}, "LoraConfig does not take"),
        ({"peft": {"r": -4}}, r"r in the table \[peft\] is -4; set a whole number"),
        ({"peft": {"r": "x"}}, r"r in the table \[peft\] is 'x'; set a whole number"),
        ({"policy": {"backend": "openai", "url": "http://h/v1", "name": "m"}}, "cannot be trained"),
    ],
)
def test_settings_that_cannot_work_are_refused_and_no_run_is_begun(
    tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    settings = with_flags(CPU, flags)
    with pytest.raises(ConfigError, match=said):
        train(settings, tmp_path / "run", evaluator=HashEvaluator(), suite=suite())
    assert not (tmp_path / "run").exists()


def test_tables_of_stages_that_do_not_run_are_not_checked(tmp_path: Path) -> None:
    check_settings(with_flags(CPU, {"stages": ("sft",), "contrast": {"trl": {"learning_rat": 1.0}}}), tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"policy": {"backend": "openai"}}, "needs url and name"),
        ({"policy": {"url": "http://h/v1"}}, "has no url"),
        ({"embedded": "7b"}, "unknown shape '7b'"),
        ({"embedded": {"heads": 3}}, "hidden is 256 and heads 3.*multiple of twice the heads"),
        ({"contrast": {"clip": float("inf")}}, "contrast.clip: Input should be a finite number"),
    ],
)
def test_a_policy_without_its_address_and_an_unknown_shape_are_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_flags(Settings(), flags)


def test_a_shape_goes_by_its_name() -> None:
    assert with_flags(Settings(), {"embedded": "60m"}).embedded == SHAPES["60m"]


def brought(folder: Path, template: str | None) -> Path:
    shape = SMALL_MODEL.model_copy(update={"context": 256})
    make_embedded(folder, tuple(suite().train), shape, seed=0)
    config = json.loads((folder / "config.json").read_text())
    del config[MARK]
    (folder / "config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_model_without_template_or_with_too_short_a_context_is_refused(tmp_path: Path) -> None:
    tasks = choose_tasks(suite(), "cpu", CPU.evaluation)
    bare = brought(tmp_path / "bare", None)
    with pytest.raises(ConfigError, match="has no chat template"):
        check_model(bare, CPU, tasks, prompt_builder(bare, CPU.prompt, "cpu"))
    chat = brought(tmp_path / "chat", "{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ConfigError, match=r"longer than the model's context of 256.*max_new_tokens"):
        check_model(chat, CPU, tasks, prompt_builder(chat, CPU.prompt, "cpu"))


def test_the_shape_of_an_embedded_model_is_known_before_it_is_made(tmp_path: Path) -> None:
    made = make_embedded(tmp_path / "model", tuple(suite().train), SMALL_MODEL, seed=0)
    real, expected = shape_of(made), embedded_shape(SMALL_MODEL)
    assert real.parameters == parameters_of(made)
    fewer_tokens = SMALL_MODEL.vocabulary - real.vocabulary
    assert real.parameters == expected.parameters - fewer_tokens * SMALL_MODEL.hidden
    assert (real.layers, real.hidden, real.context) == (expected.layers, expected.hidden, expected.context)


def test_adapters_and_large_weights_need_less_and_beta_needs_more() -> None:
    seven = Shape(parameters=7 * LARGE, layers=32, hidden=4096, vocabulary=32000, context=4096)
    whole = estimate(seven, CPU, use_cpu=False)
    assert whole.weights_bytes == 14 * LARGE
    lora = estimate(seven, with_flags(CPU, {"peft": {"r": 16}}), use_cpu=False)
    assert lora.training_bytes < whole.training_bytes / 50
    beta = estimate(seven, with_flags(CPU, {"contrast": {"trl": {"beta": 0.1}}}), use_cpu=False)
    assert beta.weights_bytes == 2 * whole.weights_bytes


def test_no_room_on_the_disk_is_said_before_anything_is_written(tmp_path: Path) -> None:
    huge = estimate(Shape(10**15, 32, 4096, 32000, 4096), CPU, use_cpu=True)
    with pytest.raises(ConfigError, match="on the disk.*free some"):
        check_room(huge, tmp_path / "a" / "b", use_cpu=True)
    check_room(estimate(embedded_shape(SMALL_MODEL), CPU, use_cpu=True), tmp_path / "a", use_cpu=True)


def test_no_room_on_the_gpu_says_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = estimate(embedded_shape(SMALL_MODEL), CPU, use_cpu=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (needed.memory_bytes, 0))
    check_room(needed, tmp_path, use_cpu=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (needed.memory_bytes - 1, 0))
    with pytest.raises(ConfigError, match=r"GPU has .* free; train adapters .* per_device_train_batch_size"):
        check_room(needed, tmp_path, use_cpu=False)


def test_a_model_without_tokenizer_and_a_folder_without_model_are_refused(tmp_path: Path) -> None:
    bare = brought(tmp_path / "bare", None)
    for file in bare.glob("*token*"):
        file.unlink()
    tasks = choose_tasks(suite(), "cpu", CPU.evaluation)
    with pytest.raises(PolicyError, match="cannot load a tokenizer from .*name a folder"):
        check_model(bare, CPU, tasks, lambda *_: "")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="cannot load a causal language model"):
        shape_of(tmp_path / "nothing")


def test_an_embedded_model_whose_context_is_too_short_is_refused_before_stage_1(tmp_path: Path) -> None:
    settings = with_flags(CPU, {"embedded": {**SMALL_MODEL.model_dump(), "context": 256}})
    with pytest.raises(ConfigError, match=r"longer than the model's context of 256; shorten answers"):
        train(settings, tmp_path / "run", evaluator=HashEvaluator(), suite=suite())
    assert not (tmp_path / "run" / "stages").exists()


def test_a_stream_that_yields_nothing_is_refused_before_stage_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "EMPTY", 4)
    settings = with_flags(CPU, {"sft": {"stream": "generated:softmax?seed=0&held_out=softmax"}})
    with pytest.raises(CorpusError, match="the stream yields nothing: 4 tasks in a row"):
        train(settings, tmp_path / "run", evaluator=HashEvaluator(), suite=suite())
    assert not (tmp_path / "run").exists(), "a run that was refused can be begun again in the same place"


def test_a_run_of_another_protocol_is_neither_resumed_nor_forked(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.begin(path, CPU) as folder:
        old = evaluation(suite()[0], "x", 2.0)
        folder.archive.add(old.model_copy(update={"protocol": "1"}))
    with pytest.raises(RunError, match=r"judged by protocol 1 .*begin a new run with another --run-dir"):
        RunFolder.resume(path)
    write_aside(path / "marks" / "sft.table.json", Mark(metrics_bytes=0, archive_position=1).model_dump_json())
    with pytest.raises(RunError, match="judged by protocol 1"):
        fork(path, "sft", tmp_path / "new", CPU, ["sft.table"])
    assert not (tmp_path / "new").exists()


# --- time


@pytest.mark.parametrize(("text", "seconds"), [("9m", 540.0), ("1.5h", 5400.0), ("20s", 20.0)])
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["9", "0m", "-3m", "soon", "501h", "9" * 400 + "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a time above 0, such as 540s"):
        seconds_of(text)


def test_a_deadline_stops_at_a_safe_point_and_never_before_the_first() -> None:
    now_s = [0.0]
    deadline = Deadline(10.0, lambda: now_s[0])
    deadline.safe_point()
    now_s[0] = 11.0
    with pytest.raises(TimeIsUpError):
        deadline.safe_point(progress=False)
    late = Deadline(0.0, lambda: now_s[0])
    late.safe_point(progress=False)
    with pytest.raises(TimeIsUpError):
        late.safe_point()


def test_a_time_shorter_than_the_last_known_step_is_refused(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    parts = {"generating_s": 30.0, "judging_s": 20.0, "learning_s": 10.0, "waiting_s": 0.0}
    for step in (1, 2):
        metrics.append({"event": "time", "stage": "contrast", "step": step, **parts})
    metrics.close()
    check_time(tmp_path, 90.0)
    with pytest.raises(RunError, match=r"a step of contrast took 60 s.*give it 120s or more"):
        check_time(tmp_path, 30.0)


SMALL: dict[str, Any] = {
    "device": "cpu",
    "embedded": SMALL_MODEL.model_dump(),
    "prompt": {"max_tokens": 300},
    "sft": {"trl": {"max_steps": 4, "logging_steps": 1, "save_steps": 2, "max_length": 256}},
    "self_train": {"samples": 1, "trl": {"max_steps": 2, "logging_steps": 1, "save_steps": 1, "max_length": 256}},
    "contrast": {
        "trl": {
            "max_steps": 3,
            "per_device_train_batch_size": 4,
            "num_generations": 2,
            "max_completion_length": 8,
            "save_steps": 3,
        }
    },
    "evaluation": {"max_new_tokens": 16, "held_out_sizes": 1},
}


@pytest.mark.slow
def test_a_run_in_short_leases_moved_between_folders_ends_as_the_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "check_time", lambda *_: None)  # no lease is as short as these
    settings = with_flags(Settings(), SMALL)
    whole = train(settings, tmp_path / "whole", evaluator=HashEvaluator(), suite=suite())
    place, sessions = tmp_path / "lease-0", 0
    while True:
        try:
            train(
                None if sessions else settings,
                place,
                resume=bool(sessions),
                seconds=1e-6,
                evaluator=HashEvaluator(),
                suite=suite(),
            )
            break
        except TimeIsUpError:
            sessions += 1
            assert sessions < 60
            packed = shutil.make_archive(str(tmp_path / "packed"), "tar", place)
            shutil.rmtree(place)
            place = tmp_path / f"lease-{sessions}"
            shutil.unpack_archive(packed, place)
    assert sessions > 10, "each checkpoint and each phase is a safe point"
    for path in sorted(whole.glob("stages/**/model/model.safetensors")):
        assert path.read_bytes() == (place / path.relative_to(whole)).read_bytes(), path


def test_a_fork_may_be_judged_by_another_service() -> None:
    from cudal1_agent.config import differences
    from cudal1_agent.run.fork import FREE

    (line,) = differences(Settings(), with_flags(Settings(), {"judge_url": "http://127.0.0.1:8011"}))
    assert line.startswith(FREE)


@pytest.mark.slow
def test_arms_fork_from_one_stage_and_share_what_it_left(tmp_path: Path) -> None:
    from cudal1_agent.run.fork import check_fork, forked_settings

    origin = train(
        with_flags(Settings(), {**SMALL, "stages": ("sft", "self_train")}),
        tmp_path / "origin",
        evaluator=HashEvaluator(),
        suite=suite(),
    )
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (origin / "marks").iterdir())
    for arm in ("random", "evolution"):
        settings = forked_settings(origin, {"contrast": {"arm": arm, "trl": {"mask_truncated_completions": False}}})
        path = tmp_path / arm
        train(settings, path, origin=(origin, "self_train"), evaluator=HashEvaluator(), suite=suite())
        assert "not finished" not in (path / "report.html").read_text()
        assert not (path / "stages" / "sft").exists(), "only the last model is copied"
    first = (origin / "stages" / "self_train" / "0" / "model" / "model.safetensors").read_bytes()
    assert (tmp_path / "evolution" / "stages" / "contrast" / "model" / "model.safetensors").read_bytes() == first
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in (origin / "marks").iterdir())
    with pytest.raises(RunError, match=r"keeps the settings.*sft.trl.max_steps"):
        train(
            forked_settings(origin, {"sft": {"trl": {"max_steps": 5}}}),
            tmp_path / "other",
            origin=(origin, "self_train"),
            evaluator=HashEvaluator(),
            suite=suite(),
        )
    twice = forked_settings(origin, {"self_train": {"samples": 5}})
    check_fork(origin, "sft", twice)
    with pytest.raises(RunError, match=r"@self_train keeps the settings.*self_train.samples"):
        check_fork(origin, "self_train", twice)
    other = forked_settings(tmp_path / "random", {"contrast": {"arm": "none"}})
    evaluator = HashEvaluator()
    train(other, tmp_path / "none", origin=(tmp_path / "random", "seeds"), evaluator=evaluator, suite=suite())
    with Archive(tmp_path / "random" / ARCHIVE) as one, Archive(tmp_path / "none" / ARCHIVE) as two:
        seeds, kept = ([one.id for one in archive.evaluations()] for archive in (one, two))
    begun = json.loads((tmp_path / "none" / "marks" / "seeds.json").read_bytes())["archive_position"]
    assert 0 < begun < len(kept)
    assert kept[:begun] == seeds[:begun]
    assert (tmp_path / "none" / "marks" / "finished.json").is_file()
    with pytest.raises(RunError, match=r"@seeds keeps the settings.*contrast.seed_programs"):
        train(
            forked_settings(tmp_path / "random", {"contrast": {"seed_programs": 1}}),
            tmp_path / "more",
            origin=(tmp_path / "random", "seeds"),
            evaluator=HashEvaluator(),
        )
    with pytest.raises(AgentError, match="is not finished, so there is nothing to fork from"):
        train(forked_settings(origin, {}), tmp_path / "o", origin=(origin, "contrast"), evaluator=HashEvaluator())
