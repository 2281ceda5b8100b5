"""What an element may err follows the reference's errors in its neighbourhood, and no other element widens it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cudal1_env.judge.oracle.numerics import limits_of
from cudal1_worker.oracle.reference_error import error_of, second_values
from cudal1_worker.oracle.tolerance import Blocks, Draw, Limits, Profile, Seen, enough, expected
from hypothesis import given, settings
from hypothesis import strategies as st

FLOAT32 = Limits(*limits_of("float32", 32.0, 8.0))
EXACT = Limits(FLOAT32.factor, 0.0, 0.0)
SHAPES = st.sampled_from([(96, 64), (40, 200), (64, 16), (300, 8), (500, 2), (700,), (3, 5, 37), (9,)])
SEEDS = st.integers(0, 2**32 - 1)


def a_set(shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right values as of a product, and errors of one size, whatever the value."""
    generator = torch.Generator().manual_seed(seed)
    answer = torch.randn(shape, generator=generator, dtype=torch.float64)
    return answer, 1e-7 * torch.randn(shape, generator=generator, dtype=torch.float64).abs()


def sets(shape: tuple[int, ...], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The set that is judged, then those that tell the errors."""
    return [a_set(shape, seed + k) for k in range(1 + enough([Blocks(shape).width]))]


def seen(answer: torch.Tensor, error: torch.Tensor, nearby: torch.Tensor | None = None) -> Seen:
    """A whole output; without inputs nearby only errors tell."""
    nearby = torch.zeros_like(error) if nearby is None else nearby
    return Seen(answer.reshape(-1), error.reshape(-1), nearby.reshape(-1))


def allowed(found: list[tuple[torch.Tensor, torch.Tensor]], limits: Limits = EXACT) -> torch.Tensor:
    (answer, error), *others = found
    profile = Profile(tuple(answer.shape), [Draw.of(a.reshape(-1), e.reshape(-1)) for a, e in others])
    out = torch.empty(answer.numel(), dtype=torch.float64)
    profile.of_all(out, seen(answer, error), limits)
    return out.view(answer.shape)


def changed(
    found: list[tuple[torch.Tensor, torch.Tensor]], where: torch.Tensor, factor: float | torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All sets with some elements, and their errors, multiplied."""
    return [(torch.where(where, a * factor, a), torch.where(where, e * factor, e)) for a, e in found]


MAX_MOVED = 3.0
"""An element's tolerance moves by less than this when others change: one that leaves a group makes its mean another."""


@settings(max_examples=12, deadline=None)
@given(SHAPES, SEEDS, st.sampled_from([1e3, 1e9, 1e30]))
def test_an_outlier_widens_nothing_but_itself(shape: tuple[int, ...], seed: int, factor: float) -> None:
    found = sets(shape, seed)
    where = torch.zeros(found[0][0].numel(), dtype=torch.bool)
    where[seed % where.numel()] = True
    before, after = allowed(found), allowed(changed(found, where.view(shape), factor))
    others = ~where.view(shape)
    assert (after[others] <= MAX_MOVED * before[others]).all()


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([(96, 64), (40, 200)]), SEEDS, st.sampled_from([1e3, 1e6, 1e9]))
def test_a_cancelling_element_of_an_outlying_channel_may_err_like_its_channel(
    shape: tuple[int, int], seed: int, factor: float
) -> None:
    """Neighbours as large as it know nothing of its error, and a reference that was lucky there says too little."""
    found = sets(shape, seed)
    channel, row = shape[1] // 3, seed % shape[0]
    outlying = torch.zeros(shape, dtype=torch.bool)
    outlying[:, channel] = True
    found = changed(found, outlying, factor)
    (answer, error), *others = found
    answer[row, channel], error[row, channel] = 0.5, 1e-12
    nearby = torch.where(outlying, factor * 1e-7, 1e-7)
    profile = Profile(shape, [Draw.of(a.reshape(-1), e.reshape(-1)) for a, e in others])
    with_nearby, without = (torch.empty(answer.numel(), dtype=torch.float64) for _ in range(2))
    profile.of_all(with_nearby, seen(answer, error, nearby), EXACT)
    profile.of_all(without, seen(answer, error), EXACT)
    place = row * shape[1] + channel
    assert with_nearby[place] >= 0.1 * EXACT.factor * factor * 1e-7
    assert without[place] < with_nearby[place] / 10, "nothing else tells"
    others_widen = (with_nearby / without)[~outlying.reshape(-1)]
    assert (others_widen <= MAX_MOVED).all()


@settings(max_examples=12, deadline=None)
@given(SHAPES, SEEDS, st.sampled_from([1e3, 1e9]))
def test_what_moves_much_is_still_checked(shape: tuple[int, ...], seed: int, factor: float) -> None:
    """As of sin(2 ** 28 x), which the reference rounds well: alone, or beside others, which tell nothing of it."""
    (answer, error), *others = sets(shape, seed)
    profile = Profile(shape, [Draw.of(a.reshape(-1), e.reshape(-1)) for a, e in others])
    out = torch.empty(answer.numel(), dtype=torch.float64)
    change = torch.full_like(error, factor * 1e-7)
    profile.of_all(out, seen(answer, error, expected(error, change, answer, EXACT)), EXACT)
    most = MAX_MOVED * allowed([(answer, error), *others]) + 2.0**-12 * answer.abs()
    assert (out <= most.reshape(-1)).all()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(SHAPES.filter(lambda shape: len(shape) > 1 and shape[-1] != 2), SEEDS, st.sampled_from([1e-40, 1e-9, 1e9]))
def test_rows_of_another_size_have_a_tolerance_of_their_size(shape: tuple[int, ...], seed: int, factor: float) -> None:
    found = sets(shape, seed)
    where = torch.zeros(shape, dtype=torch.bool)
    where[shape[0] // 2 :] = True
    ratio = allowed(changed(found, where, factor)) / allowed(found)
    assert (ratio[~where] <= 2 * MAX_MOVED).all()
    # Where a value lies near zero beside a row a thousand million times as large, its own row's errors count.
    small = ratio[where] / factor
    assert (small.log10().abs() < 1.0).double().mean() > 0.95


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(SHAPES, SEEDS, st.floats(0.05, 0.7), st.sampled_from([-1e9, 0.0, 3e38]))
def test_exact_fills_widen_nothing(shape: tuple[int, ...], seed: int, share: float, fill: float) -> None:
    found = sets(shape, seed)
    masks = [torch.rand(shape, generator=torch.Generator().manual_seed(seed ^ k)) < share for k in range(len(found))]
    filled = [(torch.where(m, fill, a), torch.where(m, 0.0, e)) for m, (a, e) in zip(masks, found, strict=True)]
    others = ~masks[0]
    assert (allowed(filled)[others] <= MAX_MOVED * allowed(found)[others]).all()


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([(96, 64), (40, 200), (64, 16)]), SEEDS, st.sampled_from([1.0, 1e3, 1e6]))
def test_errors_elsewhere_widen_nothing_where_the_reference_is_exact(
    shape: tuple[int, ...], seed: int, factor: float
) -> None:
    """As of a copy beside a product: what the product errs says nothing of the copy."""
    found = sets(shape, seed)
    copied = torch.zeros(shape, dtype=torch.bool)
    copied[: shape[0] // 2] = True
    found = [(a, torch.where(copied, 0.0, factor * e)) for a, e in found]
    limits = allowed(found, FLOAT32)
    torch.testing.assert_close(limits[copied], FLOAT32.floor * found[0][0].abs()[copied].clamp(min=FLOAT32.tiny))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(SHAPES, SEEDS)
def test_a_block_with_its_first_errors_uses_those_of_the_whole_output(shape: tuple[int, ...], seed: int) -> None:
    """It may have been all zeros behind a ReLU, or all of one kind, on the sets that tell typical errors."""
    (answer, error), *others = sets(shape, seed)
    others = [(a, torch.zeros_like(e)) for a, e in others]
    before = allowed([(answer, torch.zeros_like(error)), *others])
    assert (before == 0).all()
    assert (allowed([(answer, error), *others]) >= 0.99 * EXACT.factor * error).all()


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([(96, 64), (40, 200)]), SEEDS, st.sampled_from([0.0, 1e-8]))
def test_a_sum_that_cancels_may_err_although_its_block_is_mostly_exact(
    shape: tuple[int, int], seed: int, nearby: float
) -> None:
    """As in a minimum of sums and exact values: few elements of a block err, and a reference without luck there would.

    A zero that a mask has put there errs on no inputs nearby.
    """
    (answer, error), *others = [(a, torch.where(a > 1.8, e, 0.0)) for a, e in sets(shape, seed)]
    place = seed % shape[0], seed % shape[1]
    answer[place] = error[place] = 0.0
    profile = Profile(shape, [Draw.of(a.reshape(-1), e.reshape(-1)) for a, e in others])
    out = torch.empty(answer.numel(), dtype=torch.float64)
    profile.of_all(out, seen(answer, error, torch.full_like(error, nearby)), EXACT)
    assert out.view(shape)[place] == EXACT.factor * nearby


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(96, 64), (40, 200), (64, 64)]), SEEDS, st.floats(0.1, 0.6))
def test_rounded_fills_widen_nothing(shape: tuple[int, ...], seed: int, share: float) -> None:
    """As of a mask that is added: a fill of a thousand millions errs by tens."""
    found = sets(shape, seed)
    masks = [torch.rand(shape, generator=torch.Generator().manual_seed(seed ^ k)) < share for k in range(len(found))]
    filled = [(torch.where(m, a - 1e9, a), torch.where(m, 3e8 * e, e)) for m, (a, e) in zip(masks, found, strict=True)]
    others = ~masks[0]
    assert (allowed(filled)[others] <= 4 * MAX_MOVED * allowed(found)[others]).all()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(96, 64), (40, 200), (64, 16), (512, 8)]), SEEDS, st.floats(0.5, 0.95), st.booleans())
def test_tolerance_falls_with_the_magnitude_of_fading_elements(
    shape: tuple[int, ...], seed: int, rate: float, along_rows: bool
) -> None:
    steps = torch.arange(shape[1] if along_rows else shape[0], dtype=torch.float64)
    fade = (rate**steps)[None] if along_rows else (rate**steps)[:, None]
    found = sets(shape, seed)
    faded = [(a * fade, e * fade) for a, e in found]
    # Zeros there are wrong: hardly an element may err by itself.
    assert (allowed(faded) >= faded[0][0].abs()).double().mean() < 0.05


@settings(max_examples=12, deadline=None)
@given(SHAPES, SEEDS, st.floats(-40, 40))
def test_tolerance_scales_with_the_unit_of_an_output(shape: tuple[int, ...], seed: int, exponent: float) -> None:
    factor = 2.0 ** round(exponent)
    found = sets(shape, seed)
    ratio = allowed([(a * factor, e * factor) for a, e in found]) / (factor * allowed(found))
    assert ((ratio > 0.8) & (ratio < 1.25)).all()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(96, 64), (40, 200)]), SEEDS)
def test_permuted_rows_have_permuted_tolerances(shape: tuple[int, ...], seed: int) -> None:
    found = sets(shape, seed)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(allowed([(a[order], e[order]) for a, e in found]), allowed(found)[order])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(SHAPES, SEEDS, st.sampled_from(["float64", "float32"]))
def test_a_sample_has_the_tolerance_of_the_whole_output(shape: tuple[int, ...], seed: int, dtype: str) -> None:
    (answer, error), *others = sets(shape, seed)
    profile = Profile(shape, [Draw.of(a.reshape(-1), e.reshape(-1)) for a, e in others])
    kind = getattr(torch, dtype)
    flat, errors = answer.reshape(-1).to(kind), error.reshape(-1).to(kind)
    out = torch.empty(flat.numel(), dtype=kind)
    profile.of_all(out, seen(flat, errors), FLOAT32)
    positions = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(seed))[:50]
    torch.testing.assert_close(profile.of_positions(positions, seen(flat, errors), FLOAT32), out[positions])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(SHAPES, SEEDS)
def test_every_tolerance_is_a_number_for_any_reference(shape: tuple[int, ...], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    odd = torch.tensor([0.0, 1.0, -1e30, 1e-45, float("nan"), float("inf"), -float("inf"), 1e300], dtype=torch.float64)

    def drawn() -> torch.Tensor:
        return odd[torch.randint(len(odd), shape, generator=generator)]

    found = [(answer := drawn(), error_of(drawn(), answer).view(shape)) for _ in range(4)]
    limits = allowed(found, FLOAT32)
    assert limits.isfinite().all()
    assert (limits > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("errs_like", ["a product", "its value"])
@pytest.mark.parametrize("shape", [(256, 256), (4096, 8), (65536,)])
def test_a_program_with_the_errors_of_the_reference_is_correct(shape: tuple[int, ...], errs_like: str) -> None:
    """Also where values lie near zero, and where they span many decades."""
    for seed in range(5):
        found = sets(shape, 100 * seed)
        mine = a_set(shape, 10**6 + seed)[1]
        if errs_like == "its value":
            found = [(a.mul(12.0).exp(), e * a.mul(12.0).exp()) for a, e in found]
            mine = mine * found[0][0]
        limits = allowed(found)
        assert (mine < 0.3 * limits).all()
        assert (100 * mine > limits).any(), "one that errs a hundred times as much is not"


@given(st.lists(st.integers(1, 9), max_size=4).map(tuple))
def test_blocks_hold_each_element_once(shape: tuple[int, ...]) -> None:
    blocks = Blocks(shape)
    places = blocks.places(slice(0, blocks.count), torch.device("cpu"))
    there = places[places >= 0]
    assert sorted(there.tolist()) == list(range(int(np.prod(shape))))
    positions = torch.arange(int(np.prod(shape)))
    assert (places[blocks.of(positions)] == positions[:, None]).any(1).all()


@settings(max_examples=50)
@given(st.data(), st.integers(1, 3000))
def test_integers_are_undecided_where_the_reference_or_near_ties_are(data: st.DataObject, size: int) -> None:
    answer = torch.randint(0, 100, (size,))
    mine, ties = answer.clone(), answer.clone()
    for one, most in ((mine, size), (ties, max(1, size // 1000))):
        places = data.draw(st.lists(st.integers(0, size - 1), max_size=most))
        one[places] += 100
    (found,) = second_values([mine], [answer], lambda sign: [ties if sign > 0 else answer])
    assert torch.equal(found, torch.where(mine != answer, mine, ties))


def test_ties_among_equal_inputs_decide_nothing() -> None:
    answer = torch.zeros(1000, dtype=torch.int64)
    (found,) = second_values([answer], [answer], lambda sign: [answer + 1])
    assert torch.equal(found, answer)
