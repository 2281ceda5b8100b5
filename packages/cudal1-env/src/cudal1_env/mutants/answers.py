"""Mutants of a correct answer, as arrays: outputs that an incorrect program might return.

The task gate chooses their places at random; the testing kit uses fixed ones. `cudal1_data.mutants` mutates programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SHARE = 0.97
"""Computed part of a sum whose rest is left out."""

FACTOR = 1.01
"""Factor by which answers are scaled."""

SLIP = 0.01
"""Error of one incorrect element, as a share of the answer's scale."""


def constant(correct: Array) -> Array | None:
    """Return an array filled with the mean of the finite elements; None for a single element or none finite."""
    finite = correct[np.isfinite(correct)]
    if correct.size < 2 or not finite.size:
        return None
    mean: Any = finite.mean()
    return np.full_like(correct, mean if correct.dtype.kind == "f" else round(float(mean)))


def scaled(correct: Array, factor: float) -> Array:
    """Return the answer times a factor; integers are rounded."""
    return (correct * factor if correct.dtype.kind == "f" else np.rint(correct * factor)).astype(correct.dtype)


def one_wrong(correct: Array, place: int, by: float) -> Array:
    """Return the answer with one element changed.

    Args:
        correct: The correct answer.
        place: Index in the flattened answer.
        by: Added to a floating-point number. Among integers, 0 and 1 are swapped, and others grow by 1.
    """
    mutant = correct.copy()
    flat = mutant.reshape(-1)
    if correct.dtype.kind == "f":
        flat[place] += by
    else:
        flat[place] = 1 - flat[place] if flat[place] in (0, 1) else flat[place] + 1
    return mutant


def with_nan(correct: Array, place: int) -> Array:
    """Return the answer with NaN at one index of the flattened answer."""
    mutant = correct.copy()
    mutant.reshape(-1)[place] = np.nan
    return mutant


def swapped_rows(correct: Array, rows: int, one: int, other: int) -> Array:
    """Return the answer with two rows swapped.

    >>> swapped_rows(np.arange(6).reshape(3, 2), 3, 0, 2).tolist()
    [[4, 5], [2, 3], [0, 1]]

    Args:
        correct: The correct answer.
        rows: Number of rows into which the answer is divided.
        one: Index of the first row.
        other: Index of the second row.
    """
    mutant = correct.reshape(rows, -1).copy()
    mutant[[one, other]] = mutant[[other, one]]
    return mutant.reshape(correct.shape)


def rounded(values: Array, dtype: str) -> Array:
    """Round to a floating-point dtype; bfloat16, which numpy does not have, is returned as float32.

    >>> rounded(np.array([1.00390625, 3.0]), "bfloat16").tolist(), rounded(np.array([65600.0]), "float16").tolist()
    ([1.0, 3.0], [inf])
    """
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return values.astype(dtype)
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        # To nearest, ties to even: add half of the range cut off, one less if the kept part is even.
        kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(single), kept.view(np.float32), single)
