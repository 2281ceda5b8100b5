"""A smaller batch is another task: its id, its tags and its text say so, and nothing else of it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cudal1_data import BrokenTaskError, Task, load_suite, load_task
from cudal1_data.errors import DataError
from cudal1_data.sources.scale import batch_constant, fitted, scaled, scaled_suite
from cudal1_data.suite import Suite
from cudal1_data.task import Memory
from cudal1_data.tracing import Tracer
from hypothesis import given, settings
from hypothesis import strategies as st

MODEL = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x, *rest):\n        return x + 1\n"


def task(tail: str, name: str = "t") -> Task:
    return Task(id=f"file/{name}", source=MODEL + tail, name=name, level=1, origin="file")


BATCHED = "batch_size = 64\nN = 8\ndef get_inputs():\n    return [torch.randn(batch_size, N)]\n"
NO_ARGUMENTS = "def get_init_inputs():\n    return []\n"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (BATCHED, ("batch_size", 64)),
        ("M = 4\nN = 8\ndef get_inputs():\n    return [torch.randn(M, N), torch.randn(N, M)]\n", ("M", 4)),
        ("N = 8\nB = 4\ndef get_inputs():\n    return [torch.randn(N, B)]\n", ("B", 4)),
        ("n = 5\nk = 9\ndef get_inputs():\n    return [torch.randint(0, k, (n,))]\n", ("n", 5)),
        ("n = 5\ndef get_inputs():\n    return [torch.ones(size=(n, 2))]\n", ("n", 5)),
        ("n = 5\ndef get_inputs():\n    x = torch.rand([n, 3])\n    return [x]\n", ("n", 5)),
    ],
)
def test_the_batch_is_found(tail: str, expected: tuple[str, int]) -> None:
    assert batch_constant(task(tail + NO_ARGUMENTS)) == expected


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("def get_inputs():\n    return [torch.randn(16, 4)]\n" + NO_ARGUMENTS, "no such constant leads a tensor"),
        (
            "n = 4\ndef get_inputs():\n    return [torch.randn(n, 4)]\ndef get_init_inputs():\n    return [n]\n",
            "n leads, and the model knows it too",
        ),
        ("n = 4\ndef get_inputs():\n    return [torch.randn(16, n)]\n" + NO_ARGUMENTS, "no such constant"),
        (BATCHED.replace("64", "1") + NO_ARGUMENTS, "its batch_size is 1 already"),
    ],
)
def test_no_batch_is_refused_with_the_id(tail: str, reason: str) -> None:
    with pytest.raises(BrokenTaskError, match=reason) as caught:
        scaled(task(tail), 2)
    assert "file/t" in str(caught.value)


@settings(deadline=None)
@given(st.integers(2, 4096), st.integers(2, 64))
def test_a_scaled_task_has_its_size_in_its_id_and_source(batch: int, divisor: int) -> None:
    whole = task(BATCHED.replace("64", str(batch)) + NO_ARGUMENTS)
    smaller = scaled(whole, divisor)
    size = max(1, batch // divisor)
    assert smaller.id == f"file/t@batch_size={size}"
    assert smaller.tags == ("scaled",)
    assert smaller.memory is None
    assert smaller.source == whole.source.replace(f"batch_size = {batch}", f"batch_size = {size}")
    assert scaled(whole, 1) is whole


def test_a_scale_below_one() -> None:
    with pytest.raises(DataError, match="less than 1"):
        scaled(task(BATCHED), 0)


@pytest.mark.slow
def test_fitting_a_memory() -> None:
    """64 x 8 float32 in and out: 4 KiB; each halving halves it."""
    whole = task(BATCHED + NO_ARGUMENTS)
    with Tracer() as tracer:
        assert fitted(whole, 4096, tracer) is whole
        assert fitted(whole, 4095, tracer).id == "file/t@batch_size=32"
        assert fitted(whole, 600, tracer).id == "file/t@batch_size=8"
        with pytest.raises(BrokenTaskError, match=r"file/t: the tensors take .* even with batch_size = 1, more than"):
            fitted(whole, 10, tracer)
        known = whole.model_copy(update={"memory": Memory(inputs_bytes=1, state_bytes=1, outputs_bytes=1)})
        assert fitted(known, 3, tracer) is known  # what is known is not measured
        with pytest.raises(BrokenTaskError, match="file/t: the reference cannot be traced"):
            fitted(task("def get_inputs(): return [torch.nonsense()]\n" + NO_ARGUMENTS), 10, tracer)


@pytest.mark.slow
def test_huge_inputs_name_the_task_and_leave_the_rest() -> None:
    """Inputs larger than any GPU: nothing is allocated, the task is named, the others are usable."""
    huge = task("def get_inputs():\n    return [torch.randn(2 ** 20, 2 ** 20)]\n" + NO_ARGUMENTS, "huge")
    small = task(BATCHED + NO_ARGUMENTS, "small")
    suite = scaled_suite(Suite("mine", [huge, small]), memory_bytes=2**30)
    assert suite.ids == ("file/small",)
    [(_, error)] = suite.broken
    assert "file/huge" in str(error)
    assert "8192.00 GiB" in str(error)


def test_a_suite_keeps_programs_and_leaves_published_speedups(release_file: Path) -> None:
    whole = load_suite(release_file)
    smaller = load_suite(release_file, scale=2)
    assert len(smaller) + len(smaller.broken) == len(whole)
    for one in smaller:
        assert "scaled" in one.tags
        assert smaller.programs[one.id] == whole.programs[one.id.partition("@")[0]]
    assert smaller.scores == {}


def test_an_exported_scaled_suite_comes_back(tmp_path: Path) -> None:
    from cudal1_data.sources.export import export

    smaller = scaled(task(BATCHED + NO_ARGUMENTS), 4)
    export([smaller], tmp_path / "small.jsonl")
    back = load_task(tmp_path / "small.jsonl")
    assert (back.id, back.tags, back.source) == (smaller.id, smaller.tags, smaller.source)


def test_tasks_of_an_exported_scaled_suite_go_by_their_names(tmp_path: Path, release_file: Path) -> None:
    from cudal1_data.sources.export import export

    rows = [json.loads(line) for line in release_file.read_text().splitlines()]
    for row in rows:
        row["ref_code"] = MODEL + BATCHED + NO_ARGUMENTS
    release_file.write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "small.parquet"
    export(load_suite(release_file, scale=4), path)
    for name in ("cuda-l1/level1/12@batch_size=16", "level1/12@batch_size=16", "cuda-l1/level1/12", "level1/12"):
        assert load_suite(f"{path}:{name}").ids == ("cuda-l1/level1/12@batch_size=16",)
    smaller = load_task(f"{path}:level1/12@batch_size=2,N=4")
    assert smaller.id == "cuda-l1/level1/12@batch_size=2,N=4"
    assert "batch_size = 2\nN = 4\n" in smaller.source
    assert load_suite(f"{path}:level1/12@batch_size=2,N=4,level1/1@N=2").ids == (
        smaller.id,
        "cuda-l1/level1/1@batch_size=16,N=2",
    )
    again = load_suite(path, scale=2)
    assert again.ids == ("cuda-l1/level1/1@batch_size=8", "cuda-l1/level1/12@batch_size=8")
    assert again[0].tags == ("scaled",)


@pytest.mark.slow
@pytest.mark.shared
def test_published_references_shrink_to_the_same_computation(shared_data: Path) -> None:
    suite = load_suite(shared_data / "cuda-l1" / "h100.jsonl")
    smaller = scaled_suite(suite, scale=2)
    reasons = [str(entry.error) for entry in smaller.broken]
    assert len(smaller) >= 200
    assert all("batch" in reason for reason in reasons)
    with Tracer() as tracer:
        for one in smaller[::25]:
            whole = suite[one.id.partition("@")[0]]
            graphs = {tracer.trace(each, behaviour=False).fingerprint for each in (one, whole)}
            assert len(graphs) == 1
            assert None not in graphs
