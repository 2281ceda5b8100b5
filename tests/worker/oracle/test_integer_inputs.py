"""Inputs come from their seed; integer and boolean ones stay what they are, whatever becomes of the others."""

from __future__ import annotations

import pytest
import torch
from cudal1_env.hardware import has_gpu
from cudal1_worker.oracle.distributions import NAMES, transform
from cudal1_worker.oracle.oracle import Oracle
from cudal1_worker.oracle.seeding import Seeds
from hypothesis import given, settings
from hypothesis import strategies as st

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(INTEGERS), st.integers(0, 2**31), st.integers(1, 300))
def test_no_distribution_moves_integers(name: str, dtype: torch.dtype, seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2 if dtype == torch.bool else 100, (count,), generator=generator).to(dtype)
    values = torch.rand(count, 40, generator=generator)
    moved = transform([labels.clone(), values, 7, "text"], name, seed)
    assert moved[0].dtype == dtype
    assert torch.equal(moved[0], labels)
    assert moved[1].dtype == values.dtype
    assert moved[2:] == [7, "text"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_float64_answer_gets_integers_as_they_are(dtype: torch.dtype) -> None:
    """Embeddings and losses index with them; integers that come back stay integers."""
    seen: list[torch.dtype] = []

    def model(labels: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.extend((labels.dtype, values.dtype))
        return values.sum(1), values.argmax(1)

    labels = torch.ones(4).to(dtype)
    answers = Oracle.exact(object.__new__(Oracle), model, [labels, torch.rand(4, 3)])
    assert seen == [dtype, torch.float64]
    assert [answer.dtype for answer in answers] == [torch.float64, torch.int64]


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")]),
    ],
)
def test_seeds_are_those_of_torch(device: str) -> None:
    seeds = Seeds()
    drawn: list[torch.Tensor] = []
    for seed in (torch.manual_seed, lambda one: seeds.start(one, torch.device(device))):
        torch.rand(7, device=device)
        seed(2**61 + 12345)
        drawn.append(torch.cat([torch.rand(50), torch.rand(50, device=device).cpu()]))
    assert torch.equal(*drawn)
