"""Mutants of a correct answer: outputs that an incorrect program might return.

Each mutant is made from the float64 answer; it omits, mixes up or rounds away part of it, as a cheap program would. A
sum does not show whether its last 3 % of terms were dropped, so `scaled by 0.97` stands for that fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cudal1_env import mutants
from cudal1_env.campaigns.audit.judge import KnownSet, Values
from cudal1_env.judge.device.tensors import EPSILON, Expected
from cudal1_env.judge.oracle.numerics import HALF, Answer, compare

Make = Callable[[], Values | None]
"""Make a mutant: flat, in the output's order, float64 (integers as int64); return None if it does not apply."""

_NEIGHBOURS = 16
"""Number of adjacent elements over whose largest magnitude errors are measured."""

_OWN_ROUNDING = 2.0**-40
"""Differences below this share of the scale are float64's own rounding errors."""


@dataclass(frozen=True)
class Subject:
    """One output of one input set, with the data from which its mutants are made."""

    correct: Values
    """The float64 (or int64) answer, flat."""
    expected: Expected
    """Expected shape, dtype and layout of the output."""
    scale: float
    """Largest finite magnitude of the answer."""
    inputs: tuple[Values, ...]
    """The set's input tensors."""
    other: Values
    """The same output on another input set."""
    random: np.random.Generator
    """Random generator that chooses positions and rows."""


def subjects(one: KnownSet, other: KnownSet, random: np.random.Generator) -> list[Subject]:
    """Return the outputs of a set as subjects, together with those of another set."""
    outputs = zip(one.answers, other.answers, one.expected, strict=True)
    return [
        Subject(answer.whole, expected, answer.scale, one.inputs, elsewhere.whole, random)
        for answer, elsewhere, expected in outputs
        if answer.whole is not None and elsewhere.whole is not None
    ]


def makers(subject: Subject) -> dict[str, Make]:
    """Return the mutants of an output by name; each is computed when its maker is called."""
    correct, random = subject.correct, subject.random
    result: dict[str, Make] = {
        "zeros": lambda: np.zeros_like(correct),
        "constant": lambda: mutants.constant(correct),
        "another set's answer": lambda: subject.other,
        f"scaled by {mutants.SHARE}": lambda: mutants.scaled(correct, mutants.SHARE),
        f"scaled by {mutants.FACTOR}": lambda: mutants.scaled(correct, mutants.FACTOR),
        "one element wrong": lambda: _one_wrong(correct, subject.scale, random),
        "swapped rows": lambda: _swapped_rows(correct, subject.expected.shape, random),
    }
    kinds = "f" if subject.expected.floating else "iub"
    for position, values in enumerate(subject.inputs):
        if values.shape == subject.expected.shape and values.dtype.kind in kinds:
            result[f"input {position}"] = lambda values=values: values.reshape(-1).astype(correct.dtype)
    if subject.expected.floating:
        for dtype in ("bfloat16", "float16"):
            if EPSILON[dtype] > EPSILON[subject.expected.dtype]:  # a finer dtype only repeats the worker's rounding
                result[f"rounded to {dtype}"] = lambda dtype=dtype: mutants.rounded(correct, dtype)
        result["NaN at one place"] = lambda: _with_nan(correct, random)
    return result


def left_by_worker(mutant: Values, expected: Expected) -> Values:
    """Return a mutant as the judge would read it from a worker: rounded to the output's dtype, then decoded."""
    if expected.floating:
        return mutants.rounded(mutant, expected.dtype)
    return mutant != 0 if expected.dtype == "bool" else mutant.astype(expected.dtype)


def is_equivalent(left: Values, subject: Subject) -> bool:
    """Return whether the mutant equals the correct answer up to one rounding of each element.

    In half precision the error is measured relative to the largest neighbour, as for programs: a program that rounds
    its partial sums cannot compute values near zero, or float16 subnormals, exactly.
    """
    if not subject.expected.floating:
        return bool((left.astype(np.int64) == subject.correct).all())
    own, unit = _OWN_ROUNDING * subject.scale, EPSILON[subject.expected.dtype]
    if subject.expected.dtype in HALF:
        errors, largest = beside_neighbours(left.astype(np.float64), subject)
        return bool((errors <= unit * largest + own).all())
    wide, right = left.astype(np.float64), subject.correct
    with np.errstate(all="ignore"):
        near = unit * np.abs(right) + own
        same = (wide == right) | (np.isnan(wide) & np.isnan(right)) | (np.abs(wide - right) <= near)
    return bool(same.all())


def beside_neighbours(values: Values, out: Subject) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return errors, shape (n, `_NEIGHBOURS`), infinite for a non-finite pair; largest magnitudes, shape (n, 1)."""
    with np.errstate(all="ignore"):
        same = (values == out.correct) | (np.isnan(values) & np.isnan(out.correct))
        errors = np.where(same, 0.0, np.nan_to_num(np.abs(values - out.correct), nan=np.inf, posinf=np.inf))
    size = np.abs(np.where(np.isfinite(out.correct), out.correct, 0.0))
    padding = (0, -len(errors) % _NEIGHBOURS)
    blocks = np.pad(size, padding).reshape(-1, _NEIGHBOURS)
    return np.pad(errors, padding).reshape(-1, _NEIGHBOURS), blocks.max(axis=1, keepdims=True, initial=0.0)


def passes(left: Values, answer: Answer, subject: Subject) -> bool:
    """Return whether the judge would accept an output on a set whose whole output it compares."""
    sample = compare(left[answer.positions], answer, subject.expected, whole=False)
    return sample.correct and compare(left, answer, subject.expected, whole=True).correct


def _one_wrong(correct: Values, scale: float, random: np.random.Generator) -> Values | None:
    place = _finite_place(correct, random)
    return None if place is None else mutants.one_wrong(correct, place, mutants.SLIP * (scale or 1.0))


def _swapped_rows(correct: Values, shape: tuple[int, ...], random: np.random.Generator) -> Values | None:
    """Swap two rows (last dimension); in a vector, two elements."""
    rows = correct.size // shape[-1] if len(shape) > 1 and shape[-1] else correct.size
    if rows < 2:
        return None
    one, other = random.choice(rows, size=2, replace=False, shuffle=False)
    return mutants.swapped_rows(correct, rows, int(one), int(other))


def _with_nan(correct: Values, random: np.random.Generator) -> Values | None:
    place = _finite_place(correct, random)
    return None if place is None else mutants.with_nan(correct, place)


def _finite_place(correct: Values, random: np.random.Generator) -> int | None:
    places: npt.NDArray[np.int64] = np.flatnonzero(np.isfinite(correct))
    return int(random.choice(places)) if places.size else None
