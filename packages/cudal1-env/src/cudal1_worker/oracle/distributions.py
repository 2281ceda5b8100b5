"""Transforms a task's inputs and weights to values that a candidate cannot know.

Each transformation keeps properties on which a program may rely: zeros (triangular and masked inputs), positive
tensors, the range [0, 1], symmetric matrices, rows that sum to one, and rows in ascending order. Tensors of few
distinct values (labels, masks) do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

NAMES = ("own", "shifted", "heavy", "needle")
"""`own`: the task's values; `shifted`: another scale and mean; `heavy`: magnitudes over several decades; `needle`:
one element outweighs all others."""

_CATEGORICAL = 16


@dataclass(frozen=True)
class Nature:
    """Properties that hold in a few draws of an input; few, because each costs a GPU synchronisation."""

    movable: bool
    """Whether values may be replaced."""
    unit: bool
    """Whether all lie in [0, 1]."""
    positive: bool
    """Whether none is negative."""
    symmetric: bool
    """Whether it consists of symmetric matrices."""
    simplex: bool
    """Whether each row lies in [0, 1] and sums to one."""
    ascending: bool
    """Whether each row is in ascending order, as boundaries are."""

    def __and__(self, other: Nature) -> Nature:
        """Return the properties that both have."""
        return Nature(*(mine and theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def nature_of(value: Any) -> Nature:
    """Return the properties of one draw of an input."""
    if not is_movable(value):
        return Nature(False, False, False, False, False, False)
    unit = is_unit(value)
    ascending = bool((value[..., 1:] >= value[..., :-1]).all())
    simplex = unit and rows_sum_to_one(value)
    return Nature(True, unit, bool(value.min() >= 0.0), is_symmetric(value), simplex, ascending)


def transform(values: list[Any], name: str, seed: int, natures: Sequence[Nature] | None = None) -> list[Any]:
    """Transform input values to a distribution.

    Args:
        values: Values from `get_inputs`; only floating-point tensors change.
        name: One of `NAMES`.
        seed: Seed of the transformation.
        natures: Properties of each value, from earlier draws; None to use those of `values`.
    """
    if name == "own":
        return values
    if natures is None or len(natures) != len(values):
        natures = [nature_of(value) for value in values]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    generator = torch.Generator(tensors[0].device if tensors else "cpu").manual_seed(seed)
    pairs = zip(values, natures, strict=True)
    return [_moved(value, nature, name, generator) if nature.movable else value for value, nature in pairs]


def reals(value: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as real, detached, with a last dimension of 2; any other tensor unchanged."""
    return torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value


def is_movable(value: Any) -> bool:
    """Return whether a value is a tensor of many distinct, finite floating-point numbers, which may be replaced."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 2:
        return False
    some = value.flatten()[:: -(-value.numel() // 4096)]
    return bool(value.isfinite().all()) and some.unique().numel() > min(_CATEGORICAL, value.numel() // 2)


def is_unit(x: torch.Tensor) -> bool:
    """Return whether all values lie in [0, 1]."""
    return float(x.min()) >= 0.0 and float(x.max()) <= 1.0


def is_symmetric(x: torch.Tensor) -> bool:
    """Return whether a tensor consists of symmetric matrices."""
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2] and torch.equal(x, x.mT)


def rows_sum_to_one(x: torch.Tensor) -> bool:
    """Return whether each row (last dimension) of a floating-point tensor sums to one."""
    total = x.sum(-1, dtype=torch.float64)
    return x.ndim >= 1 and torch.allclose(total, torch.ones((), dtype=total.dtype, device=x.device), atol=1e-4)


def as_large_as_may_be(value: Any) -> Any:
    """Return a floating-point input scaled so that its largest magnitude is its dtype's largest number."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    limits = torch.finfo(value.dtype)
    return value / value.abs().amax().clamp(min=limits.tiny) * limits.max


def _moved(value: torch.Tensor, nature: Nature, name: str, generator: torch.Generator) -> torch.Tensor:
    x = value.double()
    if name == "shifted":
        y = x.sqrt() if nature.unit else 1.5 * x + (0.25 if nature.positive else 0.5) * x.std()
    elif name == "heavy":
        factor = torch.randn(x.shape, generator=generator, dtype=torch.float64, device=x.device).mul_(1.2).exp_()
        y = x.pow(4) if nature.unit else x * factor
    else:
        y = (0.25 * x if nature.unit else x).contiguous().clone()  # the other values do not reveal the needle
        place = torch.randint(x.numel(), (1,), generator=generator, device=x.device)
        y.view(-1).index_copy_(0, place, x.new_ones(1) if nature.unit else (40.0 * x.std()).reshape(1))
    y = torch.where(x != 0, y, x)
    if nature.symmetric:
        y = (y + y.mT) / 2
    if nature.simplex:
        y = y / y.sum(-1, keepdim=True)
    if nature.ascending:
        y = y.sort().values
    out = torch.empty_like(value)
    return out.copy_(y)


def is_fixed(value: torch.Tensor, other: torch.Tensor, *, parameter: bool) -> bool:
    """Return whether `non_default_state` keeps a tensor: a counter, or a buffer with structure.

    Structure means few values (a mask), or zeros in a buffer that no seed changes (an upsampling filter).
    """
    value, other = reals(value), reals(other)
    if not value.is_floating_point() or value.numel() == 0:
        return True
    if parameter or bool((value == value.flatten()[0]).all()):
        return False
    return value.unique().numel() < value.numel() // 4 or (bool((value == 0).any()) and torch.equal(value, other))


def non_default_state(
    state: dict[str, torch.Tensor], seed: int, *, parameters: set[str], other: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return values for a module's state that differ from every default, on the devices of its tensors.

    Ones (scales) become 1 + 0.2 n, zeros (biases, running means) 0.1 n, with n standard normal; constant positive
    statistics stay positive; other weights get noise of half their standard deviation. Tensors for which `is_fixed` is
    true stay, as do zeros of other buffers.

    Args:
        state: `state_dict()` of a fresh module.
        seed: Seed of the values.
        parameters: Names of the parameters, in which all values change, even zeros (an identity is a default, too).
        other: `state_dict()` of a module made under another seed.
    """
    generators: dict[torch.device, torch.Generator] = {}
    result: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            continue
        if is_fixed(value, other[name], parameter=name in parameters):
            result[name] = value.clone()
            continue
        is_complex = value.is_complex()
        value = reals(value)
        device = value.device
        generator = generators.setdefault(device, torch.Generator(device).manual_seed(seed))
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64, device=device)
        x = value.double()
        if bool((x == 0).all()):
            y = 0.1 * noise
        elif bool((x == x.flatten()[0]).all()):
            y = x * (1.0 + 0.2 * noise.clamp(-3, 3))
        else:
            y = x + 0.5 * x.std() * noise
            y = y if name in parameters else torch.where(x != 0, y, x)
        y = y.to(value.dtype)
        result[name] = torch.view_as_complex(y) if is_complex else y
    return result
