"""The last rounding of a half-precision result is left out, and nothing else."""

from __future__ import annotations

import pytest
import torch
from cudal1_worker.oracle.reference_error import error_of
from cudal1_worker.oracle.steps import HALF
from cudal1_worker.oracle.unrounded import Unrounded
from hypothesis import given, settings
from hypothesis import strategies as st


def halves(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(8, 16, generator=generator).to(dtype) for _ in range(2))
    return x, y


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(HALF))
def test_only_the_last_result_is_unrounded(seed: int, dtype: torch.dtype) -> None:
    x, y = halves(seed, dtype)
    with Unrounded() as mode:
        out = torch.exp(x * y)
        found = mode.value(out)
    assert torch.equal(out, torch.exp(x * y))  # the program's own output stays
    assert torch.equal(found, torch.exp((x * y).float()))


@pytest.mark.parametrize("dtype", HALF)
def test_a_view_of_a_result_is_unrounded_too(dtype: torch.dtype) -> None:
    x, y = halves(0, dtype)
    with Unrounded() as mode:
        found = mode.value((x @ y.mT).transpose(0, 1)[1:])
    assert torch.equal(found, (x.float() @ y.float().mT).transpose(0, 1)[1:])


@pytest.mark.parametrize("dtype", HALF)
def test_an_operator_in_place_leaves_no_old_value(dtype: torch.dtype) -> None:
    x, y = halves(0, dtype)
    with Unrounded() as mode:
        out = x * y
        out[1:].add_(1.0)
        assert mode.value(out) is out


@pytest.mark.parametrize("dtype", HALF)
def test_rounded_partial_sums_still_count_as_error(dtype: torch.dtype) -> None:
    x, _ = halves(0, dtype)
    with Unrounded() as mode:
        out = x.sum(1)
    answer = x.double().sum(1)
    rough = out + 64 * torch.finfo(dtype).eps * out
    mode._wide[rough] = mode.value(out)
    found = mode.error(rough, answer, error_of(rough, answer))
    assert bool((found > 32 * torch.finfo(dtype).eps * answer.abs()).all())
    assert float((mode.error(out, answer, error_of(out, answer)) / answer.abs()).max()) < 2.0**-16


@pytest.mark.parametrize("dtype", HALF)
def test_an_output_that_equals_its_rounded_answer_has_no_error(dtype: torch.dtype) -> None:
    x, y = (one.float() for one in halves(0, dtype))
    with Unrounded() as mode:
        out = (x * 1.1 + y).to(dtype)
    answer = out.double()  # the float64 twin casts, too
    assert not mode.error(out, answer, error_of(out, answer)).any()
