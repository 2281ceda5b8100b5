"""Variants by templates before the judge on a GPU: each kernel template once, and the labelled failures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cudal1_data.corpus.build import build
from cudal1_data.corpus.model import LABEL_STATUS
from cudal1_data.kernelgen.make import variants
from cudal1_data.techniques import Backend
from cudal1_env.hardware import has_gpu
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Status
from first_stream import stored_task

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")]

IDS = (
    "starter/swish_chain",
    "starter/layer_norm_manual",
    "starter/matmul_bias_gelu",
    "generated/elementwise-3-1",
    "generated/softmax-3-5",
    "generated/scan-3-0",
    "generated/norm-3-1",
)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cuda")) as one:
        yield one


@pytest.mark.parametrize("backend", ["triton", "cuda-nvrtc"])
@pytest.mark.parametrize("task_id", IDS)
def test_kernels_are_correct(judge: Judge, task_id: str, backend: Backend) -> None:
    task = stored_task(task_id, device="cuda")
    made = variants(task, (backend,))
    chosen = made[:: max(1, len(made) // 6)]
    found = judge.evaluate_many([(task, one.source) for one in chosen])
    wrong = [
        f"{one.template} {dict(one.parameters)}: {record.status} {record.message}\n{record.stderr[-500:]}"
        for one, record in zip(chosen, found, strict=True)
        if record.status is not Status.CORRECT
    ]
    assert wrong == []


def test_extensions_are_correct(judge: Judge) -> None:
    task = stored_task("generated/norm-3-1", device="cuda")
    (*_, made) = variants(task, ("cuda-load-inline",))
    record = judge.evaluate(task, made.source)
    assert record.status is Status.CORRECT, f"{record.message}\n{record.stderr[-2000:]}"


def test_failures_fail_as_labelled(judge: Judge) -> None:
    task = stored_task("generated/elementwise-3-1", device="cuda")
    pairs = [
        pair
        for pair in build([task], per_task=4, failures=9, backends=("cuda-nvrtc", "triton"))
        if pair.label not in ("correct", "timeout")
    ]
    found = judge.evaluate_many([(task, pair.source) for pair in pairs])
    labels = [(pair.template, record.status) for pair, record in zip(pairs, found, strict=True)]
    assert all(record.status in LABEL_STATUS[pair.label] for pair, record in zip(pairs, found, strict=True)), labels
