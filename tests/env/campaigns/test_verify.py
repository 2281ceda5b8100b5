"""Verification of a corpus: which pairs are chosen, that a cut-off run goes on, and one run on the CPU."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from cudal1_data import load_suite
from cudal1_data.corpus import Corpus, Figures, Pair, load_corpus
from cudal1_data.corpus.build import build
from cudal1_data.corpus.merge import merge
from cudal1_env.campaigns.sweep import Program
from cudal1_env.campaigns.verify import choose
from cudal1_env.cli import main
from first_stream import stored_tasks


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return list(build(stored_tasks(3, 2, "norm", "elementwise", device="cuda"), failures=2))


def test_backends_that_build_quickly_are_chosen_more_often(pairs: list[Pair]) -> None:
    chosen = choose(pairs, 80, device="cuda")
    ways = Counter(pair.backend for pair in chosen if pair.label == "correct")
    assert ways["cuda-nvrtc"] > 4 * ways["cuda-load-inline"] > 0
    assert len({pair.task for pair in chosen}) == 4
    assert any(pair.label != "correct" for pair in chosen)
    assert all(pair.label == "correct" for pair in choose(pairs, 60, device="cuda"))
    assert chosen == choose(reversed(pairs), 80, device="cuda")
    assert [pair.task for pair in chosen] == sorted(pair.task for pair in chosen)


def test_handwritten_programs_come_before_those_of_templates() -> None:
    tasks = [task for task in load_suite("starter", device="cuda") if task.id == "starter/cumsum_matmul"]
    made = [pair for pair in build(tasks, failures=0) if pair.backend == "pytorch"]
    written = {pair.key for pair in made if pair.template.startswith("starter:")}
    assert 1 < len(written) < len(made)
    assert {pair.key for pair in choose(made, len(written), device="cuda")} == written


def test_templates_alternate() -> None:
    tasks = stored_tasks(0, 2, "attention", device="cuda")
    made = list(build(tasks, backends=("triton",)))
    kinds = {(pair.task, pair.template) for pair in made}
    assert len({template for _, template in kinds}) > 1
    chosen = choose(made, len(kinds), device="cuda")
    assert {(pair.task, pair.template) for pair in chosen} == kinds


def test_programs_for_a_gpu_are_not_chosen_on_a_cpu(pairs: list[Pair]) -> None:
    chosen = choose(pairs, None, device="cpu")
    assert {pair.backend for pair in chosen if pair.label == "correct"} == {"pytorch", "torch-compile"}
    assert not any("CUDAGraph" in pair.source for pair in chosen)
    triton = next(pair for pair in pairs if pair.backend == "triton" and pair.label == "correct")
    failed = Figures(
        record="1", status="RUNTIME_ERROR", precision="training", device="cpu", machine="", created_at="", protocol="1"
    )
    assert not triton.model_copy(update={"evaluations": (failed,)}).refuted
    assert triton.model_copy(update={"evaluations": (failed.model_copy(update={"device": "cuda"}),)}).refuted


def test_a_larger_limit_keeps_the_choice_of_a_smaller_one(pairs: list[Pair]) -> None:
    few, many = (choose(pairs, limit, device="cuda") for limit in (20, 60))
    assert {pair.key for pair in few} < {pair.key for pair in many}


def test_tasks_of_which_less_was_judged_come_first(pairs: list[Pair]) -> None:
    nvrtc = [pair for pair in pairs if pair.backend == "cuda-nvrtc" and pair.label == "correct"]
    first = nvrtc[0].reference_sha256
    figures = Figures(
        record="1", status="CORRECT", precision="training", device="cuda", machine="a GPU", created_at="", protocol="1"
    )
    known = [
        pair.model_copy(update={"evaluations": (figures,)})
        for pair in [pair for pair in nvrtc if pair.reference_sha256 == first][:5]
    ]
    keys = {pair.key for pair in known}
    rest = [pair for pair in nvrtc if pair.key not in keys]
    chosen = choose([*known, *rest], 3 * 5, device="cuda")
    others = {pair.reference_sha256 for pair in nvrtc} - {first}
    assert Counter(pair.reference_sha256 for pair in chosen) == dict.fromkeys(others, 5)
    assert {pair.reference_sha256 for pair in choose([*known, *rest], 3 * 5 + 4, device="cuda")} >= {first}


def test_a_larger_limit_leaves_each_task_in_its_part(
    pairs: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(pairs)
    corpus.save(tmp_path / "corpus.jsonl")
    asked: dict[tuple[str, str], set[str]] = {}

    def swept(judge: object, programs: list[Program], file: object, **rest: object) -> list[object]:
        asked[part, limit] = {program.task.id for program in programs}
        return []

    monkeypatch.setattr("cudal1_env.campaigns.sweep.sweep", swept)
    for part in ("0/2", "1/2"):
        for limit in ("1", "2", "3", "4", "5", "200"):
            out = str(tmp_path / f"{part[0]}.jsonl")
            arguments = ["--device", "cpu", "--limit", limit, "--part", part, "--out", out]
            monkeypatch.setattr(sys, "argv", ["cudal1-env", "verify", str(tmp_path / "corpus.jsonl"), *arguments])
            with pytest.raises(SystemExit, match="0"):
                main()
    for (part, _), tasks in asked.items():
        assert tasks <= asked[part, "200"]
    assert not asked["0/2", "200"] & asked["1/2", "200"]
    assert asked["0/2", "200"] | asked["1/2", "200"] == {pair.task for pair in pairs}
    assert len(asked["0/2", "1"] | asked["1/2", "1"]) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--limit", "-1"), "--limit is -1; give at least 1"),
        (("--limit", "0"), "--limit is 0; give at least 1"),
        (("--backend", "triton", "foo"), "unknown backend 'foo'"),
    ],
)
def test_a_choice_that_is_none_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    path = tmp_path / "c.jsonl"
    Corpus().save(path)
    command = ["cudal1-env", "verify", str(path), "--out", str(tmp_path / "r.jsonl"), "--device", "cpu", *arguments]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.slow
def test_verify_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [task for task in load_suite("starter", device="cpu") if task.id == "starter/swish_chain"]
    corpus = Corpus(pair for pair in build(tasks, backends=("pytorch",), failures=1) if pair.label != "timeout")
    path, out = tmp_path / "c.jsonl", tmp_path / "r.jsonl"
    corpus.save(path)
    command = ["cudal1-env", "verify", str(path), "--out", str(out), "--device", "cpu", "--limit", "2", "--json"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    printed = capsys.readouterr()
    assert "known verdicts: 2" in printed.err
    assert sum(json.loads(printed.out.splitlines()[-1]).values()) == 2
    assert len(out.read_text().splitlines()) == 2
    whole = load_corpus(path)
    assert merge(whole, out).added == 2
    assert not any(pair.verified or pair.refuted for pair in whole), "a CPU's verdict does not verify"
    assert choose(whole, None, device="cpu") != choose(corpus, None, device="cpu")
