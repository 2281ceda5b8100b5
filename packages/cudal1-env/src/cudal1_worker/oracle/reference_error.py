"""Reference error: the difference between a reference and its float64 answer, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_UNDECIDED = 1e-3
"""Maximum share of elements that perturbed inputs may make undecided. Exact ties among equal inputs are not near ties:
there the reference decides."""
_NEIGHBOURS = 16
"""Adjacent elements whose largest magnitude defines the size of one rounding."""
REPORTED = ("scale", "reference_error", "masks_differ")
"""Numbers reported for each output: the answer's largest finite magnitude; the largest finite reference error; how many
elements are finite in only one of reference and answer. For integers: 1; the share of elements that differ; 0."""


def report(own: torch.Tensor, answer: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return `REPORTED` of an output, shape (3,); all arguments are flat."""
    if not answer.numel():
        return answer.new_zeros(3, dtype=torch.float64)
    if not answer.is_floating_point():
        share = error.mean()
        return torch.stack([torch.ones_like(share), share, torch.zeros_like(share)])
    largest = [one.nan_to_num(0.0, 0.0, 0.0).abs_().amax() for one in (answer, error)]
    finite = own.abs() < torch.inf, answer.to(own.dtype).abs() < torch.inf  # `isfinite` takes twice as long
    return torch.stack([*largest, torch.count_nonzero(finite[0] != finite[1]).double()])


def read(found: list[torch.Tensor]) -> list[dict[str, float]]:
    """Copy reports to the host and name their numbers.

    All are copied together, because waiting for a GPU's single number takes longer than computing it.
    """
    return [dict(zip(REPORTED, numbers, strict=True)) for numbers in torch.stack(found).tolist()]


def error_of(own: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Return the reference's error by element, float64, flat; not finite where either is not; 1 if integers differ."""
    if not answer.is_floating_point():
        return (own.reshape(-1).to(torch.int64) != answer.reshape(-1)).double()
    return (own.reshape(-1) - answer.reshape(-1)).abs_()  # in float64: the wider of both


def is_one_rounding(error: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether each error is within one unit in the last place of the largest neighbouring element."""
    padding = (0, -right.numel() % _NEIGHBOURS)
    size = torch.nn.functional.pad(right.abs(), padding).view(-1, _NEIGHBOURS)
    largest = size.nan_to_num(0.0, posinf=0.0).amax(1, keepdim=True)
    found = torch.nn.functional.pad(error, padding).view(-1, _NEIGHBOURS)
    return bool((found <= torch.finfo(dtype).eps * largest).all())


def second_values(
    own: Sequence[torch.Tensor],
    answers: Sequence[torch.Tensor],
    moved: Callable[[float], list[torch.Tensor]] | None,
) -> list[torch.Tensor]:
    """Return the second accepted value of integer outputs; it is the answer itself if only one value is accepted.

    An element is undecided if the reference differs from the answer, or the answer changes when inputs are perturbed by
    a rounding error: the largest of two nearly equal numbers, a comparison near equality. If perturbed inputs change
    more than a few elements, or more than half of those that differ from the commonest value, only the reference's
    value is accepted; otherwise, with rare other values, the commonest value everywhere could be correct.

    Args:
        own: The reference's outputs: bool or integers.
        answers: int64 answers.
        moved: Returns the answers for inputs perturbed in a random direction or its opposite; None for no perturbation.
    """
    found = [one.to(torch.int64) for one in own]
    near = [one.clone() for one in answers]
    for sign in (1.0, -1.0) if moved is not None else ():
        assert moved is not None
        near = [torch.where(a == b, c, a) for a, b, c in zip(near, answers, moved(sign), strict=True)]
    for k, (answer, other) in enumerate(zip(answers, near, strict=True)):
        changed = (other != answer).sum()
        rare = (answer != answer.flatten().mode().values).sum() if answer.numel() else changed
        few = (changed <= _UNDECIDED * answer.numel() + 1) & (changed <= rare / 2 + 1)
        found[k] = torch.where((found[k] == answer) & few, other, found[k])
    return found


def moved_by(value: torch.Tensor, places: float, generator: torch.Generator, *, own: bool = False) -> torch.Tensor:
    """Return a floating-point tensor as float64 with each element changed by up to `places` units in its last place.

    All values stay between the smallest and the largest, because losses refuse a probability above 1. For half
    precision the unit is float32's, because programs compute on such numbers in float32; with `own` it is its own.
    """
    result = torch.empty_like(value, dtype=torch.float64)
    if not value.numel():
        return result
    eps = torch.finfo(value.dtype).eps
    most = places * (eps if own else min(eps, torch.finfo(torch.float32).eps))
    factors = torch.rand(value.shape, generator=generator, device=value.device).double().mul_(2.0 * most)
    bounds = value.nan_to_num(0.0, torch.inf, -torch.inf).aminmax()
    return torch.mul(factors.add_(1.0 - most), value, out=result).clamp_(*map(torch.Tensor.double, bounds))
