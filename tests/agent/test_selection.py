"""Which pairs of a corpus are learnt, which are left out and why, and a stage 1 that learns from one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent.corpora import built, judged
from cudal1_agent.data import decontamination
from cudal1_agent.data.examples import pairs_from
from cudal1_agent.data.prompts import build_prompt, parse_answer
from cudal1_agent.data.selection import CorpusSelection, Exclusion, listed, select_pairs
from cudal1_agent.errors import CorpusError
from cudal1_agent.settings import SftSettings
from cudal1_data import Task
from cudal1_data.corpus import Corpus, Pair
from cudal1_data.errors import DataError
from cudal1_data.hashes import digest, program_hash
from cudal1_data.sources.kernelbench import Note
from cudal1_env.records import Status
from doubles.training import task as toy

ALL = SftSettings(unverified=True)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return built("cuda")


def saved(corpus: Corpus, folder: Path, name: str = "corpus.jsonl") -> Path:
    corpus.save(folder / name)
    return folder / name


def verified(pairs: Sequence[Pair], folder: Path, **changes: Any) -> Path:
    """A file of these pairs with other facts about their tasks, all verified."""
    changed = [pair.model_copy(update=changes) for pair in pairs]
    return saved(judged(changed, [(pair, 2.0) for pair in changed], folder), folder)


def correct(pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair.label == "correct"]


def sources(selection: CorpusSelection) -> set[str]:
    return {program.source for programs in selection.tasks for program in programs}


def test_only_verified_pairs_are_learnt(pairs: list[Pair], tmp_path: Path) -> None:
    first, second, third, fourth, *rest = correct(pairs)
    failed = next(pair for pair in pairs if pair.label != "correct")
    verdicts = [(first, 2.0), (second, Status.WRONG_OUTPUT), (third, 2.0), (third, Status.TIMEOUT), (failed, 1.5)]
    path = saved(judged(pairs, verdicts, tmp_path), tmp_path)
    selection = select_pairs(path, SftSettings(), "cuda")
    failures = len(pairs) - len(correct(pairs))
    assert sources(selection) == {first.source}
    assert selection.left_out == {
        Exclusion.FAILURE: failures,
        Exclusion.REFUTED: 2,
        Exclusion.UNVERIFIED: len(rest) + 1,
    }
    more = select_pairs(path, ALL, "cuda")
    assert sources(more) == {pair.source for pair in (first, fourth, *rest)}
    assert more.left_out == {Exclusion.FAILURE: failures, Exclusion.REFUTED: 2}


def test_verified_means_on_the_device_that_the_run_trains_for(pairs: list[Pair], tmp_path: Path) -> None:
    first, second, *rest = correct(pairs)
    path = saved(judged([first, second], [(first, 2.0)], tmp_path, device="cpu"), tmp_path)
    assert sources(select_pairs(path, SftSettings(), "cpu")) == {first.source}
    with pytest.raises(
        CorpusError, match=r"learnt on cuda .*left out: 2 unverified.*cudal1-env verify .*--device cuda"
    ):
        select_pairs(path, SftSettings(), "cuda")
    # Without a verdict, a program that needs a GPU is not taken on trust for the CPU.
    path = saved(Corpus([first, second, *rest]), tmp_path)
    taken = [pair for pair in correct(pairs) if pair.backend in ("pytorch", "torch-compile")]
    taken = [pair for pair in taken if "CUDAGraph" not in pair.source]
    assert sources(select_pairs(path, ALL, "cpu")) == {pair.source for pair in taken}
    # A verdict of the other device refutes what this one has not judged, and not what it has.
    first, second = (pair for pair in taken[:2])
    corpus = judged([first, second], [(first, Status.RUNTIME_ERROR), (second, Status.CRASH)], tmp_path, device="cpu")
    path = saved(judged(corpus, [(first, 2.0)], tmp_path), tmp_path)
    assert sources(select_pairs(path, ALL, "cuda")) == {first.source}


def test_an_unstable_verdict_neither_verifies_nor_refutes_a_pair(pairs: list[Pair], tmp_path: Path) -> None:
    first, second, *_ = correct(pairs)
    verdicts = [(first, Status.UNSTABLE), (first, 2.0), (second, Status.UNSTABLE)]
    selection = select_pairs(saved(judged([first, second], verdicts, tmp_path), tmp_path), SftSettings(), "cuda")
    assert sources(selection) == {first.source}
    assert selection.left_out == {Exclusion.UNVERIFIED: 1}


def test_backends_alternate_with_the_fastest_first(pairs: list[Pair], tmp_path: Path) -> None:
    mine = [pair for pair in correct(pairs) if pair.task == correct(pairs)[0].task]
    speedups = {pair.key: 1.0 + number / 8 for number, pair in enumerate(mine)}
    corpus = judged(mine, [(pair, speedups[pair.key]) for pair in mine], tmp_path)
    selection = select_pairs(saved(corpus, tmp_path), SftSettings(), "cuda")
    [programs] = selection.tasks
    by_source = {pair.source: pair for pair in mine}
    ways = [by_source[program.source].backend for program in programs]
    count = len(set(ways))
    assert count >= 4
    assert len(set(ways[:count])) == count, "each backend has a program before any has a second one"
    best = [max(speedups[pair.key] for pair in mine if pair.backend == way) for way in ways[:count]]
    assert [program.speedup for program in programs[:count]] == pytest.approx(best)
    assert best == sorted(best, reverse=True)
    chosen, left_out = selection.choose(3)
    assert chosen == list(programs[:3])
    assert left_out == {Exclusion.SURPLUS: len(mine) - 3}
    lines = (tmp_path / "corpus.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(reversed(lines)))
    assert select_pairs(tmp_path / "other.jsonl", SftSettings(), "cuda").tasks == selection.tasks


def test_each_template_of_a_backend_comes_before_a_second_program_of_one(pairs: list[Pair], tmp_path: Path) -> None:
    mine = [pair for pair in correct(pairs) if pair.task == correct(pairs)[0].task][:4]
    named = [
        pair.model_copy(update={"backend": "triton", "template": template})
        for pair, template in zip(mine, ("rows", "rows", "rows", "elements"), strict=True)
    ]
    corpus = judged(named, list(zip(named, (4.0, 3.0, 2.0, 1.0), strict=True)), tmp_path)
    [programs] = select_pairs(saved(corpus, tmp_path), SftSettings(), "cuda").tasks
    assert [program.speedup for program in programs] == [4.0, 1.0, 3.0, 2.0]


def test_speedups_of_another_protocol_version_are_not_scores(pairs: list[Pair], tmp_path: Path) -> None:
    pair = correct(pairs)[0]
    path = saved(judged([pair], [(pair, 2.0)], tmp_path, protocol="0"), tmp_path)
    [[program]] = select_pairs(path, SftSettings(), "cuda").tasks
    assert program.speedup is None


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("train_on_test", [False, True])
def test_validation_and_test_splits_are_left_out(
    pairs: list[Pair], tmp_path: Path, split: str, train_on_test: bool
) -> None:
    some = correct(pairs)[:2]
    with pytest.raises(CorpusError, match=r"left out: 2 split\); build a corpus from tasks that are marked"):
        select_pairs(verified(some, tmp_path, split=split), SftSettings(), "cuda", train_on_test=train_on_test)


@pytest.mark.parametrize(
    "changes",
    [
        {"overlaps": "kernelbench/level1/12"},
        {"task": "kernelbench/level1/12", "split": "test"},
        {"task": "cuda-l1/level1/12@M=64", "split": "train"},
    ],
)
def test_kernelbench_pairs_are_left_out_without_train_on_test(
    pairs: list[Pair], tmp_path: Path, changes: dict[str, str]
) -> None:
    some = correct(pairs)[:2]
    path = verified(some, tmp_path, **changes)
    with pytest.raises(CorpusError, match=r"2 split|2 kernelbench.*--train-on-test"):
        select_pairs(path, SftSettings(), "cuda")
    selection = select_pairs(path, SftSettings(), "cuda", train_on_test=True)
    assert sources(selection) == {pair.source for pair in some}
    assert selection.kernelbench == {changes.get("task", some[0].task): "kernelbench/level1/12"}
    assert selection.note().trained_on_test
    assert not select_pairs(verified(some, tmp_path), SftSettings(), "cuda", train_on_test=True).note().trained_on_test


def test_a_renamed_kernelbench_task_is_recognised_by_its_text(
    pairs: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = correct(pairs)[:1]
    text = "# Another comment.\n" + some[0].reference
    note = Note(program=program_hash(text), source_sha256=digest(text), category="none")
    monkeypatch.setattr(decontamination, "notes", lambda: {"level9/1": note})
    path = verified(some, tmp_path, task="mine/renamed")
    with pytest.raises(CorpusError, match="1 kernelbench"):
        select_pairs(path, SftSettings(), "cuda")
    assert select_pairs(path, SftSettings(), "cuda", train_on_test=True).kernelbench == {
        "mine/renamed": "kernelbench/level9/1"
    }


def test_tasks_that_the_run_evaluates_on_are_left_out(pairs: list[Pair], tmp_path: Path) -> None:
    path = verified(correct(pairs), tmp_path)
    tasks = {pair.task: pair for pair in correct(pairs)}
    by_name, by_text, by_size = tasks.values()
    held = toy("x", "x", [])

    def names(held_out: Sequence[Task] = (), sizes: Sequence[Task] = (), **more: bool) -> set[str]:
        selection = select_pairs(path, SftSettings(), "cuda", held_out=held_out, sizes=sizes, **more)
        count = sum(pair.task not in selection.note().tasks for pair in correct(pairs))
        assert selection.left_out.get(Exclusion.EVALUATED, 0) == count
        return set(tasks) - set(selection.note().tasks)

    renamed = held.model_copy(update={"source": re.sub(r"= \d+$", "= 9", by_text.reference, flags=re.MULTILINE)})
    assert renamed.source != by_text.reference
    assert names([held.model_copy(update={"id": by_name.task})]) == {by_name.task}
    assert names([renamed]) == {by_text.task}, "the same program at any size"
    same_size = held.model_copy(update={"source": by_size.reference})
    assert names(sizes=[same_size, renamed]) == {by_size.task}, "only the held-out size itself"
    assert names([renamed], train_on_test=True) == {by_text.task}
    assert names() == set()


def test_the_next_pair_replaces_one_that_is_too_long(pairs: list[Pair], tmp_path: Path) -> None:
    selection = select_pairs(verified(correct(pairs), tmp_path), SftSettings(), "cuda")
    lengths = sorted(len(program.source) for programs in selection.tasks for program in programs)
    limit = lengths[len(lengths) // 2]
    chosen, left_out = selection.choose(2, lambda program: len(program.source) <= limit)
    assert all(len(program.source) <= limit for program in chosen)
    assert left_out[Exclusion.TOO_LONG] > 0
    assert len(chosen) + sum(left_out.values()) == len(correct(pairs))
    for programs in selection.tasks:
        fitting = [program for program in programs if len(program.source) <= limit]
        assert [one for one in chosen if one.task == programs[0].task] == fitting[:2]
    with pytest.raises(CorpusError, match=r"too long\); raise max_length"):
        selection.choose(2, lambda _: False)


def test_prompts_show_measured_speedups_that_fit(pairs: list[Pair], tmp_path: Path) -> None:
    mine = [pair for pair in correct(pairs) if pair.task == correct(pairs)[0].task]
    speedups = {pair.source: 1.0 + number / 4 for number, pair in enumerate(mine[:-1])}
    corpus = judged(mine, [(pair, speedups[pair.source]) for pair in mine[:-1]], tmp_path)
    programs, _ = select_pairs(saved(corpus, tmp_path), ALL, "cuda").choose(20)

    def prompt_of(task: Task, shown: Any) -> str:
        assert all(speedups[one.source] == one.speedup for one in shown), "what was not measured is not shown"
        return build_prompt(task.source, shown, style="compact")

    longest = len(prompt_of(programs[0].task, [])) + max(map(len, speedups)) + 500  # two short ones, or one
    made = pairs_from(
        programs, prompt_of, contexts=(2,), count=40, seed=0, fits=lambda prompt, _: len(prompt) <= longest
    )
    numbers = [len(re.findall(r"^code\d \(", pair.prompt, re.MULTILINE)) for pair in made]
    assert set(numbers) == {0, 1, 2}, "the slowest and the unmeasured program have nothing slower to show"
    for pair in made:
        scores = [float(score) for score in re.findall(r"^code\d \(([\d.]+)\)", pair.prompt, re.MULTILINE)]
        if scores:
            best = f"code{scores.index(max(scores)) + 1} is fastest ({max(scores):.2f})."
            assert parse_answer(pair.answer).analysis.startswith(best), "the answer speaks of what the prompt shows"


def test_a_corpus_is_a_file_or_an_exported_folder(pairs: list[Pair], tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    path = saved(Corpus(correct(pairs)), folder, "pairs.parquet")
    assert select_pairs(folder, ALL, "cuda").tasks == select_pairs(path, ALL, "cuda").tasks
    with pytest.raises(CorpusError, match=r"no corpus file .*none\.parquet; name another"):
        select_pairs(tmp_path / "none.parquet", ALL, "cuda")
    with pytest.raises(CorpusError, match=r"no corpus file "):
        select_pairs(tmp_path, ALL, "cuda")
    with pytest.raises(CorpusError, match="is empty"):
        select_pairs(saved(Corpus(), tmp_path), ALL, "cuda")
    (tmp_path / "text.md").write_text("no corpus")
    with pytest.raises(DataError, match=r"\.parquet or \.jsonl"):
        select_pairs(tmp_path / "text.md", ALL, "cuda")


def test_a_pair_that_was_changed_by_hand_is_refused(pairs: list[Pair], tmp_path: Path) -> None:
    path = verified(correct(pairs)[:2], tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["source"] += "# faster\n"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(CorpusError, match="so it was changed"):
        select_pairs(path, SftSettings(), "cuda")


def test_exclusion_reasons_are_listed_as_words() -> None:
    assert listed({Exclusion.REFUTED: 2, Exclusion.TOO_LONG: 1}) == "2 refuted, 1 too long"
    assert listed({}) == "none"
