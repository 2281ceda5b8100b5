"""The last rounding of a half-precision result is left out, and nothing else."""

from __future__ import annotations

import pytest
import torch
from cudal1_worker.oracle.reference_error import error_of
from cudal1_worker.oracle.steps import HALF
from cudal1_worker.oracle.tolerance import bulk, bulk_allowed
from cudal1_worker.oracle.unrounded import Unrounded, rounded_at_random
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


@given(st.floats(-6e4, 6e4, width=32), st.sampled_from(HALF), st.integers(0, 2**32 - 1))
def test_a_number_is_rounded_at_random_to_one_of_its_neighbours(value: float, dtype: torch.dtype, seed: int) -> None:
    values = torch.full((64,), value, dtype=torch.float32)
    found = rounded_at_random(values, dtype, torch.Generator().manual_seed(seed))
    nearest = values[0].to(dtype)
    off = (found.double() - nearest.double()).abs().max()
    assert off <= torch.finfo(dtype).eps * nearest.double().abs().clamp(min=torch.finfo(dtype).smallest_normal)
    if float(nearest) == value:
        assert torch.equal(found, values.to(dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_rounding_at_random_keeps_the_mean(dtype: torch.dtype) -> None:
    value = 1.0 + 0.3 * torch.finfo(dtype).eps
    found = rounded_at_random(torch.full((40_000,), value), dtype, torch.Generator().manual_seed(1)).double()
    assert set(found.tolist()) == {1.0, 1.0 + torch.finfo(dtype).eps}
    assert abs(float(found.mean()) - value) < 0.02 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", HALF)
def test_a_result_that_decides_many_errs_differently_in_each_run(dtype: torch.dtype) -> None:
    x, _ = halves(0, dtype)
    draws, runs = torch.Generator().manual_seed(2), list[torch.Tensor]()
    for _ in range(64):
        with Unrounded(draws):
            runs.append(torch.exp(x[:1, :1]) * torch.ones(4, 4, dtype=dtype))
    assert all(bool((one == one[0, 0]).all()) for one in runs)  # one rounding, shared by all elements
    assert len({float(one[0, 0]) for one in runs}) == 2


@pytest.mark.parametrize("dtype", HALF)
def test_an_operator_that_rounds_nothing_hides_no_rounding_before_it(dtype: torch.dtype) -> None:
    x, y = halves(0, dtype)
    with Unrounded() as mode:
        found = mode.value(torch.relu(torch.cat([x * y, x])).clamp(max=1.0))
    wide = torch.cat([x.float() * y.float(), x.float()])
    assert torch.equal(found, torch.relu(wide).clamp(max=1.0))


def test_one_more_rounding_is_within_the_mean_square_and_more_are_not() -> None:
    generator = torch.Generator().manual_seed(3)
    answer = 1.0 + torch.rand(1 << 16, generator=generator, dtype=torch.float64)
    once = answer.bfloat16().double()
    limits = torch.full_like(answer, 2.0**-5)
    most = bulk_allowed(bulk((once - answer).abs(), limits), ())
    for times, within in ((2, True), (4, False)):
        found = answer
        for _ in range(times):
            shift = torch.rand(answer.shape, generator=generator, dtype=torch.float64) / 16
            found = (found + shift).bfloat16().double() - shift
        assert (bulk((found - answer).abs(), limits) <= most) is within


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_few_squares_may_be_larger_by_chance(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    runs = 2.0 * torch.randn(16, count, generator=generator).square().mean(1)
    honest = torch.randn(200, count, generator=generator).square().mean(1)
    assert float(honest.max()) <= bulk_allowed(float(runs[0]) / 2, runs.tolist())
