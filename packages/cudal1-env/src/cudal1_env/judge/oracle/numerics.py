"""Is an output right? Arithmetic on bytes that came from a worker; nothing here can raise on any bytes.

Each element may err by what the oracle says of it: a multiple of the reference's own typical error there, and at least
a few units in its last place (`cudal1_worker.oracle.tolerance`, docs/decisions/002-tolerance-by-element.md). Integers
are equal, or what the reference itself may give instead.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cudal1_env.judge.device.tensors import EPSILON, Array, Expected

Floats = npt.NDArray[np.float64]
_PIECE = 1 << 24
"""Elements that are compared at a time."""

_LARGEST = {name: float(np.finfo(name).max) for name in ("float64", "float32", "float16")}
_LARGEST["bfloat16"] = 2.0**127 * (2 - EPSILON["bfloat16"])

_SMALLEST = {name: float(np.finfo(name).tiny) for name in ("float64", "float32", "float16")}
_SMALLEST["bfloat16"] = _SMALLEST["float32"]

MAXIMUM_OVER_TYPICAL = 12.5
"""The largest of a million errors over the typical one (a geometric mean). Of normal errors it is 4.9 over 0.53, which
is 9.2; the rest is for what a typical error of 48 and more is off by chance (benchmarks/tolerance.py)."""

HALF = {"float16": (11.0, 2.0), "bfloat16": (5.5, 1.0)}
"""Factor of the typical error, and floor in units of the last place, for outputs of half precision: their errors are
those of the last rounding, the largest of which is some 3.7 times the typical one (benchmarks/tolerance_half.py)."""

_LOOSEST = 0.25
"""What half of the elements of an output may err over themselves, at most: a reference that errs more says nothing."""
_MAX_UNDECIDED = 0.01
"""Share of integers of a sample that may be one of two, at most."""


@dataclass(frozen=True)
class Answer:
    """The right values of one output on one input set, at secret positions, and whole for a secret subset of sets."""

    positions: npt.NDArray[np.int64]
    """Flat positions of the sample, shape (n,)."""
    values: npt.NDArray[np.generic]
    """Right values at these positions, shape (n,), float64 or int64."""
    limits: npt.NDArray[np.generic]
    """What each of them may err, shape (n,); of integers what it may be instead."""
    whole: Array | None = None
    """All right values, flat; None for sets that are only sampled."""
    whole_limits: Array | None = None
    """The same as `limits`, for all elements."""
    scale: float = 1.0
    """Largest finite magnitude of the answer; 1 for integers."""
    reference_error: float = 0.0
    """The reference's own largest error on such inputs, over the scale."""


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing some elements of one output."""

    error: float
    """Error of the element that comes nearest to what it may err, or exceeds it most, over the scale; NaN where finite
    masks differ. The share of wrong elements for integers."""
    correct: bool
    """Whether every element is within its tolerance."""
    tolerance: float = 0.0
    """What that element may err, over the scale."""


def limits_of(dtype: str, factor: float, floor_ulps: float) -> tuple[float, float, float]:
    """Factor, floor and least tolerance of an output's elements, as `cudal1_worker.oracle.tolerance.Limits` has them.

    Args:
        dtype: Of the output.
        factor: c: how many times the reference's largest error is allowed; half precision has another.
        floor_ulps: f: least tolerance in units of the last place; half precision has another.
    """
    times, ulps = HALF.get(dtype, (factor * MAXIMUM_OVER_TYPICAL, floor_ulps))
    # Below their smallest normal number devices may put zero; float16 keeps what lies there, in steps of one size.
    least = ulps * float(np.finfo(np.float16).smallest_subnormal) if dtype == "float16" else _SMALLEST.get(dtype, 0.0)
    return times, ulps * EPSILON.get(dtype, 0.0), least


def fault(answer: Answer, expected: Expected) -> str:
    """Why a sample of right values tells nothing about a candidate, as the end of a sentence; empty if it does."""
    if not answer.positions.size:
        return ""
    if not expected.floating:
        share = float((answer.values != answer.limits).mean())
        few = share <= _MAX_UNDECIDED or answer.positions.size == 1
        return "" if few else f"{share:.2g} of its elements may be either of two numbers, {_MAX_UNDECIDED:g} may"
    right, allowed = answer.values.astype(np.float64), answer.limits.astype(np.float64)
    if not (np.isfinite(allowed) & (allowed > 0)).all():
        return "what its elements may err is not a number"
    # What underflows in the output's dtype may be zero, and tells nothing.
    some = np.isfinite(right) & (np.abs(right) >= _SMALLEST[expected.dtype])
    loosest = float(np.median(allowed[some] / np.abs(right[some]))) if some.any() else 0.0
    if loosest <= _LOOSEST:
        return ""
    return f"half of its elements may err by {loosest:.2g} times themselves and more, {_LOOSEST:g} is allowed"


def compare(got: Array, answer: Answer, expected: Expected, *, whole: bool) -> Comparison:
    """Compare output elements with the right ones.

    Args:
        got: What the worker left, decoded, shape (n,).
        answer: Right values and what each may err.
        expected: The output's shape and dtype.
        whole: Whether `got` is the whole output, in order, or the sample.
    """
    right, limits = (answer.whole, answer.whole_limits) if whole else (answer.values, answer.limits)
    assert right is not None, "expected a set whose whole answer was kept"
    assert limits is not None
    if got.shape[0] == 0:
        return Comparison(0.0, True)
    if not expected.floating:
        wrong = 0
        for piece in _pieces(got.shape[0]):
            found = got[piece].long() if _is_torch(got) else got[piece].astype(np.int64)
            wrong += int(((found != right[piece]) & (found != limits[piece])).sum())  # neither of the two
        return Comparison(wrong / got.shape[0], wrong == 0)
    worst = (0.0, 0.0, 0.0)
    for piece in _pieces(got.shape[0]):
        with np.errstate(all="ignore"):
            found = _worst(_namespace(got).abs(got[piece] - right[piece]), limits[piece])
            if not (math.isfinite(found[0]) and answer.scale <= _LARGEST[expected.dtype]):
                found = _worst(_errors(got[piece], right[piece], expected.dtype), limits[piece])
        if math.isnan(found[0]):
            return Comparison(float("nan"), False)
        worst = max(worst, found)
    scale = answer.scale if answer.scale > 0 else 1.0
    return Comparison(worst[1] / scale, worst[0] <= 1.0, worst[2] / scale)


def _pieces(size: int) -> Iterator[slice]:
    """Ranges that make up `size` elements, so that what is compared at a time needs little memory."""
    return (slice(start, min(start + _PIECE, size)) for start in range(0, size, _PIECE))


def _worst(errors: Array, limits: Array) -> tuple[float, float, float]:
    """Error over tolerance, error and tolerance of the worst element; NaN is worst of all."""
    found = errors / limits
    place = int(found.argmax())
    return float(found[place]), float(errors[place]), float(limits[place])


def _errors(got: Array, right: Array, dtype: str) -> Array:
    """How far finite elements are from the right ones; NaN where others are not what they must be."""
    xp = _namespace(got)
    wide = doubles(got)
    # A float64 answer beyond the output's range is infinite in the output's dtype, and must be so there.
    rounded = doubles(_narrowed(right, dtype))
    finite = xp.isfinite(rounded)
    same = (wide == rounded) | (xp.isnan(wide) & xp.isnan(rounded))
    agree = (xp.isfinite(wide) == finite) & (same | finite)
    return xp.where(agree, xp.where(finite, xp.abs(wide - doubles(right)), 0.0), math.nan)


def _is_torch(array: Array) -> bool:
    return not isinstance(array, np.ndarray)


def _namespace(array: Array) -> Any:
    """The library that an array belongs to: numpy and torch give the functions used here the same names."""
    return sys.modules["torch"] if _is_torch(array) else np


def doubles(array: Array) -> Array:
    """Values as float64, in memory of the device."""
    return array.double() if _is_torch(array) else array.astype(np.float64)


def _narrowed(array: Array, dtype: str) -> Array:
    """Round to an output's dtype; to float32 for bfloat16, which numpy does not know."""
    name = "float32" if dtype == "bfloat16" else dtype
    return array.to(getattr(_namespace(array), name)) if _is_torch(array) else array.astype(name)
