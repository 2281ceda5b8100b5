"""Further ways in which a program could save work in one call.

Each function executes a call with such a fault: a product's weights in eight bits, a sum from a sample of its terms, a
norm or a softmax with the statistics of a sample, a product without the tiles of a factor that hold least. `unseen`
tests them in the float64 twin, where no other step errs, because a program may do all other steps more accurately than
the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any

import torch

from cudal1_worker.oracle.steps import BATCH_NORMS, HALF, LOWER, NORMS, SOFTMAX, Call

_TILE = 32
"""Side of a tile, and number of adjacent terms that a sample has in common: programs do not read less at a time."""
_LEAST = 4
"""One of so many tiles is left out."""
_MOST = 2
"""Weights have more than this many times the elements of the other factor and the result; otherwise eight bits save
little."""
_SUMS = (
    *("sum", "nansum", "mean", "logsumexp", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm"),
    *("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
)
"""Reductions that a sample of their terms estimates."""
_MASKS = ("attn_mask", "attn_bias")


def ways(call: Call, kept: Container[int]) -> list[tuple[str, Callable[[Call], Any]]]:
    """Return the functions below that apply to a call, each with its words.

    Args:
        call: The call.
        kept: Addresses of the model's state: weights that a program can round once for all calls.
    """
    found: list[tuple[str, Callable[[Call], Any]]] = []
    if call.kind is None or call.dtype not in LOWER:
        return found
    many, product = call.terms >= 2 * _TILE, call.kind == "product"
    if many and (product or call.name in _SUMS):
        found.append(("from half of its terms", of_a_sample))
    if many and call.name in NORMS | SOFTMAX and _normed(call) is not None:
        found.append(("with statistics of half of its terms", by_halves))
    matrices = many and product and call.name != "convolution" and call.args[call.product.factors[0]].ndim > 1
    if matrices and call.dtype in HALF and _is_weight(call, kept):
        found.append(("with weights in eight bits", in_eight_bits))
    if (matrices or (product and _mask(call) is not None)) and bool(_least(call).any()):
        found.append(("without the tiles that hold least", without_least))
    return found


def in_eight_bits(call: Call) -> Any:
    """Execute a product with its last factor rounded to integers of eight bits, with a scale for each row."""
    args = list(call.args)
    weight = args[call.factor]
    scale = weight.float().abs().amax(call.along[1], keepdim=True).clamp(min=1e-30) / 127.0
    args[call.factor] = ((weight.float() / scale).round() * scale).to(weight.dtype)
    return call.func(*args, **call.kwargs)


def of_a_sample(call: Call) -> Any:
    """Execute a sum with half of its terms, each in place of one more."""
    args = list(call.args)
    places = [(k, call.dim) for k, one in enumerate(args) if getattr(one, "shape", ()) == args[0].shape]
    if call.kind == "product":
        places = list(zip(call.product.factors, call.along, strict=True))
    for place, dim in places:
        at = torch.arange(call.terms, device=args[place].device)
        args[place] = args[place].index_select(dim, at - at // _TILE % 2 * _TILE)
    return call.func(*args, **call.kwargs)


def by_halves(call: Call) -> Any:
    """Execute a norm or a softmax whose terms are divided into two halves, each with the statistics of its own."""
    x, dim = call.args[0], _normed(call)
    assert dim is not None
    at = torch.arange(x.shape[dim], device=x.device)
    back = at // _TILE % 2 * _TILE
    ahead = (at + _TILE - back).clamp(max=len(at) - 1)
    first, second = (
        call.func(x.index_select(dim, places), *call.args[1:], **call.kwargs) for places in (at - back, ahead)
    )
    one, other = (found[0] if isinstance(found, tuple) else found for found in (first, second))
    own = (back == 0).view(-1, *[1] * (x.ndim - 1 - dim % x.ndim))
    result = torch.where(own, one, other)
    return (result, *first[1:]) if isinstance(first, tuple) else result


def without_least(call: Call, fill: float = 0.0) -> Any:
    """Execute a product without some tiles of its first factor: the quarter that holds least of its rows' sums.

    Of fused attention, these are tiles of the mask.

    Args:
        call: The call.
        fill: Value in place of the factor's.
    """
    least = _least(call)
    if (name := _mask(call)) is not None:
        mask = call.bound[name].masked_fill(least, math.log(fill) if fill else -torch.inf)
        return call.func(**call.bound | {name: mask})
    args = list(call.args)
    place = call.product.factors[0]
    args[place] = args[place].masked_fill(least, fill)
    return call.func(*args, **call.kwargs)


def _is_weight(call: Call, kept: Container[int]) -> bool:
    """Return whether a product's last factor is state, and most of what it reads and writes."""
    first, weight = call.args[call.product.factors[0]], call.args[call.factor]
    rows = first.numel() // call.terms
    others = first.numel() + rows * (weight.numel() // call.terms)
    return weight.numel() > _MOST * others and weight.untyped_storage().data_ptr() in kept


def _normed(call: Call) -> int | None:
    """Return the longest dimension along which a norm or a softmax takes statistics; None for a short one."""
    x = call.args[0]
    if call.name in SOFTMAX:
        dims = [call.dim]
    elif "normalized_shape" in call.bound:
        dims = list(range(x.ndim - len(call.bound["normalized_shape"]), x.ndim))
    else:
        dims = [dim for dim in range(x.ndim) if dim > 1 or (dim == 0 and call.name in BATCH_NORMS)]
    longest = max(dims, key=lambda dim: x.shape[dim], default=None)
    return longest if longest is not None and x.shape[longest] >= 2 * _TILE else None


def _mask(call: Call) -> str | None:
    """Return the name of a mask that is added to fused attention's scores; None if there is none."""
    found = [name for name in _MASKS if isinstance(call.bound.get(name), torch.Tensor)]
    return next((name for name in found if call.bound[name].is_floating_point()), None)


def _least(call: Call) -> torch.Tensor:
    """Return which elements `without_least` leaves out; zeros do not count."""
    name = _mask(call)
    size = call.args[call.product.factors[0]].abs() if name is None else call.bound[name].double().exp()
    flat = size.reshape(-1, *size.shape[-2:]).float()
    tiles = torch.nn.functional.avg_pool2d(flat, _TILE, ceil_mode=True)
    share = tiles / tiles.sum(-1 if name else call.along[0], keepdim=True)
    some = share[share > 0.0].sort().values
    least = (share > 0.0) & (share <= some[max(1, len(some) // _LEAST) - 1]) if len(some) else share > 0.0
    wide = least.repeat_interleave(_TILE, -2)[:, : flat.shape[1]].repeat_interleave(_TILE, -1)[..., : flat.shape[2]]
    return wide.reshape(size.shape)
