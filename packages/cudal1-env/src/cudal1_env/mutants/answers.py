"""Mutants of a correct answer, as arrays: what an incorrect program might return.

The task gate chooses their places at random, the testing kit takes fixed ones. Mutants of programs are made by
`cudal1_data.mutants`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SHARE = 0.97
"""The part of a sum that is computed, where the rest is left out."""

FACTOR = 1.01
"""Factor by which answers are scaled."""

SLIP = 0.01
"""Error of one incorrect element, as a share of the answer's scale."""


def constant(correct: Array) -> Array | None:
    """Return the mean of the finite elements everywhere; None for a single element, which is its own mean."""
    finite = correct[np.isfinite(correct)]
    if correct.size < 2 or not finite.size:
        return None
    mean: Any = finite.mean()
    return np.full_like(correct, mean if correct.dtype.kind == "f" else round(float(mean)))


def scaled(correct: Array, factor: float) -> Array:
    """Return the answer times a factor, integers rounded."""
    return (correct * factor if correct.dtype.kind == "f" else np.rint(correct * factor)).astype(correct.dtype)


def one_wrong(correct: Array, place: int, by: float) -> Array:
    """Return the answer with one element changed.

    Args:
        correct: The correct answer.
        place: Which element, in the flat answer.
        by: Added to a floating-point number. Of integers 0 and 1 are exchanged, others grow by 1.
    """
    mutant = correct.copy()
    flat = mutant.reshape(-1)
    if correct.dtype.kind == "f":
        flat[place] += by
    else:
        flat[place] = 1 - flat[place] if flat[place] in (0, 1) else flat[place] + 1
    return mutant


def with_nan(correct: Array, place: int) -> Array:
    """Return the answer with NaN in one place of the flat answer."""
    mutant = correct.copy()
    mutant.reshape(-1)[place] = np.nan
    return mutant


def swapped_rows(correct: Array, rows: int, one: int, other: int) -> Array:
    """Return the answer with two of its rows exchanged.

    >>> swapped_rows(np.arange(6).reshape(3, 2), 3, 0, 2).tolist()
    [[4, 5], [2, 3], [0, 1]]

    Args:
        correct: The correct answer.
        rows: Into how many rows it is divided.
        one: The first.
        other: The second.
    """
    mutant = correct.reshape(rows, -1).copy()
    mutant[[one, other]] = mutant[[other, one]]
    return mutant.reshape(correct.shape)


def rounded(values: Array, dtype: str) -> Array:
    """Round to a floating-point dtype; bfloat16, which numpy does not know, comes as float32.

    >>> rounded(np.array([1.00390625, 3.0]), "bfloat16").tolist(), rounded(np.array([65600.0]), "float16").tolist()
    ([1.0, 3.0], [inf])
    """
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return values.astype(dtype)
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        # To the nearest, ties to even: add half of what is cut off, one less where the kept part is even.
        kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(single), kept.view(np.float32), single)
