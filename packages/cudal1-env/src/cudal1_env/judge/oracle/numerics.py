"""Decides whether an output is correct. Works on bytes from a worker and raises on none.

The oracle gives each element's tolerance: a multiple of the reference's typical error there, and at least a few units
in the last place (`cudal1_worker.oracle.tolerance`, docs/decisions/002-tolerance-by-element.md). Integers must be equal
to the answer, or to the alternative that the reference itself may give.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cudal1_env.judge.device.tensors import EPSILON, Array, Expected

_PIECE = 1 << 24
"""Elements compared at a time."""

_LARGEST = {name: float(np.finfo(name).max) for name in ("float64", "float32", "float16")}
_LARGEST["bfloat16"] = 2.0**127 * (2 - EPSILON["bfloat16"])

_SMALLEST = {name: float(np.finfo(name).tiny) for name in ("float64", "float32", "float16")}
_SMALLEST["bfloat16"] = _SMALLEST["float32"]

MAXIMUM_OVER_TYPICAL = 12.5
"""Ratio of the largest of a million errors to the typical error (a geometric mean). For normal errors it is 4.9 / 0.53,
about 9.2; the rest covers the chance error of a typical error from 48 or more errors (benchmarks/tolerance.py)."""

HALF = {"float16": 2.0, "bfloat16": 1.0}
"""Half precision: minimum tolerance in units in the last place (benchmarks/tolerance_half.py)."""
_HALF_FACTOR = 6.0
"""Half precision: factor of the largest error of a group before the last rounding. Elements of one magnitude may err by
unequal amounts, where a maximum chooses between an input and a product's result, for example
(benchmarks/honest_half.py)."""

_RARELY, _RARE = 2.0, 100_000
"""Half precision: one element in so many may exceed its tolerance, up to this factor. Of 24 million elements of an
honest program three exceeded it by up to 1.26 (docs/decisions/002-tolerance-by-element.md, rule 11)."""
_CROWD = 200
"""Half precision: of elements with an index in common, one may exceed its tolerance, or one in so many. Chance has no
preferred place, but a program that computes a part of the output roughly does."""

_LOOSEST = 0.25
"""Maximum median of an output's relative tolerances; beyond it the reference is too inaccurate to judge against."""
_MAX_UNDECIDED = 0.01
"""Maximum share of sampled integers that may be either of two values."""


@dataclass(frozen=True)
class Answer:
    """Correct values of one output on one input set: at secret positions, and whole for a secret subset of sets."""

    positions: npt.NDArray[np.int64]
    """Flat positions of the sample, shape (n,)."""
    values: npt.NDArray[np.generic]
    """Correct values at these positions, shape (n,), float64 or int64."""
    limits: npt.NDArray[np.generic]
    """Tolerance of each value, shape (n,); for integers, the alternative value."""
    whole: Array | None = None
    """All correct values, flat; None for sets that are only sampled."""
    whole_limits: Array | None = None
    """`limits` of all elements, flat."""
    scale: float = 1.0
    """Largest finite magnitude of the answer; 1 for integers."""
    reference_error: float = 0.0
    """The reference's largest error on such inputs, over the scale."""
    bulk: float | None = None
    """Whole outputs in half precision: maximum mean square of errors over `bulk_limits`, each at most 1
    (`cudal1_worker.oracle.tolerance.bulk_allowed`)."""
    bulk_limits: Array | None = None
    """Tolerances for `bulk`; None is `whole_limits`."""


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing some elements of one output."""

    error: float
    """Error over the scale of the element with the largest ratio of error to tolerance; NaN if finite masks differ. For
    integers, the share of incorrect elements."""
    correct: bool
    """Whether every element is within its tolerance."""
    tolerance: float = 0.0
    """Tolerance of that element, over the scale."""
    bulk: float = 0.0
    """Root mean square of all errors over what it may be; 0 if there is no limit."""


def limits_of(dtype: str, factor: float, floor_ulps: float) -> tuple[float, float, float, bool]:
    """Return the parameters of an output's tolerances, as in `cudal1_worker.oracle.tolerance.Limits`.

    Args:
        dtype: The output's dtype.
        factor: c: allowed multiple of the reference's largest error; half precision has its own. For integers: by how
            many rounding errors inputs are moved to find answers that are undecided.
        floor_ulps: f: minimum tolerance in units in the last place; half precision has its own.
    """
    times = _HALF_FACTOR if dtype in HALF else factor * MAXIMUM_OVER_TYPICAL if dtype in EPSILON else factor
    ulps = HALF.get(dtype, floor_ulps)
    # Devices may flush subnormal numbers to zero; float16 keeps them, in steps of one size.
    least = ulps * float(np.finfo(np.float16).smallest_subnormal) if dtype == "float16" else _SMALLEST.get(dtype, 0.0)
    return times, ulps * EPSILON.get(dtype, 0.0), least, dtype in HALF


def fault(answer: Answer, expected: Expected) -> str:
    """Return why an answer is unusable for judging candidates, as the end of a sentence; empty if it is usable."""
    if not answer.positions.size:
        return ""
    if not expected.floating:
        share = float((answer.values != answer.limits).mean())
        few = share <= _MAX_UNDECIDED or answer.positions.size == 1
        return "" if few else f"{share:.2g} of its elements may be either of two numbers, {_MAX_UNDECIDED:g} may"
    right, allowed = answer.values.astype(np.float64), answer.limits.astype(np.float64)
    if not (np.isfinite(allowed) & (allowed > 0)).all():
        return "what its elements may err is not a number"
    # Values that underflow in the output's dtype may be zero: leave them out.
    some = np.isfinite(right) & (np.abs(right) >= _SMALLEST[expected.dtype])
    loosest = float(np.median(allowed[some] / np.abs(right[some]))) if some.any() else 0.0
    if loosest <= _LOOSEST:
        return ""
    return f"half of its elements may err by {loosest:.2g} times themselves and more, {_LOOSEST:g} is allowed"


def compare(got: Array, answer: Answer, expected: Expected, *, whole: bool) -> Comparison:
    """Compare output elements with the correct values.

    Args:
        got: Decoded elements of the worker's output, shape (n,).
        answer: Correct values and their tolerances.
        expected: The output's shape and dtype.
        whole: Whether `got` is the whole output in order; otherwise it is the sample.
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
            wrong += int(((found != right[piece]) & (found != limits[piece])).sum())  # neither of the two values
        return Comparison(wrong / got.shape[0], wrong == 0)
    worst, squares = (0.0, 0.0, 0.0), 0.0
    beyond: list[int] | None = []
    by = limits if answer.bulk_limits is None else answer.bulk_limits
    most = got.shape[0] // _RARE if whole else 0
    for piece in _pieces(got.shape[0]):
        with np.errstate(all="ignore"):
            errors = _namespace(got).abs(got[piece] - right[piece])
            found = _worst(errors, limits[piece])
            if not (math.isfinite(found[0]) and answer.scale <= _LARGEST[expected.dtype]):
                errors = _errors(got[piece], right[piece], expected.dtype)
                found = _worst(errors, limits[piece])
        if math.isnan(found[0]):
            return Comparison(float("nan"), False)
        if whole and answer.bulk is not None:
            squares += float(((errors / by[piece]).clip(0.0, 1.0) ** 2).sum())
        if beyond is not None and found[0] > 1.0:
            more = _beyond(errors, right[piece], limits[piece], expected.dtype) if found[0] < _RARELY else None
            beyond = None if more is None or len(more) > most else [*beyond, *(piece.start + place for place in more)]
        worst = max(worst, found)
    scale = answer.scale if answer.scale > 0 else 1.0
    rare = beyond is not None and len(beyond) <= most and not crowded(beyond, expected.shape)
    bulk = 0.0
    if whole and answer.bulk is not None and squares > 0.0:
        bulk = math.sqrt(squares / got.shape[0] / answer.bulk) if answer.bulk > 0 else math.inf
    within = worst[0] <= 1.0 or rare
    return Comparison(worst[1] / scale, within and bulk <= 1.0, worst[2] / scale, bulk)


def _beyond(errors: Array, right: Array, limits: Array, dtype: str) -> list[int] | None:
    """Return the places of elements that exceed their tolerance; None if it is the floor in one of them.

    The floor is for the last rounding, which has a bound and no tail.
    """
    if dtype not in HALF:
        return None
    beyond = errors > limits
    floor = _namespace(errors).abs(right) * (1.01 * HALF[dtype] * EPSILON[dtype])
    if bool((beyond & (limits <= floor)).any()):
        return None
    return (beyond.nonzero().reshape(-1) if _is_torch(beyond) else np.flatnonzero(beyond)).tolist()


def crowded(places: Sequence[int], shape: tuple[int, ...]) -> bool:
    """Return whether too many of some flat places have an index in common, or several.

    >>> crowded([3, 7], (400, 4)), crowded([3, 7, 11], (400, 4)), crowded([2, 3], (400, 4))
    (False, True, True)
    """
    if len(places) < 2:
        return False
    indices = np.unravel_index(np.asarray(places), shape)
    for count in range(1, len(shape)):
        for dims in itertools.combinations(range(len(shape)), count):
            size = math.prod(shape) // math.prod(shape[dim] for dim in dims)
            most = np.unique(np.stack([indices[dim] for dim in dims]), axis=1, return_counts=True)[1].max()
            if most > max(1, size // _CROWD):
                return True
    return False


def _pieces(size: int) -> Iterator[slice]:
    """Return slices that cover `size` elements in small parts, to limit memory."""
    return (slice(start, min(start + _PIECE, size)) for start in range(0, size, _PIECE))


def _worst(errors: Array, limits: Array) -> tuple[float, float, float]:
    """Return error over tolerance, error, and tolerance of the worst element; NaN is worst."""
    found = errors / limits
    place = int(found.argmax())
    return float(found[place]), float(errors[place]), float(limits[place])


def _errors(got: Array, right: Array, dtype: str) -> Array:
    """Return the errors of finite elements; NaN where the pattern of infinities and NaNs is incorrect."""
    xp = _namespace(got)
    wide = doubles(got)
    # A float64 answer beyond the range of the output's dtype must be infinite in the output.
    rounded = doubles(_narrowed(right, dtype))
    finite = xp.isfinite(rounded)
    same = (wide == rounded) | (xp.isnan(wide) & xp.isnan(rounded))
    agree = (xp.isfinite(wide) == finite) & (same | finite)
    return xp.where(agree, xp.where(finite, xp.abs(wide - doubles(right)), 0.0), math.nan)


def _is_torch(array: Array) -> bool:
    return not isinstance(array, np.ndarray)


def _namespace(array: Array) -> Any:
    """Return the library of an array, torch or numpy; both name the functions used here alike."""
    return sys.modules["torch"] if _is_torch(array) else np


def doubles(array: Array) -> Array:
    """Return the values as float64, on the same device."""
    return array.double() if _is_torch(array) else array.astype(np.float64)


def _narrowed(array: Array, dtype: str) -> Array:
    """Round to an output's dtype; bfloat16, which numpy lacks, is rounded to float32."""
    name = "float32" if dtype == "bfloat16" else dtype
    return array.to(getattr(_namespace(array), name)) if _is_torch(array) else array.astype(name)
