"""A stream of training pairs: the same everywhere, resumed at any place, with little padding, never test data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cudal1_agent.config import with_flags
from cudal1_agent.data import stream as streams
from cudal1_agent.data.prompts import parse_answer
from cudal1_agent.data.stream import Choices, Place, Stream, answers, make_stream, streamed
from cudal1_agent.errors import ConfigError, CorpusError
from cudal1_agent.policies.embedded import make_tokenizer
from cudal1_agent.run.checkpoints import newest
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.settings import Settings
from cudal1_agent.stages import streaming
from cudal1_agent.stages.sft import run_sft
from cudal1_agent.stages.streaming import BATCHES, Batches, Encoder, StreamState
from cudal1_data import Task, UnknownSuiteError
from cudal1_data.copies import is_copy
from cudal1_data.corpus.build import render
from cudal1_data.generator.make import make_task
from cudal1_data.generator.request import parse_request
from cudal1_env import extract_source
from doubles.counting import Counting
from doubles.training import SMALL_MODEL, session

NOTHING: frozenset[str] = frozenset()


def made(text: str | tuple[str, ...] = "generated:softmax+elementwise?seed=3", **more: Any) -> Stream:
    values: dict[str, Any] = {
        "device": "cpu",
        "style": "compact",
        "contexts": (0, 1, 2),
        "per_task": 4,
        "have": NOTHING,
    }
    return make_stream(text, **{**values, **more})


def test_only_kernels_of_taught_backends_are_answers() -> None:
    both, one = (made(device="cuda", have={"triton"}, per_task=8, taught=taught) for taught in ((), ("triton",)))
    programs = both.programs(0)
    assert programs == one.programs(0)
    assert {program.backend for program in answers(programs)} == {"triton", "cuda-nvrtc"}
    assert {program.backend for program in answers(programs, ("triton",))} == {"triton"}
    assert answers(programs, ("cuda-load-inline",)) == []
    assert 0 < len(one.pairs(0)) < len(both.pairs(0))


def test_the_tasks_of_several_streams_alternate() -> None:
    first, second = made("generated:softmax?seed=3"), made("generated:layers?seed=3")
    both = made(("generated:softmax?seed=3", "generated:layers?seed=3"))
    assert both.seed == first.seed
    for number in range(6):
        one = (first, second)[number % 2].programs(number // 2)
        assert [program.source for program in both.programs(number)] == [program.source for program in one]


@pytest.fixture
def rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the pairs of each task of a test's one stream; other tests show that they are the same each time."""
    kept: dict[int, list[Choices]] = {}
    render_pairs = Stream.pairs

    def pairs(self: Stream, number: int) -> list[Choices]:
        if number not in kept:
            kept[number] = render_pairs(self, number)
        return kept[number]

    monkeypatch.setattr(Stream, "pairs", pairs)


def first(stream: Stream, count: int, *, start: Place = Place(), workers: int = 0) -> list[Any]:  # noqa: B008  # frozen
    return list(islice(streamed(stream, start, tuple, workers=workers), count))


def test_pairs_are_whole_answers_to_their_prompts_and_resume_at_any_place() -> None:
    found = first(made(), 30)
    for _, choices in found:
        pair = choices[0]
        assert parse_answer(pair.answer).complete
        source = extract_source(pair.answer)
        assert source is not None
        assert "ModelNew" in source
        counts = [choice.prompt.count("\ncode") for choice in choices]
        assert counts == sorted(counts, reverse=True), "each choice shows one exemplar less"
    for place in (0, 7, 19):
        assert first(made(), 10, start=found[place][0]) == found[place : place + 10]
    assert found != first(made("generated:softmax+elementwise?seed=4"), 30)


def test_programs_of_a_task_come_from_the_generator_that_renders_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(task: Task, seed: int, **how: Any) -> Iterator[Any]:
        for number, pair in enumerate(render(task, seed, **how)):
            asked.append(number)
            yield pair

    monkeypatch.setattr(streams, "render", counted)
    stream = made("generated:softmax?seed=3", per_task=3, device="cuda")
    found = next(programs for number in range(40) if (programs := stream.programs(number)))
    assert len(found) == 3
    assert max(asked) == 2, "nothing is rendered that is not learnt"
    number = int(found[0].task.id.partition("@")[0].rpartition("-")[2])
    asked.clear()
    assert made("generated:softmax?seed=3", device="cuda", held_out=(found[0].task,)).programs(number) == []
    assert asked == [0], "test data costs one program"


@pytest.mark.slow
def test_workers_change_nothing() -> None:
    assert first(made(), 40, workers=2) == first(made(), 40)


def test_test_data_and_held_out_programs_are_never_streamed() -> None:
    whole = {pair.task for _, choices in first(made(), 30) for pair in choices}
    tasks = [make_task(family, 3, number) for number in range(40) for family in ("softmax", "elementwise")]
    splits = {task.id: task.split for task in tasks}
    assert {splits[name] for name in whole} == {"train"}
    held = next(task for task in tasks if task.id in whole)
    without = {pair.task for _, choices in first(made(held_out=(held,)), 30) for pair in choices}
    assert held.id not in without


def test_respelled_tasks_have_their_own_style_in_reference_and_program() -> None:
    usual, other = made(per_task=2, device="cuda"), made(per_task=2, device="cuda", respelled=1.0)
    pairs = [[stream.pairs(number) for number in range(30)] for stream in (usual, other)]
    assert [len(one) for one in pairs[0]] == [len(one) for one in pairs[1]]
    first, second = ([choices[0] for task in one for choices in task] for one in pairs)
    assert not any("nn.Sigmoid()" in one.prompt for one in first)
    assert any("nn.Sigmoid()" in one.prompt and "nn.Sigmoid()" in one.answer for one in second)


def test_a_respelled_reference_that_is_test_data_is_never_streamed() -> None:
    number, (one, *_) = next((k, found) for k in range(30) if (found := made(respelled=1.0).programs(k)))
    held = one.task.model_copy(update={"id": "file/held"})
    assert made(respelled=1.0, held_out=(held,)).programs(number) == []
    assert made(held_out=(held,)).programs(number) != [], "the usual spelling is another text"


def test_a_share_of_the_tasks_is_respelled() -> None:
    streams = [made(per_task=1, respelled=share) for share in (0.0, 0.5)]
    texts = [[one.task.source for number in range(30) for one in stream.programs(number)] for stream in streams]
    same = sum(one == two for one, two in zip(*texts, strict=True))
    assert 0.2 * len(texts[0]) < same < 0.8 * len(texts[0])


def taught(stream: Stream) -> set[str]:
    return {program.task.id for number in range(40) for program in stream.programs(number)}


@pytest.mark.slow
def test_a_stream_obeys_the_split_of_its_text() -> None:
    text = "softmax+elementwise?n=40&seed=3&split_by=operators"
    training = {task.id for task in parse_request(text).tasks() if task.split == "train"}
    assert taught(made(f"generated:{text}", per_task=1)) <= training
    assert not taught(made(per_task=1)) <= training, "otherwise the split makes no difference here"
    without = taught(made("generated:softmax+elementwise?seed=3&held_out=softmax", per_task=1))
    assert {name.partition("-")[0] for name in without} == {"generated/elementwise"}


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("starter", ConfigError, "name generated tasks, for example 'generated"),
        ("generated:sofmax", UnknownSuiteError, "softmax"),
        ("generated?sed=1", UnknownSuiteError, "sed"),
    ],
)
def test_a_text_that_names_no_stream_is_refused(text: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        made(text)


def test_a_stream_that_yields_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EMPTY", 8)
    tasks = tuple(make_task("softmax", 3, number) for number in range(8))
    with pytest.raises(CorpusError, match=r"yields nothing: 8 tasks in a row.*other families"):
        first(made("generated:softmax?seed=3", held_out=tasks), 1)


def tokenizer(stream: Stream) -> Any:
    texts = [text for _, choices in first(stream, 20) for text in (choices[0].prompt, choices[0].answer)]
    return make_tokenizer(texts, vocabulary=600, context=4096)


@pytest.mark.slow
@pytest.mark.usefixtures("rendered_once")
def test_batches_of_like_length_are_padded_by_less_than_a_tenth_and_resume_exactly() -> None:
    stream = made("generated?seed=0")
    encode = Encoder(tokenizer(stream), chat={}, max_prompt=4096, max_length=4096)
    batches = Batches(stream, encode, 4, 0)
    rows = list(islice(batches(), 4 * BATCHES + 40))
    lengths = [[len(row["input_ids"]) for row in rows[start : start + 4]] for start in range(0, 4 * BATCHES, 4)]
    assert 1 - sum(map(sum, lengths)) / sum(4 * max(batch) for batch in lengths) < 0.1
    for row in rows[:5]:
        start = next(place for place, label in enumerate(row["labels"]) if label != -100)
        assert 0 < start < len(row["labels"])
        assert row["labels"][start:] == row["input_ids"][start:]
    for used in (12, 4 * BATCHES, 4 * BATCHES + 8):
        state = StreamState.model_validate_json(batches.state(used).model_dump_json())
        again = Batches(stream, encode, 4, 0, start=state)
        assert list(islice(again(), 20)) == rows[used : used + 20]


@pytest.mark.slow
def test_the_next_block_is_rendered_while_one_is_trained_on(tmp_path: Path) -> None:
    batches = Batches(made("generated:softmax?seed=3"), Counting(tmp_path), 4, 1)
    rows = batches()
    try:
        next(rows)
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 * 4 * BATCHES and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(list(tmp_path.iterdir())) >= 2 * 4 * BATCHES
    finally:
        rows.close()


@pytest.mark.slow
def test_exemplars_are_dropped_until_an_example_fits_and_too_long_ones_are_left_out() -> None:
    stream = made(contexts=(2,))
    words = tokenizer(stream)
    whole = Encoder(words, chat={}, max_prompt=4096, max_length=4096)
    pairs = [choices for _, choices in first(stream, 20) if len(choices) > 1]
    lengths = [len((whole(choices[0]) or {})["input_ids"]) for choices in pairs]
    shorter = [len((whole(choices[-1]) or {})["input_ids"]) for choices in pairs]
    assert all(short < long for short, long in zip(shorter, lengths, strict=True))
    limit = max(shorter)
    batches = Batches(stream, Encoder(words, chat={}, max_prompt=4096, max_length=limit), 2, 0)
    rows = list(islice(batches(), 2 * BATCHES))
    assert max(len(row["input_ids"]) for row in rows) <= limit


def test_a_stream_of_which_nothing_fits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LONG", 8)
    batches = Batches(made(), lambda pair: None, 2, 0)
    with pytest.raises(CorpusError, match=r"too long even without exemplars; raise max_length"):
        next(batches())


@pytest.mark.slow
@pytest.mark.usefixtures("rendered_once")
def test_training_on_a_stream_resumed_from_a_checkpoint_gives_the_same_model(tmp_path: Path) -> None:
    trl = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "logging_steps": 1,
        "save_steps": 2,
        "max_length": 3000,
    }
    flags = {
        "device": "cpu",
        "embedded": SMALL_MODEL.model_dump(),
        "prompt": {"max_tokens": 2900},
        "sft": {"stream": "generated:softmax+elementwise?seed=3", "workers": 0, "trl": trl},
    }
    with session(tmp_path / "run", with_flags(Settings(), flags)) as run:
        model, folder = run.folder.path / "model", tmp_path / "stage"
        run_sft(run, None, model=model, folder=folder)
        weights = folder / "model" / "model.safetensors"
        whole = weights.read_bytes()
        lines = [record for record in read_metrics(run.folder.path / "metrics.jsonl") if record["event"] == "step"]
        assert len(lines) == 4
        assert all(0 <= line["padding_share"] < 0.1 for line in lines)
        assert whole != (model / "model.safetensors").read_bytes()
        last = newest(folder / "trainer")
        assert last is not None
        (last.path / "cudal1.json").unlink()
        checkpoint = newest(folder / "trainer")
        assert checkpoint is not None
        assert checkpoint.mark.extra["stream"]["used"] == 4
        run_sft(run, checkpoint, model=model, folder=folder)
        assert weights.read_bytes() == whole
        again = [record for record in read_metrics(run.folder.path / "metrics.jsonl") if record["event"] == "step"]
        assert again[-2:] == lines[-2:]


def test_answers_are_kernels_where_there_are_any_and_never_copies_of_the_reference() -> None:
    on_gpu = made("generated:softmax+elementwise?seed=3", device="cuda", per_task=8, have=frozenset({"triton"}))
    programs = next(found for number in range(50) if (found := on_gpu.programs(number)))
    learnt = answers(programs)
    assert {one.backend for one in programs} >= {"pytorch", "triton", "cuda-nvrtc"}
    assert {one.backend for one in learnt} == {"triton", "cuda-nvrtc"}
    on_cpu = made(per_task=8)
    programs = next(found for number in range(50) if (found := on_cpu.programs(number)))
    copies = [one for one in programs if is_copy(one.source, one.task.source)]
    assert copies, "they may be shown as exemplars"
    assert [one for one in programs if one not in copies] == answers(programs)
