"""The corpus: what is built, kept, merged, counted, exported."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from cudal1_data import load_suite, load_task
from cudal1_data.cli import main
from cudal1_data.commands.corpus import Build
from cudal1_data.corpus import BUNDLED, Corpus, Pair, corpus_files, load_corpus
from cudal1_data.corpus.build import MAX_PER_SKELETON, build, render
from cudal1_data.corpus.card import card
from cudal1_data.corpus.failures import FAILURES
from cudal1_data.corpus.merge import merge
from cudal1_data.corpus.stats import stats
from cudal1_data.corpus.store import CorpusWriter
from cudal1_data.errors import DataError
from cudal1_data.hashes import digest, text_hash
from cudal1_data.kernelgen.codegen.rewrites import plain_program
from cudal1_data.sources import kernelbench
from cudal1_data.task import Split
from first_stream import stored_task
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    tasks = [
        load_task("starter/layer_norm_manual", device="cuda"),
        stored_task("generated/elementwise-3-1", device="cuda"),
    ]
    return list(build(tasks, per_task=12, failures=len(FAILURES) + 3))


def record(pair: Pair, number: int = 1, *, status: str = "CORRECT", point: float = 2.0, device: str = "cuda") -> Any:
    speedup = {"low": point * 0.9, "point": point, "high": point * 1.1} if status == "CORRECT" else None
    return {
        "protocol": "1",
        "id": f"record-{number}",
        "created_at": f"2026-11-21T00:00:{number:02}Z",
        "task": pair.task,
        "task_sha256": pair.reference_sha256,
        "task_source": pair.reference,
        "source": pair.source,
        "source_sha256": pair.source_sha256,
        "status": status,
        "speedup": speedup,
        "speedups": {"compile": {"low": 1.0, "point": 1.5, "high": 2.0}} if speedup else {},
        "precision": "training",
        "machine": {"device": device, "name": "a GPU"},
    }


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def test_build_makes_pairs_of_every_backend_and_every_failure(pairs: list[Pair]) -> None:
    correct = [pair for pair in pairs if pair.label == "correct"]
    assert {pair.backend for pair in correct} == {
        "pytorch", "triton", "cuda-load-inline", "cuda-nvrtc", "torch-compile",
    }  # fmt: skip
    assert {pair.label for pair in pairs} >= {label for _, label, _ in FAILURES} - {"contract"}
    for pair in pairs:
        assert pair.source_sha256 == digest(pair.source)
        assert not pair.verified
        if pair.label == "syntax":
            with pytest.raises(SyntaxError):
                compile(pair.source, "program", "exec")
        else:
            compile(pair.source, "program", "exec")


def test_slow_programs_are_made_of_the_plain_one(pairs: list[Pair]) -> None:
    slow = [pair for pair in pairs if pair.label == "slow"]
    assert len(slow) == len({pair.task for pair in slow}) == 2
    for pair in slow:
        assert pair.source.startswith(plain_program(pair.reference).rstrip())
        assert pair.backend == "pytorch"


def test_outputs_a_hundredth_too_large_keep_their_dtype() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    mutant = next(mutant for name, _, mutant in FAILURES if name == "a hundredth too large")
    program = mutant("class ModelNew:\n    def forward(self, *given):\n        return given\n")
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    given = (torch.ones(3), torch.tensor([0, 3, -1]), torch.tensor([True, False]), torch.ones(2, dtype=torch.half))
    for before, after in zip(given, namespace["ModelNew"]().forward(*given), strict=True):
        assert after.dtype == before.dtype
        assert not torch.equal(after, before)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_corpus_with_old_names_is_read(tmp_path: Path, ending: str) -> None:
    """Corpora were published with `writing`, and with `right`, `turned` and `spoilt` as values."""
    made = build(
        [stored_task("generated/softmax-0-9", device="cuda")], failures=len(FAILURES), backends=("pytorch", "triton")
    )
    today = [pair for pair in made if pair.label != "correct" or "transposed" in (pair.template, *pair.parameters)]
    assert {pair.template for pair in today} >= {"transposed", "mutant: zeros", "triton-rows"}
    rows: list[dict[str, Any]] = []
    for pair in Corpus(today):
        row = pair.model_dump(mode="json")
        row["writing"] = row.pop("backend")
        row["label"] = row["label"].replace("correct", "right")
        row["template"] = row["template"].replace("transposed", "turned").replace("mutant", "spoilt")
        row["parameters"] = {name.replace("transposed", "turned"): value for name, value in pair.parameters.items()}
        rows.append(row)
    path = tmp_path / f"old.{ending}"
    if ending == "jsonl":
        written(path, *rows)
    else:
        table: Any = pyarrow.Table.from_pylist([{**row, "parameters": json.dumps(row["parameters"])} for row in rows])
        pyarrow.parquet.write_table(table, path)
    assert list(load_corpus(path)) == list(Corpus(today))


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_corpus_comes_back_as_it_was_saved(pairs: list[Pair], tmp_path: Path, ending: str) -> None:
    corpus = Corpus(pairs)
    merge(corpus, written(tmp_path / "r.jsonl", record(pairs[0])))
    path = tmp_path / f"corpus.{ending}"
    corpus.save(path)
    assert list(load_corpus(path)) == list(corpus)
    before = path.read_bytes()
    Corpus(reversed(list(corpus))).save(path)
    assert path.read_bytes() == before


@given(st.lists(st.integers(0, 5), max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_merging_does_not_depend_on_order_or_on_how_often(numbers: list[int], random: Any) -> None:
    pairs = _few()
    records = [record(pairs[number % len(pairs)], number) for number in numbers]
    shuffled = list(records)
    random.shuffle(shuffled)
    found = []
    for order in (records, shuffled, records + shuffled):
        corpus = Corpus(pairs)
        path = Path(_folder()) / "records.jsonl"
        merge(corpus, written(path, *order))
        found.append(list(corpus))
    assert found[0] == found[1] == found[2]


def _few() -> list[Pair]:
    if not _KEPT:
        _KEPT.extend(build([load_task("starter/swish_chain", device="cuda")], per_task=4))
    return _KEPT


_KEPT: list[Pair] = []


def _folder() -> str:
    import tempfile

    return tempfile.mkdtemp()


def test_verified_means_correct_on_a_gpu(pairs: list[Pair], tmp_path: Path) -> None:
    first, second, third = pairs[:3]
    corpus = Corpus(pairs)
    done = merge(
        corpus,
        written(
            tmp_path / "r.jsonl",
            record(first, 1),
            {"evaluation": record(second, 2, status="WRONG_OUTPUT"), "published": {}},
            record(third, 3, device="cpu"),
            {"evaluation": None, "refused": "too large"},
        ),
    )
    assert (done.added, done.new_pairs, len(done.left_out)) == (3, 0, 1)
    assert [corpus[pair.key].verified for pair in (first, second, third)] == [True, False, False]
    assert corpus[second.key].refuted
    speedup = corpus[first.key].best("compile")
    assert speedup is not None
    assert speedup.point == 1.5
    found = stats(corpus)
    assert (found.verified, found.judged, found.refuted, found.beaten) == (1, 3, 1, 1)
    assert found.best[0].compile == 1.5
    assert "verified on a GPU" in found.text()


def test_pairs_are_rendered_as_they_are_asked_for_in_an_order_of_the_seed() -> None:
    task = load_task("starter/rms_norm", device="cuda")
    kinds = ("pytorch", "triton", "cuda-nvrtc")
    first, again, other = ([one.key for one in islice(render(task, seed, backends=kinds), 12)] for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == 12
    skeletons = Counter(re.sub(r"\d+", "#", one.source) for one in render(task, 1, backends=kinds))
    assert max(skeletons.values()) == MAX_PER_SKELETON
    assert sum(skeletons.values()) > 12


def test_pairs_that_cannot_be_rendered_are_refused_with_the_reason() -> None:
    task = load_task("starter/rms_norm", device="cuda")
    with pytest.raises(DataError, match="no template writes for the backend 'tritn'"):
        next(render(task, 1, backends=("tritn",)))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="starter/rms_norm: not Python: syntax error in line 1"):
        next(render(task.model_copy(update={"source": "def"}), 1))


def test_what_was_measured_becomes_columns(pairs: list[Pair], tmp_path: Path) -> None:
    first, second, failure = pairs[0], pairs[1], next(one for one in pairs if one.label == "runtime")
    corpus = Corpus(pairs)
    measured = record(first, 1) | {"roofline_ms": 0.5, "roofline_fraction": 0.25}
    told = [measured, record(second, 2), record(failure, 3, status="RUNTIME_ERROR", device="cuda")]
    merge(corpus, written(tmp_path / "r.jsonl", *told))
    corpus.save(tmp_path / "c.parquet")
    rows = {row["source_sha256"]: row for row in pyarrow.parquet.read_table(tmp_path / "c.parquet").to_pylist()}
    assert [rows[first.source_sha256][name] for name in ("latency_ms", "roofline_fraction")] == [2.0, 0.25]
    assert rows[first.source_sha256]["memory_bytes"] is None
    assert rows[second.source_sha256]["latency_ms"] is None
    assert all(
        row["source_tokens"] > row["reference_tokens"] > 0 for row in rows.values() if row["backend"] == "triton"
    )
    assert [pair.key for pair in load_corpus(tmp_path / "c.parquet")] == [pair.key for pair in corpus]
    assert main(["corpus", "export", str(tmp_path / "c.parquet"), str(tmp_path / "d.jsonl"), "--confirmed"]) == 0
    kept = {one.source_sha256 for one in load_corpus(tmp_path / "d.jsonl")}
    assert kept == {one.source_sha256 for one in (first, second, failure)}


def test_a_program_that_the_corpus_lacks_becomes_a_pair(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = Corpus()
    done = merge(corpus, written(tmp_path / "r.jsonl", record(pairs[0])))
    assert done.new_pairs == len(corpus) == 1
    assert next(iter(corpus)).verified


def test_a_new_program_has_its_tasks_split_where_that_is_known(pairs: list[Pair], tmp_path: Path) -> None:
    known = pairs[0].model_copy(update={"split": "train", "level": 2, "family": "norm", "overlaps": "level1/1"})
    source = "import torch\n"
    new = record(known) | {"source": source, "source_sha256": digest(source)}
    other = Corpus()
    merge(other, written(tmp_path / "r.jsonl", new))
    assert next(iter(other)).split == "test"
    corpus = Corpus([known])
    merge(corpus, written(tmp_path / "r.jsonl", new))
    added = corpus[known.reference_sha256, digest(source)]
    assert (added.split, added.level, added.family, added.overlaps) == ("train", 2, "norm", "level1/1")


def test_pairs_may_be_built_after_their_records_are_merged(tmp_path: Path) -> None:
    spec = "generated:norm+elementwise?n=6&seed=3"
    built = list(build(load_suite(spec, device="cuda"), per_task=3, failures=1))
    strange = record(built[0], 98) | {"source": "import torch\n", "source_sha256": digest("import torch\n")}
    records = [*(record(pair, place) for place, pair in enumerate(built)), strange]
    path = written(tmp_path / "r.jsonl", *(one | {"task": f"x/{one['task']}"} for one in records[:-1]), strange)
    first, last = tmp_path / "first.jsonl", tmp_path / "last.jsonl"
    build_it = [spec, "--per-task", "3", "--failures", "1"]
    assert main(["corpus", "merge", str(first), str(path)]) == 0
    assert main(["corpus", "build", str(first), *build_it]) == 0
    assert main(["corpus", "build", str(last), *build_it]) == 0
    assert main(["corpus", "merge", str(last), str(path)]) == 0
    assert first.read_bytes() == last.read_bytes()
    corpus = load_corpus(first)
    assert {pair.split for pair in corpus} == {pair.split for pair in built} > {"train"}
    assert [pair.source for pair in corpus if not pair.template] == ["import torch\n"]
    assert all(pair.evaluations for pair in corpus)


def test_building_again_updates_the_facts_of_a_task(tmp_path: Path) -> None:
    out, task = tmp_path / "pairs.jsonl", "starter/gelu_tanh"
    built = list(build([load_task(task, device="cuda")], per_task=3, failures=0))
    of_old = Corpus(pair.model_copy(update={"overlaps": None, "split": "test"}) for pair in built[1:])
    namesake = built[0].model_copy(update={"task": "mine/gelu", "overlaps": None})
    of_old.add(namesake)
    of_old.add(built[1].model_copy(update={"source": "x = 1\n", "source_sha256": digest("x = 1\n"), "template": ""}))
    of_old.save(out)
    assert main(["corpus", "build", str(out), "starter:gelu_tanh", "--per-task", "3", "--failures", "0"]) == 0
    corpus = load_corpus(out)
    assert len(corpus) == 4
    for pair in corpus:
        expected = built[1] if pair.task == task else namesake
        assert (pair.overlaps, pair.split) == (expected.overlaps, expected.split)


@pytest.mark.parametrize(
    ("statuses", "label"),
    [
        (("WRONG_OUTPUT", "CORRECT"), "correct"),
        (("TIMEOUT", "CRASH"), "timeout"),
        (("RUNTIME_ERROR", "UNSTABLE", "WRONG_OUTPUT"), "runtime"),
        (("UNSTABLE", "BUILD_ERROR"), "build"),
        (("UNSTABLE",), "correct"),
    ],
)
def test_the_label_of_a_merged_program_follows_from_all_its_records(
    pairs: list[Pair], tmp_path: Path, statuses: tuple[str, ...], label: str
) -> None:
    for order in permutations(enumerate(statuses, 1)):
        corpus = Corpus()
        for number, status in order:
            merge(corpus, written(tmp_path / "r.jsonl", record(pairs[0], number, status=status)))
        assert next(iter(corpus)).label == label


def test_timing_noise_refutes_nothing(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = Corpus([pairs[0]])
    merge(corpus, written(tmp_path / "r.jsonl", record(pairs[0], 1, status="UNSTABLE"), record(pairs[0], 2)))
    assert corpus[pairs[0].key].verified
    assert not corpus[pairs[0].key].refuted


def test_a_record_that_was_changed_is_refused(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = Corpus(pairs)
    changed = record(pairs[0]) | {"source": "print()"}
    path = written(tmp_path / "r.jsonl", record(pairs[1]), changed)
    with pytest.raises(DataError, match=r"r\.jsonl:2: .*hashes"):
        merge(corpus, path)
    assert not any(pair.evaluations for pair in corpus)
    with pytest.raises(DataError, match=r"r\.jsonl:1: .*record"):
        merge(corpus, written(tmp_path / "r.jsonl", {"nothing": 1}))
    path.write_bytes(b'{"task": "\xff"}\n')
    with pytest.raises(DataError, match=r"r\.jsonl:1: .*record"):
        merge(corpus, path)
    with pytest.raises(DataError, match="line 1"):
        load_corpus(path)


def test_records_without_texts_go_to_programs_that_the_corpus_has(pairs: list[Pair], tmp_path: Path) -> None:
    bare = [record(pair, number) | {"source": "", "task_source": ""} for number, pair in enumerate(pairs[:2])]
    corpus = Corpus(pairs[:1])
    done = merge(corpus, written(tmp_path / "r.jsonl", *({"evaluation": one} for one in bare), record(pairs[2], 3)))
    assert (done.added, done.new_pairs) == (1, 1)
    assert corpus[pairs[0].key].verified
    [reason] = done.left_out
    assert "r.jsonl:2: it holds no texts" in reason


def test_an_export_of_nothing_is_refused(pairs: list[Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, folder = tmp_path / "c.jsonl", tmp_path / "dataset"
    Corpus(pairs).save(source)
    assert main(["corpus", "export", str(source), str(folder), "--verified"]) == 2
    assert f"none of the {len(Corpus(pairs))} pairs" in capsys.readouterr().err
    assert not folder.exists()


def test_broken_corpora_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"task": "x"}\n')
    with pytest.raises(DataError, match="line 1"):
        load_corpus(path)
    with pytest.raises(DataError, match=r"\.parquet or \.jsonl"):
        load_corpus(tmp_path / "c.csv")
    (tmp_path / "c.parquet").write_text("nothing")
    with pytest.raises(DataError, match="parquet"):
        load_corpus(tmp_path / "c.parquet")


def test_the_error_for_a_line_without_a_record_is_a_sentence(pairs: list[Pair], tmp_path: Path) -> None:
    path, good = tmp_path / "r.jsonl", record(pairs[0])
    for line, reason in [
        ("{}", r"protocol is missing \(and 9 more faults\)$"),
        ("x", r"Invalid JSON: .*, got b?'x'$"),
        (json.dumps(good | {"status": 3}), r"status: Input should be a valid string, got 3$"),
        (json.dumps(good | {"machine": "x" * 500}), r"machine: expected an object, got 'x{59}\.\.\.$"),
        ('{"evaluation": 7}', r"verify: expected an object, got 7$"),
    ]:
        path.write_text(line)
        with pytest.raises(DataError, match=rf"r\.jsonl:1: .*{reason}") as caught:
            merge(Corpus(), path)
        assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", r"the folder .* has none of train\.parquet"),
        ("none.parquet", r"no corpus file .*none\.parquet"),
        ("none.jsonl", r"no corpus file .*none\.jsonl"),
        ("bundld", r"did you mean 'bundled'"),
    ],
)
def test_a_corpus_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    assert main(["corpus", "stats", str(tmp_path / name)]) == 2
    assert re.search(reason, capsys.readouterr().err)


def test_records_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = tmp_path / "none.jsonl"
    assert main(["corpus", "merge", str(tmp_path / "c.parquet"), str(none)]) == 2
    assert f"cannot use {none}: No such file or directory; check the path" in capsys.readouterr().err
    assert main(["corpus", "merge", str(tmp_path / "c.parquet")]) == 2
    assert "no records to merge" in capsys.readouterr().err
    assert not (tmp_path / "c.parquet").exists()


def test_faults_in_parquet_are_reported_by_row(pairs: list[Pair], tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    Corpus(pairs).save(path)
    table = pyarrow.parquet.read_table(path).to_pylist()
    table[1]["label"] = "wonderful"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    with pytest.raises(DataError, match=r"c\.parquet: row 2 holds no pair of a corpus: label: .* got 'wonderful'"):
        load_corpus(path)
    table[1]["parameters"] = "{"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    with pytest.raises(DataError, match=r"row 2 holds no pair of a corpus: parameters hold no JSON"):
        load_corpus(path)


def test_an_empty_corpus_has_no_techniques() -> None:
    text = stats(Corpus()).text()
    assert text.startswith("0 pairs")
    assert "techniques" not in text


def test_the_card_names_the_machines(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = Corpus(pairs)
    assert "no judge has seen these programs" in card(corpus)
    merge(corpus, written(tmp_path / "r.jsonl", record(pairs[0]), record(pairs[1], 2) | {"precision": "report"}))
    text = card(corpus)
    assert "machine, evaluations: a GPU 2\n" in text
    assert "intervals than `training`): training 1, report 1\n" in text
    assert "protocol (figures of two versions do not compare): 1 2\n" in text


def test_the_bundled_card_is_the_one_that_is_written_today() -> None:
    (bundled, *_) = corpus_files(BUNDLED)
    assert bundled.with_name("README.md").read_text() == card(load_corpus(BUNDLED))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "corpus.parquet"
    build_it = ["corpus", "build", str(out), "generated:elementwise?n=2&seed=3", "--per-task", "5"]
    assert main(build_it) == 0
    first = out.read_bytes()
    assert main(build_it) == 0
    assert out.read_bytes() == first
    corpus = load_corpus(out)
    assert len(corpus) == 14
    records = written(tmp_path / "r.jsonl", *(record(pair, place) for place, pair in enumerate(corpus)))
    assert main(["corpus", "merge", str(out), str(records)]) == 0
    merged = out.read_bytes()
    assert main(["corpus", "merge", str(out), str(records)]) == 0
    assert out.read_bytes() == merged
    capsys.readouterr()
    assert main(["corpus", "stats", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] == 14
    folder = tmp_path / "dataset"
    assert main(["corpus", "export", str(out), str(folder), "--verified"]) == 0
    assert main(["corpus", "export", str(out), str(folder)]) == 2
    assert "14 pairs of 2 references" in (folder / "README.md").read_text()


def test_a_build_names_the_tasks_that_get_no_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return "
    )
    tail = "\n\n\ndef get_inputs():\n    return [torch.randn(8, 16)]\n\n\ndef get_init_inputs():\n    return []\n"
    (tmp_path / "plain.py").write_text(f"{head}torch.exp(x) * 2{tail}")
    (tmp_path / "called.py").write_text(f"{head}(lambda y: y + y)(x){tail}")
    assert main(["corpus", "build", str(tmp_path / "pairs.jsonl"), str(tmp_path), "--per-task", "8"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out")]
    (line,) = told
    assert line.startswith("left out: kernels for file/called: '")
    assert line.endswith("' is called; templates read calls of functions by name")


def test_an_export_has_a_file_for_each_split(pairs: list[Pair], tmp_path: Path) -> None:
    splits: tuple[Split, ...] = ("train", "test")
    corpus = Corpus(pair.model_copy(update={"split": splits[place % 2]}) for place, pair in enumerate(pairs))
    corpus.save(tmp_path / "c.parquet")
    assert main(["corpus", "export", str(tmp_path / "c.parquet"), str(tmp_path / "d")]) == 0
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"README.md", "train.parquet", "test.parquet"}
    for split in splits:
        assert {pair.split for pair in load_corpus(tmp_path / "d" / f"{split}.parquet")} == {split}
        assert f"- split: {split}\n    path: {split}.parquet" in (tmp_path / "d" / "README.md").read_text()
    assert list(load_corpus(tmp_path / "d")) == list(corpus)


def test_programs_for_kernelbench_never_enter_a_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By id, and by the text of a reference under another name."""
    out, suite = tmp_path / "c.parquet", tmp_path / "suite.jsonl"
    reference = load_task("starter/layer_norm_manual").source
    suite.write_text(json.dumps({"code": reference, "level": 1, "name": "12_Norm", "problem_id": 12}) + "\n")
    assert main(["corpus", "build", str(out), str(suite), "--per-task", "1"]) == 2
    assert "is a reference of KernelBench: programs for these never enter a training corpus" in capsys.readouterr().err
    assert not out.exists()
    known = dict(kernelbench.notes())
    known["level1/12"] = known["level1/12"].model_copy(update={"program": text_hash(reference)})
    monkeypatch.setattr(kernelbench, "notes", lambda: known)
    assert main(["corpus", "build", str(out), "starter:layer_norm_manual"]) == 2
    assert "starter/layer_norm_manual is a reference of KernelBench" in capsys.readouterr().err


def test_records_of_kernelbench_never_enter_a_corpus(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = Corpus()
    done = merge(corpus, written(tmp_path / "r.jsonl", record(pairs[0]) | {"task": "cuda-l1/level2/7"}))
    assert len(corpus) == 0
    assert "cuda-l1/level2/7 is a reference of KernelBench" in done.left_out[0]


def test_datasets_reads_an_export(pairs: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    corpus = Corpus(pairs)
    merge(corpus, written(tmp_path / "r.jsonl", record(pairs[0])))
    source = tmp_path / "c.jsonl"
    corpus.save(source)
    assert main(["corpus", "export", str(source), str(tmp_path / "d")]) == 0
    found = datasets.load_dataset(str(tmp_path / "d"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(found) == len(corpus)
    (row,) = found.filter(lambda row: row["verified"])
    assert row["evaluations"][0]["speedups"][0]["baseline"] == "eager"
    assert row["speedup"] == 2.0


@pytest.mark.slow
def test_every_starter_task_has_six_variants_and_test_tasks_stay_test_tasks() -> None:
    corpus = Corpus(build(load_suite("starter", device="cuda"), per_task=8))
    for task in load_suite("starter"):
        mine = [pair for pair in corpus if pair.task == task.id]
        assert len(mine) >= 6, task.id
        assert {pair.split for pair in mine} == {task.split}


def test_the_bundled_pairs_have_the_verdicts_of_the_records(result_file: Callable[[str], Path]) -> None:
    verified = load_corpus("bundled")
    unverified = load_corpus(corpus_files("bundled")[0].with_name("unverified.parquet"))
    assert len(verified) >= 1500
    assert all(pair.verified for pair in verified)
    skeletons = Counter((pair.reference_sha256, re.sub(r"\d+", "#", pair.source)) for pair in verified)
    assert max(skeletons.values()) == MAX_PER_SKELETON
    pairs = [*verified, *unverified]
    judged = Corpus(pair.model_copy(update={"evaluations": ()}) for pair in pairs)
    assert {one.protocol for pair in verified for one in pair.evaluations} == {"2"}
    speedups = [one.point for pair in verified if (one := pair.best()) is not None]
    assert sum(one >= 1.2 for one in speedups) >= 500
    for name in ("h200", "more_h200", "rest_h100"):
        merge(judged, result_file(f"verify_protocol2_{name}.jsonl"))
    merge(judged, result_file("verify_failures_cpu.jsonl"))
    for pair in pairs:
        assert digest(pair.source) == pair.source_sha256
        assert pair.evaluations == judged[pair.key].evaluations, pair.task
    assert len(judged) == len(verified) + len(unverified)


def test_the_bundled_unverified_pairs_are_judged_and_none_is_correct_on_a_gpu() -> None:
    unverified = load_corpus(corpus_files("bundled")[0].with_name("unverified.parquet"))
    assert all(pair.evaluations and not pair.verified for pair in unverified)
    latest = Counter(
        pair.verdict("cuda") for pair in unverified if any(one.device == "cuda" for one in pair.evaluations)
    )
    assert latest == {"WRONG_OUTPUT": 2, "TIMEOUT": 4}
    labels = {pair.label for pair in unverified if pair.template.startswith("mutant")}
    assert labels == {label for _, label, _ in FAILURES}


def test_a_folder_named_like_the_bundled_corpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundled").mkdir()
    with pytest.raises(DataError, match="stands for the package's own corpus"):
        load_corpus(BUNDLED)


def test_nothing_is_written_to_the_bundled_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "build", "bundled", "starter", "--per-task", "1", "--failures", "0"]) == 2
    assert "cannot write a corpus to bundled" in capsys.readouterr().err


# --- written as it is made -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_streamed_build_is_the_file_that_a_whole_corpus_would_be(tmp_path: Path, ending: str) -> None:
    names = ("starter/swish_chain", "starter/argmax_rows", "starter/rms_norm")
    streamed, whole = tmp_path / f"streamed.{ending}", tmp_path / f"whole.{ending}"
    Build(out=streamed, suites=names, per_task=2, failures=1).run()
    load_corpus(streamed).save(whole)
    assert streamed.read_bytes() == whole.read_bytes()
    assert len(load_corpus(streamed)) == 9
    Build(out=streamed, suites=names[:2], per_task=3, failures=1).run()
    assert len(load_corpus(streamed)) > 9
    assert sorted(tmp_path.iterdir()) == sorted([streamed, whole])


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_corpus_that_was_cut_off_leaves_the_old_file(pairs: list[Pair], tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"pairs.{ending}"
    Corpus(pairs[:2]).save(path)
    with pytest.raises(KeyboardInterrupt), CorpusWriter(path) as file:
        file.write(pairs)
        raise KeyboardInterrupt
    assert [one.key for one in load_corpus(path)] == [one.key for one in Corpus(pairs[:2])]
    assert list(tmp_path.iterdir()) == [path]
