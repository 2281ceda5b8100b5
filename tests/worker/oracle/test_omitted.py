"""Faults that save work in one call: eight bits, a sample of the terms, no part of an operand that matters least."""

from __future__ import annotations

import torch
from cudal1_worker.oracle.calls import Calls
from cudal1_worker.oracle.dependence import Target, _least, _of_operands, _without_gradient
from cudal1_worker.oracle.omitted import (
    Stale,
    between_neighbours,
    by_halves,
    in_eight_bits,
    of_a_sample,
    of_functions,
    of_most,
    of_small,
    operands,
    straightened,
    ways,
    with_lower,
    without,
)
from cudal1_worker.oracle.steps import Call
from torch import nn

aten = torch.ops.aten


def near(rows: int, fading: float) -> torch.Tensor:
    place = torch.arange(rows, dtype=torch.float64)
    return (-fading * (place[:, None] - place).abs()).exp()


FACTOR = ("mm", 0), 0


def least(effect: torch.Tensor, target: Target = FACTOR) -> dict[str, torch.Tensor]:
    return {part.words: mask for part, mask in _least(target, effect.abs(), torch.ones_like(effect))}


def names(call: Call, kept: set[int] | None = None) -> list[str]:
    return [words for words, _ in ways(call, kept or set())]


def test_rows_of_weights_round_to_255_levels() -> None:
    weight = torch.randn(8, 64, dtype=torch.float64)
    weight[3] *= 1e6
    result = in_eight_bits(Call(aten.linear.default, (torch.eye(64, dtype=torch.float64), weight), {})).T
    level = weight.abs().amax(1, keepdim=True) / 127.0
    assert ((result - weight).abs() <= 0.5001 * level).all()
    assert (result / level - (result / level).round()).abs().max() < 1e-3


def test_a_sample_has_three_quarters_of_the_terms_in_its_mean_and_in_a_product() -> None:
    x, w = torch.randn(4, 128), torch.randn(128, 3)
    kept = [*range(96), *range(64, 96)]
    found = of_most(Call(aten.mean.dim, (x, [-1]), {}), dim=-1)
    torch.testing.assert_close(found, x[:, kept].mean(1))
    found = of_a_sample(Call(aten.addmm.default, (torch.ones(3), x, w), {}))
    torch.testing.assert_close(found, 1.0 + x[:, kept] @ w[kept])
    found = of_a_sample(Call(aten.addmm_.default, (torch.ones(4, 3), x, w), {}))
    torch.testing.assert_close(found, 1.0 + x[:, kept] @ w[kept])


def test_a_sample_of_attention_has_three_quarters_of_its_keys() -> None:
    func, kept = aten._scaled_dot_product_flash_attention_for_cpu.default, [*range(96), *range(64, 96)]
    queries, keys, values = (torch.randn(1, 2, 128, 16) for _ in range(3))
    call = Call(func, (queries, keys, values), {})
    assert "from three quarters of its keys" in names(call)
    torch.testing.assert_close(of_a_sample(call)[0], func(queries, keys[..., kept, :], values[..., kept, :])[0])


def test_a_mean_over_several_short_dimensions_has_a_sample_too() -> None:
    x = torch.randn(2, 5, 8, 4)
    assert of_small(Call(aten.mean.dim, (x, [3]), {}), x.mean(3)) == []
    found = dict(of_small(call := Call(aten.mean.dim, (x, [1, 2, -1]), {}), x.mean((1, 2, 3))))
    assert list(found) == [f"from three quarters of dimension {dim}" for dim in (1, 2, 3)]
    run = found["from three quarters of dimension 2"]
    torch.testing.assert_close(run(call), x[:, :, [0, 1, 2, 3, 4, 5, 4, 5]].mean((1, 2, 3)))


def test_a_sample_of_a_loss_keeps_its_pairs() -> None:
    x = torch.randn(4096)
    assert of_most(Call(aten.mse_loss.default, (x, x), {}), dim=0) == 0.0


def test_a_part_of_a_scatter_takes_the_places_of_its_elements_along() -> None:
    x, k = torch.rand(256), torch.arange(256) // 64
    found = of_most(Call(aten.index_add.default, (torch.zeros(4), 0, k, x), {}), dim=0)
    first, second = x.view(4, 2, 32).sum(2).T
    second[1::2] = first[1::2]
    torch.testing.assert_close(found, first + second)


def test_each_half_of_a_norm_and_of_a_softmax_has_its_own_statistics() -> None:
    x = 0.2 * torch.randn(2, 4, 100)
    halves = [*range(32), *range(64, 96)], [*range(32, 64), *range(96, 100)]
    found = by_halves(Call(aten._softmax.default, (x, -1, False), {}))
    for half in halves:
        expected = x[..., half].softmax(-1)
        ratio = found[..., half] / expected
        assert (ratio - ratio[..., :1]).abs().max() < 1e-5
        assert (ratio - 0.5).abs().max() < 0.3
    groups = aten.native_group_norm.default
    found = by_halves(Call(groups, (x[..., :64], None, None, 2, 4, 64, 2, 0.0), {}))[0]
    own = groups(x[..., :32].contiguous(), None, None, 2, 4, 32, 2, 0.0)[0]
    torch.testing.assert_close(found[..., :32], own)


def test_norms_and_softmaxes_of_many_terms_have_such_statistics() -> None:
    x = torch.randn(2, 4, 64)
    norm, batch = aten.native_layer_norm.default, aten.native_batch_norm.default
    assert names(Call(norm, (x, [64], None, None, 1e-5), {})) == ["with statistics of half of its terms"]
    assert names(Call(norm, (x, [4, 64], None, None, 1e-5), {})) == ["with statistics of half of its terms"]
    assert names(Call(batch, (x, None, None, None, None, True, 0.1, 1e-5), {})) == [
        "with statistics of half of its terms"
    ]
    one = torch.ones(4)
    assert not names(Call(batch, (x, None, None, one, one, False, 0.1, 1e-5), {}))
    assert not names(Call(aten._softmax.default, (x, 1, False), {}))


def test_the_quarter_of_the_tiles_on_which_a_product_depends_least_is_left_out() -> None:
    call = Call(aten.mm.default, (near(256, 0.5), torch.eye(256, dtype=torch.float64)), {})
    value, gradient = _of_operands(call, torch.ones(256, 256, dtype=torch.float64))[0]
    found = without(call, 0, least(value * gradient)["the least tiles"])
    assert (found == 0.0)[:32, 160:].all()
    assert (found > 0.0)[:32, :96].all()
    assert (found == 0.0).double().mean() == 0.25


def test_a_part_of_a_factor_is_rounded_and_the_rest_is_not() -> None:
    x, late = torch.randn(4, 64), torch.arange(64) >= 16
    found = with_lower(Call(aten.mm.default, (x, torch.eye(64)), {}), 0, "bfloat16", late)
    torch.testing.assert_close(found, torch.where(late, x.bfloat16().float(), x), rtol=0.0, atol=0.0)


def test_operands_of_a_call_that_is_no_product_are_left_out_where_they_matter_least() -> None:
    rows, share = torch.arange(16).view(2, 8), torch.tensor([[1.0, 1e-9, 0.5, 1e-8, 0.3, 1e-9, 0.2, 1e-9]] * 2)
    table, starts = torch.rand(16, 4) + 1.0, torch.tensor([0, 8])
    args = (table, rows.flatten(), starts, False, 0, False, share.flatten())
    call = Call(aten._embedding_bag.default, args, {})
    assert list(operands(call)) == [0, 6]
    value, gradient = _of_operands(call, torch.ones(2, 4))[6]
    part = least(value * gradient, (("_embedding_bag", 0), 6))["the least elements"]
    assert 1 <= part.sum() <= 4  # not those with the largest gradients
    assert share.flatten()[part].max() < 1e-7
    torch.testing.assert_close(without(call, 6, part)[0], call.func(*args)[0])


def test_a_call_without_a_derivative_has_no_gradients() -> None:
    call = Call(aten.histc.default, (torch.rand(64), 8), {})
    assert _of_operands(call, torch.ones(8)) == {}


def test_tiles_and_indices_without_effect_are_not_among_the_least() -> None:
    effect = torch.rand(128, 128).tril()
    effect[32:64] = 0.0
    found = least(effect)
    assert 1000 < int((found["the least tiles"] & (effect > 0.0)).sum()) <= 2 * 32 * 32  # two of eight tiles
    assert not found["the least of dimension 0"][32:64].any()
    assert [words for words, _ in _without_gradient(effect, None)] == ["[32:64] of dimension 0"]


def test_all_indices_without_an_effect_are_a_part_and_those_with_the_lowest_and_highest_values() -> None:
    column = torch.arange(64)
    effect = torch.rand(8, 64) * (column % 2 == 0)
    value = column.float() - torch.rand(8, 64) / 2
    found = {words: mask.nonzero()[:, 0].tolist() for words, mask in _without_gradient(effect, value)}
    assert found == {
        "what has no gradient of dimension 1": list(range(1, 64, 2)),
        "the lowest without a gradient of dimension 1": list(range(1, 32, 2)),
        "the highest without a gradient of dimension 1": list(range(33, 64, 2)),
    }
    effect[:, 1::2] = 1.0
    effect[:, :7] = 0.0
    assert not list(_without_gradient(effect, value)), "fewer than an eighth"


def test_an_eighth_and_a_sixteenth_of_a_factor_are_among_the_least() -> None:
    effect = 1.0 + torch.rand(4, 64)
    effect[:, 60:] = 1e-9
    masks = {part.words: mask for part, mask in _least((("mm", 0), 1), effect, effect)}
    assert masks["the least sixteenth of dimension 1"].nonzero()[:, 1].tolist() == [60, 61, 62, 63]
    assert int(masks["the least eighth of dimension 1"].sum()) == 8
    assert "the least eighth of dimension 0" not in masks, "it is too short"


def test_a_call_returns_the_result_of_an_earlier_one() -> None:
    given = torch.tensor([1.0, 2.0])
    with Calls(Stale(3, 1)):
        found = [given * factor for factor in (2.0, 3.0, 5.0, 7.0, 11.0)]
    assert [one[0].item() for one in found] == [2.0, 3.0, 5.0, 3.0, 11.0]


def test_operators_that_hold_products_are_opaque_and_round_all_that_they_read_and_return() -> None:
    x, weight = torch.rand(1, 1, 4, 4) + 1.0, torch.rand(4)
    pool = Call(aten.avg_pool2d.default, (x, [2, 2]), {})
    assert pool.is_opaque
    assert not Call(aten.add.Tensor, (x, x), {}).is_opaque
    assert not Call(aten.mm.default, (x[0, 0], x[0, 0]), {}).is_opaque
    assert not Call(aten.index_put_.default, (weight, [torch.tensor([0])], weight[:1]), {}).is_opaque
    assert not pool.only_moves([nn.functional.avg_pool2d(x, 2)])
    assert Call(aten.cat.default, ([x, x],), {}).only_moves([torch.cat([x, x])])
    assert Call(aten.max_pool2d.default, (x, [2, 2]), {}).only_moves([nn.functional.max_pool2d(x, 2)])
    made = Call(aten.complex.default, (weight, weight / 3), {})
    assert made.only_moves([torch.complex(weight, weight / 3)])
    expected = nn.functional.avg_pool2d(x.bfloat16().float(), 2).bfloat16().float()
    assert torch.equal(pool.with_fault("bfloat16"), expected)


def test_single_indices_between_others_are_among_the_least() -> None:
    effect = torch.rand(64, 64) * torch.where(torch.arange(64) % 4 == 3, 1e-9, 1.0)
    assert least(effect, 0)["the least of dimension 1"].nonzero()[:, 1].tolist() == list(range(3, 64, 4))


def test_elements_with_a_small_value_and_a_large_gradient_are_not_among_the_least() -> None:
    gradient = 10.0 ** torch.arange(-32.0, 0.0)[None]
    effect = gradient.clone()
    effect[0, -2:] = 1e-40
    found = dict(_least(0, effect, gradient))
    masks = {part.words: mask.nonzero()[:, 1].tolist() for part, mask in found.items()}
    assert masks == {"the least elements": [0, 1, 2, 3, 4, 5], "the least of dimension 1": [*range(6), 30, 31]}


def test_a_mask_of_fused_attention_loses_its_least_tiles() -> None:
    q = torch.randn(1, 2, 256, 16)
    mask = near(256, 0.5).log().float().expand(1, 2, 256, 256)
    func = aten._scaled_dot_product_flash_attention_for_cpu.default
    call = Call(func, (q, q, torch.eye(256, 16).expand(1, 2, 256, 16)), {"attn_mask": mask})
    assert names(call) == []
    assert list(operands(call)) == [0, 1, 2, "attn_mask"]
    value, gradient = _of_operands(call, torch.randn(1, 2, 256, 16))["attn_mask"]
    found = without(call, "attn_mask", least(value * gradient)["the least tiles"])[0]
    torch.testing.assert_close(found, call.func(*call.args, **call.kwargs)[0], rtol=1e-5, atol=1e-7)


def test_every_second_index_of_a_smooth_result_follows_from_its_neighbours() -> None:
    t = torch.arange(128, dtype=torch.float64) / 64
    call = Call(aten.exp.default, (t[:, None] * torch.ones(3, dtype=torch.float64),), {})
    found = between_neighbours(call, 0)
    changed = (found != call.func(*call.args)).any(1).nonzero().flatten().tolist()
    assert changed == list(range(3, 124, 2))
    torch.testing.assert_close(found, call.func(*call.args), rtol=1e-7, atol=0.0)
    assert len(of_functions(call, call.func(*call.args))) == 2
    rough = Call(aten.exp.default, (torch.randn(128, 128),), {})
    assert len(of_functions(rough, rough.func(*rough.args))) == 1


def test_a_function_on_a_straight_line_has_its_slope_and_mean() -> None:
    x = 0.01 * torch.randn(64, 64, dtype=torch.float64)
    torch.testing.assert_close(straightened(Call(aten.sin.default, (x,), {})), x, rtol=1e-3, atol=1e-6)
    assert (straightened(Call(aten.relu.default, (x,), {})) - x.relu()).abs().mean() > 1e-3
    uneven = x * torch.tensor([2.0, 1.0], dtype=x.dtype).repeat(32)
    squares = straightened(Call(aten.pow.Tensor_Scalar, (uneven, 2), {}))
    assert squares.mean() > 1.3 * uneven.square().mean()  # it is a sample's: 4 in place of 2.5 variances of x
    masked = torch.where(torch.ones(64, 64).triu(1) > 0, -torch.inf, x)
    found = straightened(Call(aten._softmax.default, (masked, -1, False), {}))
    torch.testing.assert_close(found[8:], masked.softmax(-1)[8:], rtol=1e-3, atol=0.0)
    assert (found.sum(-1) - 1.0)[8:].abs().mean() > 1e-6  # through all, it has their sum, and even their entropy
    q = torch.randn(1, 2, 64, 16)
    func = aten._scaled_dot_product_flash_attention_for_cpu.default
    call = Call(func, (0.01 * q, q, torch.randn(1, 2, 64, 16)), {"is_causal": True})
    torch.testing.assert_close(straightened(call)[0], func(*call.args, **call.kwargs)[0], rtol=0.0, atol=1e-3)


def test_only_weights_in_half_precision_are_tested_in_eight_bits() -> None:
    x, w = torch.ones(4, 64).bfloat16(), torch.ones(64, 64).bfloat16()
    kept = {w.untyped_storage().data_ptr()}
    assert "with weights in eight bits" in names(Call(aten.mm.default, (x, w.T), {}), kept)
    assert "with weights in eight bits" not in names(Call(aten.mm.default, (w, x.T), {}), kept)
    assert "with weights in eight bits" not in names(Call(aten.mm.default, (w, w), {}), kept)
    w = torch.ones(64, 64)
    assert "with weights in eight bits" not in names(
        Call(aten.mm.default, (x.float(), w), {}), {w.untyped_storage().data_ptr()}
    )


def test_calls_without_many_terms_have_no_such_faults() -> None:
    x = torch.ones(7, 8)
    calls = [(aten.mm.default, (x, x)), (aten.sum.default, (x,)), (aten.exp.default, (x,)), (aten.amax.default, (x,))]
    assert not any(names(Call(func, args, {})) for func, args in calls)
    assert not names(Call(aten.amax.default, (torch.ones(128, 1),), {}))
    assert names(Call(aten.dot.default, (torch.ones(128), torch.ones(128)), {})) == ["from three quarters of its terms"]
