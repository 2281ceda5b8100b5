"""How far a reference's own arithmetic is from the float64 answer.

Where everything is finite, which is nearly always, four passes over an output tell it; where not, some forty, which
also find out which elements are infinite, or not a number, on one side only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

_PART = 1 << 24
"""Elements of an output that are compared at a time."""

_OF_FINITE = ("scale", "own_error", "own_row_error")
REPORTED = (*_OF_FINITE, "masks_differ", "mismatches")
"""What is told of each output: its largest finite magnitude; the largest error of the reference's own arithmetic,
absolute, and over the largest magnitude of its row (last dimension; rows that are finite and not zero); how many
elements are finite in one and not in the other; how many differ (of integers)."""


def report_of_finite(own: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """The first three of `REPORTED` of an output whose elements are all finite, shape (3,).

    Where they are not, `is_finite` is false of it. Of integers all of `REPORTED`.

    Args:
        own: What the reference gave.
        answer: What its float64 twin gave, in the same shape.
    """
    if not own.is_floating_point():
        return report_of_any(own, answer)
    parts = [_finite_rows(*part) for part in in_parts(own, answer)]
    return torch.stack(parts).amax(0) if len(parts) > 1 else parts[0] if parts else answer.new_zeros(3)


def report_of_any(own: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """`REPORTED` of an output, shape (5,).

    Args:
        own: What the reference gave.
        answer: What its float64 twin gave, in the same shape.
    """
    return torch.stack([scale_of(answer), *own_errors(own, answer)])


def read(found: list[torch.Tensor]) -> list[dict[str, float]]:
    """Copy reports to the host, and name their numbers; `all_finite` is 1 where nothing else can be.

    All at once: on a GPU each number that is waited for takes longer than what it is computed from.
    """
    numbers = iter(torch.cat(found).tolist() if found else [])
    reports: list[dict[str, float]] = []
    for one in found:
        few = len(one) == len(_OF_FINITE)
        report = dict.fromkeys(REPORTED, 0.0) | {"all_finite": float(few)}
        report |= {name: next(numbers) for name in (_OF_FINITE if few else REPORTED)}
        reports.append(report)
    return reports


def is_finite(report: dict[str, float], most: float) -> bool:
    """Whether a report of `report_of_finite` holds: all is finite, also when it is rounded to the output's dtype.

    Args:
        report: As `read` gave it.
        most: See `most_of`.
    """
    errors = report["own_error"], report["own_row_error"]
    return report["scale"] <= most and all(math.isfinite(error) for error in errors)


def most_of(dtype: torch.dtype) -> float:
    """Largest number of a dtype; infinite for integers, which are always finite."""
    return torch.finfo(dtype).max if dtype.is_floating_point else math.inf


def _row_maxima(values: torch.Tensor) -> torch.Tensor:
    """Largest magnitude in each row, or NaN, shape (n,) of (n, width): in one pass on a GPU, in two on a CPU."""
    return torch.linalg.vector_norm(values, math.inf, dim=1) if values.is_cuda else values.abs().amax(1)


def _finite_rows(own: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Scale, error and row error of some rows, both shape (n, width); shape (3,). What is not finite shows in them."""
    rows, errors = _row_maxima(answer), _row_maxima(own - answer)  # in float64: the wider of both
    return torch.stack([rows.max(), errors.max(), torch.where(rows > 0, errors / rows, 0.0).max()])


def scale_of(answer: torch.Tensor) -> torch.Tensor:
    """Largest finite magnitude, shape ()."""
    parts = [_most(part.double().abs(), part.isfinite()) for (part,) in in_parts(answer)]
    return torch.stack(parts).amax() if parts else answer.new_zeros((), dtype=torch.float64)


def _most(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """Largest of the values at some places, at least 0, shape (); without waiting for a GPU."""
    return torch.where(where, values, 0.0).max()


def in_parts(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows (last dimension) of tensors of one shape, some at a time: float64 copies of large outputs are large."""
    first = tensors[0]
    if not first.numel():
        return iter(())
    width = first.shape[-1] if first.ndim else 1
    count = max(1, _PART // width)
    return zip(*(tensor.reshape(-1, width).split(count) for tensor in tensors), strict=True)


def own_errors(own: torch.Tensor, answer: torch.Tensor) -> list[torch.Tensor]:
    """`REPORTED` from the second to the fifth, each shape ()."""
    parts = [_errors_of_rows(*part) for part in in_parts(own, answer)]
    if not parts:
        return [answer.new_zeros((), dtype=torch.float64)] * 4
    found = torch.stack(parts)
    return [*found[:, :2].amax(0), *found[:, 2:].sum(0)]


def _errors_of_rows(own: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """The same of some rows, both shape (n, width); shape (4,)."""
    wide = own.double() if own.is_floating_point() else own.to(torch.int64).double()
    rounded = answer.to(own.dtype).double() if own.is_floating_point() else answer.double()
    answer = answer.double()
    finite = wide.isfinite()
    error = (wide - answer).abs()
    scale, row_error = answer.abs().amax(1), error.amax(1)
    usable = scale.isfinite() & row_error.isfinite() & (scale > 0)
    return torch.stack(
        [
            _most(error, finite & answer.isfinite()),
            _most(row_error / scale, usable),
            (finite != rounded.isfinite()).sum().double(),
            (wide != answer).sum().double(),
        ]
    )
