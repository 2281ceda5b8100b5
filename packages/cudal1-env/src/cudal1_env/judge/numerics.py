"""Is an output right? Arithmetic on bytes that came from a worker; nothing here can raise on any bytes.

A candidate's error for an output tensor must be within c times the reference's own error, both against the
reference in float64, with a floor of a few units in the last place of the output's scale (DESIGN.md, numerics).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number, by dtype."""

_NUMPY = {"bool": "bool", "bfloat16": "uint16"}


@dataclass(frozen=True)
class Expected:
    """What one output of a task must look like."""

    shape: tuple[int, ...]
    dtype: str
    aliases: bool
    """Whether the reference itself returns an input's memory."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return np.dtype(_NUMPY.get(self.dtype, self.dtype)).itemsize

    @property
    def floating(self) -> bool:
        """Whether elements are real floating-point numbers."""
        return self.dtype in EPSILON


@dataclass(frozen=True)
class Answer:
    """The right values of one output on one input set, at secret positions, and whole for a secret subset of sets."""

    positions: npt.NDArray[np.int64]
    """Flat positions of the sample, shape (n,)."""
    values: npt.NDArray[np.float64] | npt.NDArray[np.int64]
    """Right values at these positions, shape (n,)."""
    whole: npt.NDArray[np.float64] | npt.NDArray[np.int64] | None
    """All right values, flat; None for sets that are only sampled."""
    scale: float
    """Largest finite magnitude of the answer."""
    tolerance: float
    """Allowed absolute error; for integers the allowed share of elements that differ."""
    row_tolerance: float = float("inf")
    """Allowed error over the largest magnitude in the row (last dimension); infinite where it says nothing."""
    row_scales: Floats | None = None
    """Largest magnitude in each row, shape (rows,); None for integers."""
    reference_error: float = field(default=0.0)
    """The reference's own error, over the scale."""


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing some elements of one output."""

    error: float
    """Largest absolute error over the scale; NaN where finite masks differ; share of mismatches for integers."""
    right: bool
    """Whether the error is within tolerance."""


def decode(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.generic]:
    """View raw bytes as numbers of a torch dtype; bfloat16 becomes float32."""
    if dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "bool":
        return data != 0
    return data.view(np.dtype(dtype))


def compare(
    got: npt.NDArray[np.generic],
    right: npt.NDArray[np.generic],
    answer: Answer,
    expected: Expected,
    positions: npt.NDArray[np.int64] | None,
) -> Comparison:
    """Compare output elements with the right ones.

    Args:
        got: What the worker left, decoded, shape (n,).
        right: float64 (or int64) answers, shape (n,).
        answer: Tolerances and scales.
        positions: Flat positions of the elements, shape (n,); None when they are all, in order.
        expected: The output's dtype.
    """
    if got.size == 0:
        return Comparison(0.0, True)
    if not expected.floating:
        share = float(np.count_nonzero(got.astype(np.int64) != right) / got.size)
        return Comparison(share, share <= answer.tolerance)
    with np.errstate(all="ignore"):
        wide = got.astype(np.float64)
        # A float64 answer beyond the output's range is infinite in the output's dtype, and must be so there.
        narrow = np.float32 if expected.dtype == "bfloat16" else np.dtype(expected.dtype)
        rounded = right.astype(narrow).astype(np.float64)
        finite = np.isfinite(rounded)
        outside = ~finite
        if not np.array_equal(np.isfinite(wide), finite):
            return Comparison(float("nan"), False)
        right = right.astype(np.float64)
        same = (wide[outside] == rounded[outside]) | (np.isnan(wide[outside]) & np.isnan(rounded[outside]))
        if not same.all():
            return Comparison(float("nan"), False)
        difference = np.abs(wide - right)
        error = float(difference[finite].max()) if finite.any() else 0.0
        allowed = row_allowance(answer, expected, positions)
        rows_right = allowed is None or bool((difference <= allowed)[finite].all())
    # Written so that NaN fails.
    return Comparison(error / answer.scale if answer.scale > 0 else error, error <= answer.tolerance and rows_right)


def row_allowance(answer: Answer, expected: Expected, positions: npt.NDArray[np.int64] | None) -> Floats | None:
    """Return the allowed absolute error of each element by its row's scale, shape (n,) or broadcast to it.

    One scale for a whole tensor would let rows of small values be left out where others are large.
    """
    if answer.row_scales is None or not np.isfinite(answer.row_tolerance):
        return None
    allowed = np.maximum(answer.row_tolerance * answer.row_scales, float(np.finfo(np.float32).tiny))
    width = expected.shape[-1] if expected.shape else 1
    return np.repeat(allowed, width) if positions is None else allowed[positions // width]


def row_scales(values: Floats, shape: tuple[int, ...]) -> Floats:
    """Largest finite magnitude in each row (last dimension) of a flat answer."""
    width = shape[-1] if shape else 1
    magnitudes = np.abs(values.reshape(-1, width))
    return np.where(np.isfinite(magnitudes), magnitudes, 0.0).max(axis=1)


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
    return max(relative * scale, float(np.finfo(np.float32).tiny))
