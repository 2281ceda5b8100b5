"""Further ways in which a program could save work in one call.

Each function executes a call with such a fault: a product's weights in eight bits, a sum from a sample of its terms, a
norm or a softmax with the statistics of a sample, a product without a part of an operand, a part of a result from
another call or in lower precision, every second index of a smooth result from its neighbours (a grid), a function on a
straight line (then products before and after it are one, and attention needs no scores). `unseen` tests most of them in
the float64 twin, where no other step errs, because a program may do all other steps more accurately than the reference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from cudal1_worker.oracle.calls import results, tensors
from cudal1_worker.oracle.models import same_bits
from cudal1_worker.oracle.steps import BATCH_NORMS, CHOICES, HALF, LOWER, NORMS, SOFTMAX, Call, rounded

TILE = 32
"""Side of a tile, and number of adjacent terms that a sample has in common: programs do not read less at a time."""
_MOST = 2
"""Weights have more than this many times the elements of the other factor and the result; otherwise eight bits save
little."""
_MASKS = ("attn_mask", "attn_bias")
_SCORES = 1 << 26
"""Maximum number of attention scores at a time."""
_FAR = 1e3
"""Values so many times a result's range beyond it are far from all that it may have; a result without negative values
whose smallest is this much smaller than its largest has none."""
_SMOOTH = 2.0**-6
"""A result is smooth if its neighbours tell its elements to within this share of themselves."""


def ways(call: Call, kept: Container[int]) -> list[tuple[str, Callable[[Call], Any]]]:
    """Return the functions below that apply to a call, each with its words.

    Args:
        call: The call.
        kept: Addresses of the model's state: weights that a program can round once for all calls.
    """
    found: list[tuple[str, Callable[[Call], Any]]] = []
    if call.kind is None or call.dtype not in LOWER:
        return found
    many, product = call.terms >= 2 * TILE, call.kind == "product"
    if call.bound.get("is_causal") is False and all(call.bound.get(name) is None for name in _MASKS):
        found += [("from three quarters of its keys", of_a_sample)] if call.args[1].shape[-2] >= 2 * TILE else []
    if many and product:
        found.append(("from three quarters of its terms", of_a_sample))
    if many and call.name in NORMS | SOFTMAX and _normed(call) is not None:
        found.append(("with statistics of half of its terms", by_halves))
    if many and product and call.name != "convolution" and call.dtype in HALF and _is_weight(call, kept):
        found.append(("with weights in eight bits", in_eight_bits))
    return found


def of_small(call: Call, result: torch.Tensor) -> list[tuple[str, Callable[[Call], Any]]]:
    """Return those that apply only to a call, no product, whose result is much smaller than an operand."""
    largest = _largest(call)
    if call.kind == "product" or largest is None or 2 * TILE * result.numel() > largest.numel():
        return []
    dims = sorted(dim % largest.ndim for dim in call.reduced) if call.kind == "reduction" else range(largest.ndim)
    long = [dim for dim in dims if largest.shape[dim] >= 4]
    return [(f"from three quarters of dimension {dim}", partial(of_most, dim=dim)) for dim in long]


def of_functions(call: Call, result: torch.Tensor) -> list[tuple[str, Callable[[Call], Any]]]:
    """Return those that apply to a function, and to a smooth result."""
    if call.kind is None or not result.is_floating_point():
        return []
    found = [
        (f"with every second index of dimension {dim} between its neighbours", partial(between_neighbours, dim=dim))
        for dim, size in enumerate(result.shape)
        if size >= 2 * TILE and _is_smooth(result, dim)
    ]
    return [*found, *([("on a straight line", straightened)] if "is_causal" in call.bound or is_curved(call) else [])]


def is_curved(call: Call) -> bool:
    """Return whether a call is a function or a softmax. On a straight line, products beside it are one."""
    return call.kind == "elementwise" or call.name in ("_softmax", "hardsigmoid")


def passed(call: Call, result: torch.Tensor) -> list[tuple[str, Callable[[Call], Any]]]:
    """Return a function for each operand that a choice may return as it is, such as a limit that nothing reaches."""
    places = [k for k, one in enumerate(call.args) if any(one is own for own in call.operands)]
    same = [k for k in places if call.args[k].shape == result.shape]
    return [(f"as its operand {k}", partial(as_operand, place=k)) for k in same if call.name in CHOICES]


def kept(call: Call, result: torch.Tensor) -> list[tuple[str, Callable[[Call], Any]]]:
    """Return a function for each operand that a call which orders or moves elements returned as it is."""
    found = [(k, one) for k, one in enumerate(call.args) if any(one is own for own in call.operands)]
    return [(f"as its operand {k}", partial(as_operand, place=k)) for k, one in found if same_bits(one, result)]


def as_operand(call: Call, place: int) -> Any:
    """Execute a call and put one of its operands in place of its result."""
    own = call.args[place].clone()
    result = call.func(*call.args, **call.kwargs)
    tensors(result)[0].copy_(own)
    return result


def in_eight_bits(call: Call) -> Any:
    """Execute a product with its last factor rounded to integers of eight bits, with a scale for each row."""
    args = list(call.args)
    weight = args[call.factor]
    scale = weight.float().abs().amax(call.along[1], keepdim=True).clamp(min=1e-30) / 127.0
    args[call.factor] = ((weight.float() / scale).round() * scale).to(weight.dtype)
    return call.func(*args, **call.kwargs)


def of_a_sample(call: Call) -> Any:
    """Execute a product with three quarters of its terms, or fused attention of its keys, some in place of one more."""
    args = list(call.args)
    is_attention = call.product.along is None
    for place, dim in ((1, -2), (2, -2)) if is_attention else zip(call.product.factors, call.along, strict=True):
        args[place] = args[place].index_select(dim, _most_of(args[place].shape[dim], args[place].device))
    return call.func(*args, **call.kwargs)


def of_most(call: Call, dim: int) -> Any:
    """Execute a call with three quarters of the largest operand's indices of a dimension, some in place of one more.

    Tensors of its shape (where its elements go) and lines of its length (where its rows go) follow.
    """
    largest = _largest(call)
    assert largest is not None
    some = _most_of(largest.shape[dim], largest.device)

    def halved(one: torch.Tensor) -> torch.Tensor:
        if one.shape == largest.shape:
            return one.index_select(dim, some)
        return one.index_select(0, some) if one.shape == some.shape else one

    args, kwargs = tree_map_only(torch.Tensor, halved, (call.args, call.kwargs))
    return call.func(*args, **kwargs)


def _largest(call: Call) -> torch.Tensor | None:
    """Return the largest operand, an integer one if there are no others."""
    given = call.operands or [one for one in tensors(call.args) if one.layout is torch.strided]
    return max(given, key=torch.Tensor.numel, default=None)


def _most_of(count: int, device: torch.device) -> torch.Tensor:
    """Return indices with each fourth tile, a shorter one in a short dimension, replaced by the one before it."""
    at, tile = torch.arange(count, device=device), min(TILE, max(1, count // 4))
    return at - (at // tile % 4 == 3) * tile


def between_neighbours(call: Call, dim: int) -> Any:
    """Execute a call and put every second index of a dimension of its result on a cubic through the others."""
    result = call.func(*call.args, **call.kwargs)
    second, cubic = _second(tensors(result)[0], dim)
    second.copy_(cubic)
    return result


def _second(value: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a view of every second index of a dimension, without the ends, and what a cubic through the others has."""
    lines = value.movedim(dim, -1)
    others = lines[..., ::2]
    inner, outer = others[..., 1:-2] + others[..., 2:-1], others[..., :-3] + others[..., 3:]
    return lines[..., 3 : 2 * others.shape[-1] - 4 : 2], inner / 2 + (inner - outer) / 16  # equal elements stay


def _is_smooth(value: torch.Tensor, dim: int) -> bool:
    second, cubic = _second(value[tuple(slice(None if k == dim else 8) for k in range(value.ndim))], dim)
    return bool((second - cubic).norm() <= _SMOOTH * second.norm())


def straightened(call: Call) -> Any:
    """Execute a function, a row of a softmax or of attention's weights with its results on a straight line."""
    x = call.args[0].clone()
    result = call.func(*call.args, **call.kwargs)
    own = tensors(result)[0]
    if "is_causal" in call.bound:
        one = x.shape[-2] * call.args[1].shape[-2]
        apart = next((dim for dim in range(own.ndim - 2) if own.shape[dim:-2].numel() * one <= _SCORES), own.ndim - 2)
        for index in itertools.product(*map(range, own.shape[:apart])):
            scores = scores_of(call, index)
            weights = scores.softmax(-1)
            line = _straight(scores.masked_fill(weights == 0.0, torch.nan), weights, [-1])
            own[index] = (line @ _heads(call.args[2], own)[index].to(line.dtype)).to(own.dtype)
        return result
    # A line through all results would have their exact mean, and for a softmax their entropy.
    if call.name in SOFTMAX:
        along, lines = x.masked_fill(own == 0.0, torch.nan).movedim(call.dim, -1), own.movedim(call.dim, -1)
        lines.copy_(_straight(along, lines, [-1], every=2))
    else:
        own.copy_(_straight(x.flatten(), own.flatten(), [0], every=2).view_as(own))
    return result


def _straight(x: torch.Tensor, y: torch.Tensor, dims: list[int], every: int = 1) -> torch.Tensor:
    """Return the least squares line through every `every`-th element, and zero where x is NaN."""
    y = torch.where(x.isnan(), torch.nan, y)[..., ::every]
    some = x[..., ::every]
    middle = some.nanmean(dims, keepdim=True)
    some = some - middle
    slope = (some * y).nansum(dims, keepdim=True) / (some * some).nansum(dims, keepdim=True)
    return (y.nanmean(dims, keepdim=True) + slope.nan_to_num(0.0) * (x - middle)).nan_to_num(0.0)


def scores_of(call: Call, index: tuple[int, ...] = ()) -> torch.Tensor:
    """Return the scores of fused attention at an index of its leading dimensions, in float32 for half precision."""
    q, k = (_heads(one, call.args[0])[index] for one in call.args[:2])
    q, k = (one.float() if one.dtype in HALF else one for one in (q, k))
    scores = q @ k.mT * (call.bound["scale"] or q.shape[-1] ** -0.5)
    for mask in (call.bound[name] for name in _MASKS if call.bound.get(name) is not None):
        scores = scores + mask.expand(*call.args[0].shape[:-1], k.shape[-2])[index]
    if not call.bound["is_causal"]:
        return scores
    return scores.masked_fill_(scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


def _heads(value: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Return queries, keys or values with as many heads as the queries have."""
    few = value.shape[:-2] != queries.shape[:-2]
    return value.repeat_interleave(queries.shape[-3] // value.shape[-3], -3) if few else value


def by_halves(call: Call) -> Any:
    """Execute a norm or a softmax whose terms are divided into two halves, each with the statistics of its own."""
    x, dim = call.args[0], _normed(call)
    assert dim is not None
    at, tile = torch.arange(x.shape[dim], device=x.device), min(TILE, (x.shape[dim] + 1) // 2)
    back = at // tile % 2 * tile
    ahead = (at + tile - back).clamp(max=len(at) - 1)
    first, second = (
        call.func(x.index_select(dim, places), *call.args[1:], **call.kwargs) for places in (at - back, ahead)
    )
    one, other = (found[0] if isinstance(found, tuple) else found for found in (first, second))
    own = (back == 0).view(-1, *[1] * (x.ndim - 1 - dim % x.ndim))
    result = torch.where(own, one, other)
    return (result, *first[1:]) if isinstance(first, tuple) else result


def without(call: Call, operand: int | str, part: torch.Tensor, *, fill: float = 0.0) -> Any:
    """Execute a call without a part of an operand, or fused attention without a part of its mask.

    Args:
        call: The call.
        operand: The operand's position, or the mask's name.
        part: Mask of the part.
        fill: What replaces the part.
    """
    if isinstance(operand, str):
        return call.func(
            **call.bound | {operand: torch.where(part, math.log(fill) if fill else -torch.inf, call.bound[operand])}
        )
    args = list(call.args)
    args[operand] = args[operand].masked_fill(part, fill)
    return call.func(*args, **call.kwargs)


def exchanged(call: Call, operand: int, part: torch.Tensor, other: torch.Tensor) -> Any:
    """Execute a call with a part of another call's operand, or without that part if the other call has the same."""
    args = list(call.args)
    own = args[operand]
    args[operand] = torch.where(part, torch.zeros_like(own) if same_bits(own, other) else other, own)
    return call.func(*args, **call.kwargs)


def operands(call: Call) -> dict[int | str, torch.Tensor]:
    """Return a product's factors by position, and by its name the mask that fused attention adds to its scores.

    Of a call that is no product return all floating-point and complex tensors by position.
    """
    if call.kind != "product":
        return {place: one for place, one in enumerate(call.args) if any(one is own for own in call.operands)}
    found: dict[int | str, torch.Tensor] = {place: call.args[place] for place in call.product.factors}
    masks = {name: call.bound.get(name) for name in _MASKS}
    return found | {name: one for name, one in masks.items() if one is not None and one.is_floating_point()}


def _is_weight(call: Call, kept: Container[int]) -> bool:
    """Return whether a product's last factor is state, and most of what it reads and writes."""
    first, weight = call.args[call.product.factors[0]], call.args[call.factor]
    rows = first.numel() // call.terms
    others = first.numel() + rows * (weight.numel() // call.terms)
    return weight.numel() > _MOST * others and weight.untyped_storage().data_ptr() in kept


def _normed(call: Call) -> int | None:
    """Return the longest dimension along which a norm or a softmax takes statistics; None for few terms."""
    x = call.args[0]
    if call.name in SOFTMAX:
        dims = [call.dim]
    elif "normalized_shape" in call.bound:
        dims = list(range(x.ndim - len(call.bound["normalized_shape"]), x.ndim))
    else:
        dims = [dim for dim in range(x.ndim) if dim > 1 or (dim == 0 and call.name in BATCH_NORMS)]
    many = math.prod(x.shape[dim] for dim in dims) >= 2 * TILE
    return max(dims, key=lambda dim: x.shape[dim]) if many else None


def replaced(
    call: Call,
    part: torch.Tensor,
    others: list[torch.Tensor] | None,
    number: int = 0,
    *,
    end: Callable[[torch.Tensor], float] | None = None,
) -> Any:
    """Execute a call and replace a part of a result, and of those of its shape.

    Args:
        call: The call.
        part: Mask of the part.
        others: What replaces it; None is NaN, or a value far from all that the result has.
        number: Number of the result.
        end: Returns such a value: `far_above` or `far_below`.
    """
    result = call.func(*call.args, **call.kwargs)
    if not call.func._schema.is_mutable:  # it may be an operand, or overlap itself
        result = tree_map_only(torch.Tensor, torch.Tensor.clone, result)
    own = results(result, number)
    stand_in = None if others is None else results(others, number)
    if stand_in is None:
        if not own[0].is_floating_point():
            raise TypeError("no integer is NaN")
        fill = math.nan if end is None else end(own[0])
        stand_in = [torch.full_like(one, fill) if one.is_floating_point() else one for one in own]
    if [one.shape for one in own] == [one.shape for one in stand_in]:
        for one, other in zip(own, stand_in, strict=True):
            one.copy_(torch.where(part, other, one))
    return result


def far_below(value: torch.Tensor) -> float:
    """Return a number far below all elements, or zero if none can be negative."""
    top, bottom = float(value.max()), float(value.min())
    if 0.0 <= _FAR * bottom <= top:
        return 0.0
    return bottom - _FAR * max(top - bottom, abs(bottom))


def zeroed(call: Call, part: torch.Tensor) -> Any:
    """Execute a call with zeros in a part of its result."""
    return replaced(call, part, None, end=lambda _: 0.0)


def far_above(value: torch.Tensor) -> float:
    """Return a number far above all elements, or zero if none can be positive."""
    return -far_below(-value)


def with_lower(call: Call, operand: int, fault: str, part: torch.Tensor) -> Any:
    """Execute a product with a part of a factor in lower precision."""
    args = list(call.args)
    args[operand] = torch.where(part, rounded(args[operand], fault), args[operand])
    return call.func(*args, **call.kwargs)


def lowered(call: Call, fault: str, part: torch.Tensor) -> Any:
    """Execute a call, and a part of it with a fault."""
    args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.clone, (call.args, call.kwargs))
    return replaced(call, part, tensors(Call(call.func, args, kwargs).with_fault(fault)))


def with_results(call: Call, to: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Execute a call and change its floating-point results."""

    def changed(value: torch.Tensor) -> torch.Tensor:
        return to(value) if value.is_floating_point() else value

    return tree_map_only(torch.Tensor, changed, call.func(*call.args, **call.kwargs))


class Stale:
    """Executes all calls of a forward pass, and gives one of them the result of an earlier one.

    Args:
        number: Number of the call.
        before: Number of the earlier one.
    """

    def __init__(self, number: int, before: int) -> None:
        self._number, self._before = number, before
        self._kept: list[torch.Tensor] = []

    def __call__(self, call: Call) -> Any:
        """Execute one call."""
        if call.number == self._number:
            return replaced(call, torch.ones((), dtype=torch.bool, device=self._kept[0].device), self._kept)
        result = call.func(*call.args, **call.kwargs)
        if call.number == self._before:
            self._kept = [one.clone() for one in tensors(result)]
        return result
