"""Is an output right? Arithmetic on bytes that came from a worker; nothing here can raise on any bytes.

A candidate's error for an output tensor must be within c times the reference's own error, both against the
reference in float64, with a floor of a few units in the last place of the output's scale (DESIGN.md, numerics).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import pdtrc  # pyright: ignore[reportMissingTypeStubs]

from cudal1_env.judge.device.tensors import EPSILON, Array, Expected

Floats = npt.NDArray[np.float64]
_PIECE = 1 << 24
"""Elements that are compared at a time."""
_TINY = float(np.finfo(np.float32).tiny)

_LARGEST = {name: float(np.finfo(name).max) for name in ("float64", "float32", "float16")}
_LARGEST["bfloat16"] = 2.0**127 * (2 - EPSILON["bfloat16"])

HALF = {"float16": (3.0, 2.0), "bfloat16": (1.5, 1.0)}
"""Factor and floor (c and f, see `tolerance`) for outputs of half precision, where the last rounding is most of the
reference's own error: 32 times that would let 6 % through (docs/architecture.md, numerics)."""

_ILL_CONDITIONED = 1e-3
_ILL_CONDITIONED_ULPS = 2.0


_CHANCE_OF_DIFFERING = 1e-6
"""What a program that errs no more often than it may exceeds on a sample with this chance: samples are many."""


@dataclass(frozen=True)
class Answer:
    """The right values of one output on one input set, at secret positions, and whole for a secret subset of sets."""

    positions: npt.NDArray[np.int64]
    """Flat positions of the sample, shape (n,)."""
    values: npt.NDArray[np.generic]
    """Right values at these positions, shape (n,), float64 or int64."""
    whole: Array | None
    """All right values, flat; None for sets that are only sampled."""
    scale: float
    """Largest finite magnitude of the answer."""
    tolerance: float
    """Allowed absolute error; for integers the allowed share of elements that differ."""
    row_tolerance: float = float("inf")
    """Allowed error over the largest magnitude in the row (last dimension); infinite where it says nothing."""
    row_scales: Array | None = None
    """Largest magnitude in each row, shape (rows,), for whole comparisons; None for integers."""
    sample_scales: npt.NDArray[np.generic] | None = None
    """The same for the rows of the sample's elements, shape (n,)."""
    reference_error: float = field(default=0.0)
    """The reference's own error, over the scale."""

    @cached_property
    def sample_allowed(self) -> Floats:
        """What each element of the sample may err by its row's scale, shape (n,); infinite where that says nothing."""
        if self.sample_scales is None or not np.isfinite(self.row_tolerance):
            return np.full(self.positions.size, np.inf)
        return np.maximum(self.row_tolerance * _doubles(self.sample_scales), _TINY)


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing some elements of one output."""

    error: float
    """Largest absolute error over the scale; NaN where finite masks differ; share of mismatches for integers."""
    right: bool
    """Whether the error is within tolerance."""


def compare(got: Array, answer: Answer, expected: Expected, *, whole: bool) -> Comparison:
    """Compare output elements with the right ones.

    Args:
        got: What the worker left, decoded, shape (n,).
        answer: Right values, tolerances and scales.
        expected: The output's shape and dtype.
        whole: Whether `got` is the whole output, in order, or the sample.
    """
    right = answer.whole if whole else answer.values
    assert right is not None, "expected a set whose whole answer was kept"
    if got.shape[0] == 0:
        return Comparison(0.0, True)
    width = expected.shape[-1] if expected.shape and whole else 1
    pieces = list(_pieces(got.shape[0], width))
    if not expected.floating:
        differ = sum(int((_integers(got[piece]) != right[piece]).sum()) for piece in pieces)
        return Comparison(differ / got.shape[0], differ <= most_differing(got.shape[0], answer.tolerance))
    limits = _row_limits(answer, whole=whole)
    error, rows_right = 0.0, True
    for piece in pieces:
        rows = _row_errors(got[piece], right[piece], width)
        largest = float(rows.max())
        if not (math.isfinite(largest) and answer.scale <= _LARGEST[expected.dtype]):
            difference = _difference(got[piece], right[piece], expected.dtype)
            if difference is None:
                return Comparison(float("nan"), False)
            rows = _namespace(difference).amax(difference.reshape(-1, width), 1)
            largest = float(rows.max())
        error = max(error, largest)
        if limits is not None:
            allowed = limits[piece.start // width : piece.stop // width]
            rows_right = rows_right and bool((rows <= allowed).all())
    # Written so that NaN fails.
    return Comparison(error / answer.scale if answer.scale > 0 else error, error <= answer.tolerance and rows_right)


def _pieces(size: int, width: int) -> Iterator[slice]:
    """Ranges of whole rows that make up `size` elements, so that what is compared at a time needs little memory."""
    step = max(1, _PIECE // max(width, 1)) * max(width, 1)
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def _row_maxima(values: Array) -> Array:
    """Largest magnitude in each row, shape (n,) of (n, width); not finite where an element is not."""
    if _is_torch(values):
        return _namespace(values).linalg.vector_norm(values, math.inf, dim=1)  # in one pass
    return np.abs(values).max(1)


def _row_errors(got: Array, right: Array, width: int) -> Array:
    """Largest difference in each row, shape (n,); not finite where either is not."""
    with np.errstate(all="ignore"):
        return _row_maxima((got - right).reshape(-1, width))


def _difference(got: Array, right: Array, dtype: str) -> Array | None:
    """How far finite elements are from the right ones; None where others are not what they must be."""
    xp = _namespace(got)
    with np.errstate(all="ignore"):
        wide = _doubles(got)
        # A float64 answer beyond the output's range is infinite in the output's dtype, and must be so there.
        rounded = _doubles(_narrowed(right, dtype))
        finite = xp.isfinite(rounded)
        same = (wide == rounded) | (xp.isnan(wide) & xp.isnan(rounded))
        if bool((xp.isfinite(wide) != finite).any()) or not bool((same | finite).all()):
            return None
        return xp.where(finite, xp.abs(wide - _doubles(right)), 0.0)


def compare_samples(
    got: Sequence[Array], answers: Sequence[Answer], parts: Sequence[slice], expected: Expected
) -> list[Comparison]:
    """Compare parts of samples of one output from several calls, as `compare` does whole samples, in one go.

    Args:
        got: What the worker left, decoded, shape (n,) each.
        answers: Right values, tolerances and scales, for each.
        parts: Which part of its sample was read, for each.
        expected: The output's shape and dtype.
    """
    result = [Comparison(0.0, True)] * len(got)
    filled = [k for k, one in enumerate(got) if one.shape[0]]
    if not filled:
        return result
    chosen = [(answers[k], parts[k]) for k in filled]
    sizes = np.array([got[k].shape[0] for k in filled])
    starts = np.cumsum(sizes) - sizes
    values = np.concatenate([got[k] for k in filled])
    right = np.concatenate([answer.values[part] for answer, part in chosen])
    tolerances = np.array([answer.tolerance for answer, _ in chosen])
    if not expected.floating:
        differ = np.add.reduceat((_integers(values) != right).astype(np.float64), starts)
        errors = differ / sizes
        most = [most_differing(*one) for one in zip(sizes.tolist(), tolerances.tolist(), strict=True)]
        rights = differ <= np.array(most)
    else:
        with np.errstate(all="ignore"):
            wide, rounded = _doubles(values), _doubles(_narrowed(right, expected.dtype))
            finite = np.isfinite(rounded)
            same = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
            masked = np.logical_or.reduceat((np.isfinite(wide) != finite) | ~(same | finite), starts)
            difference = np.where(finite, np.abs(wide - _doubles(right)), 0.0)
            allowed = np.concatenate([answer.sample_allowed[part] for answer, part in chosen])
            largest = np.maximum.reduceat(difference, starts)
            rows = np.logical_and.reduceat(difference <= allowed, starts)
            scales = np.array([answer.scale if answer.scale > 0 else 1.0 for answer, _ in chosen])
            errors = np.where(masked, np.nan, largest / scales)
            rights = ~masked & (largest <= tolerances) & rows
    for k, error, is_right in zip(filled, errors.tolist(), rights.tolist(), strict=True):
        result[k] = Comparison(error, is_right)
    return result


def _row_limits(answer: Answer, *, whole: bool) -> Array | None:
    """What each row of an output, or each element of its sample, may err; None where that says nothing.

    One scale for a whole tensor would let rows of small values be left out where others are large.
    """
    scales: Array = answer.row_scales if whole else answer.sample_scales
    if scales is None or not np.isfinite(answer.row_tolerance):
        return None
    return (answer.row_tolerance * scales).clip(min=_TINY)


def row_scales(values: Array, shape: tuple[int, ...], *, all_finite: bool = False) -> Array:
    """Largest finite magnitude in each row (last dimension) of a flat answer.

    Args:
        values: The answer.
        shape: Its shape.
        all_finite: Whether it is known to have no other elements, which takes fewer passes.
    """
    xp, width = _namespace(values), shape[-1] if shape else 1
    if all_finite:
        return _row_maxima(values.reshape(-1, width))
    found: list[Array] = []
    for piece in _pieces(values.shape[0], width):
        magnitudes = xp.abs(values[piece].reshape(-1, width))
        found.append(xp.amax(xp.where(xp.isfinite(magnitudes), magnitudes, 0.0), 1))
    return found[0] if len(found) == 1 else xp.concatenate(found)


def _is_torch(array: Array) -> bool:
    return not isinstance(array, np.ndarray)


def _namespace(array: Array) -> Any:
    """The library that an array belongs to: numpy and torch give the functions used here the same names."""
    return sys.modules["torch"] if _is_torch(array) else np


def _doubles(array: Array) -> Array:
    return array.double() if _is_torch(array) else array.astype(np.float64)


def _integers(array: Array) -> Array:
    return array.long() if _is_torch(array) else array.astype(np.int64)


def _narrowed(array: Array, dtype: str) -> Array:
    """Round to an output's dtype; to float32 for bfloat16, which numpy does not know."""
    name = "float32" if dtype == "bfloat16" else dtype
    return array.to(getattr(_namespace(array), name)) if _is_torch(array) else array.astype(name)


@lru_cache(maxsize=4096)
def most_differing(count: int, share: float) -> int:
    """How many of so many integers may differ from the right ones where a share of all elements may.

    What falls on a sample is chance: as many as Poisson's distribution with the mean count * share exceeds once in a
    million times. None where the share is 0.

    >>> most_differing(4, 0.0), most_differing(4, 0.005), most_differing(128, 0.005), most_differing(10**6, 0.005)
    (0, 3, 7, 5340)
    """
    mean = count * share
    if mean <= 0.0:
        return 0
    most = int(mean)
    while pdtrc(most, mean) > _CHANCE_OF_DIFFERING:
        most += max(1, int(math.sqrt(mean)) // 16)
    return most


def most_own_error(dtype: str) -> float:
    """How much a reference may err, over its outputs' scale, before it says nothing about a candidate."""
    return max(_ILL_CONDITIONED, _ILL_CONDITIONED_ULPS * EPSILON[dtype]) if dtype in HALF else _ILL_CONDITIONED


def tolerance(*, scale: float, own_relative_error: float, dtype: str, factor: float, floor_ulps: float) -> float:
    """Allowed absolute error of a floating-point output.

    max(c * e_ref, f * eps(dtype)) * scale, with e_ref the reference's own largest error over the output's largest
    magnitude on the same distribution of inputs (DESIGN.md, numerics).

    Args:
        scale: Largest finite magnitude of the answer.
        own_relative_error: e_ref.
        dtype: The output's dtype.
        factor: c.
        floor_ulps: f.
    """
    relative = max(factor * own_relative_error, floor_ulps * EPSILON[dtype])
    return max(relative * scale, _TINY)
