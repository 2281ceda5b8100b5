"""Faulty programs: the reference with one injected fault, and the judge's verdict on its outputs.

A fault is injected into one step (`cudal1_worker.oracle.steps`) or the small values of the outputs. It is harmless on
an input set if a program with the fault loses nothing that the reference computes (docs/decisions/003):

- its outputs are the reference's own, bit for bit, and all floating-point, or its step's own result is; or
- the float64 twin with the fault alone is off by no more than one unit in the last place of each element's neighbours,
  or by no more than `_OWN_ERRORS` times the twin's error with this one step in the reference's own precision.

An error that is merely smaller than another step's is not harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cudal1_data import Task

from cudal1_env.campaigns.audit.judge import AuditJudge, KnownSet, Values
from cudal1_env.campaigns.audit.mutants import Subject, beside_neighbours, left_by_worker, passes
from cudal1_env.judge.device.tensors import EPSILON
from cudal1_env.judge.oracle.replies import Step

MAX_STEPS = 8
"""Maximum number of steps that get faults, spread over the forward pass; the first and the last of each kind and shape
count.
"""
SEQUENTIAL = "sequential sums"
"""Order of summation that the tolerance must allow, in all steps at once (`cudal1_worker.oracle.steps.SEQUENTIAL`)."""

_OWN_ERRORS = 2.0
_TINY = float(np.finfo(np.float32).tiny)
_FADED = 1e-6
"""A value below this share of the output's largest magnitude counts as faded."""
_MIN_FADED = 0.01
"""Minimum share of faded elements or rows for which dropping them saves work."""
_SMALLEST = 0.25
"""Share of the rows that `smallest rows dropped` sets to zero."""
_KNOWN = 1e-3
"""The reference knows an element if its relative error is at most this; other elements are noise."""
_MIN_KNOWN = 0.01
"""Dropping elements is harmful if the reference knows at least this share of them."""


@dataclass(frozen=True)
class Program:
    """A reference with one fault."""

    name: str
    """The fault and its place."""
    fault: str
    """The fault's name for the oracle, or one of `FADED`."""
    step: int | None = None
    """Number of the step, from 0."""


def _faded_elements(out: Values) -> Values:
    """Return the faded elements, if they are many."""
    size = _magnitudes(out)
    small = (size > 0) & (size < _FADED * size.max(initial=0.0))
    return small if small.mean() >= _MIN_FADED else np.zeros_like(small)


def _faded_slices(out: Values) -> Values:
    """Return whole slices, across any dimension, in which every element has faded; rows, if they are many."""
    size = _magnitudes(out)
    limit = _FADED * size.max(initial=0.0)
    dropped = np.zeros(out.shape, dtype=bool)
    for kept in range(out.ndim):
        others = tuple(dim for dim in range(out.ndim) if dim != kept)
        dropped |= size.max(axis=others, keepdims=True, initial=0.0) < limit
    rows = size.max(axis=-1, keepdims=True, initial=0.0) < limit
    return dropped | rows if rows.mean() >= _MIN_FADED else dropped


def _smallest_rows(out: Values) -> Values:
    """Return the rows with the smallest values."""
    largest = _magnitudes(out).reshape(-1, out.shape[-1]).max(1)
    count = int(_SMALLEST * len(largest)) if out.ndim > 1 else 0
    dropped = np.zeros((len(largest), 1), dtype=bool)
    dropped[np.argsort(largest, kind="stable")[:count]] = True
    return np.broadcast_to(dropped, (len(largest), out.shape[-1])).reshape(out.shape)


FADED: dict[str, Callable[[Values], Values]] = {
    "faded elements dropped": _faded_elements,
    "faded slices dropped": _faded_slices,
    "smallest rows dropped": _smallest_rows,
}
"""Elements of an output that are set to zero, by fault."""


def _magnitudes(out: Values) -> npt.NDArray[np.float64]:
    return np.abs(np.where(np.isfinite(out), out, 0.0)).astype(np.float64)


def programs_of(steps: Sequence[Step]) -> list[Program]:
    """Return the faulty programs of a reference with these steps."""
    result = [
        Program(f"{fault} at step {number + 1} ({steps[number].name})", fault, number)
        for number in _chosen(steps)
        for fault in steps[number].faults
    ]
    return result + [Program(name, name) for name in FADED]


def _chosen(steps: Sequence[Step]) -> list[int]:
    """Return numbers of the steps to try: the first and the last of each kind and shape, evenly thinned."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        if step.faults:
            key = f"{step.name} {step.shapes}"
            first.setdefault(key, number)
            last[key] = number
    numbers = sorted({*first.values(), *last.values()})
    if len(numbers) <= MAX_STEPS:
        return numbers
    return [numbers[round(place)] for place in np.linspace(0, len(numbers) - 1, MAX_STEPS)]


class Programs:
    """The faulty programs of a task that the checker has accepted on every input set so far.

    Args:
        judge: Judge that runs them.
        task: The task.
        only: Names of the programs to try; None for all.
    """

    def __init__(self, judge: AuditJudge, task: Task, only: Collection[str] | None = None) -> None:
        self._judge = judge
        self._task = task
        self._only = only
        self.alive: dict[Program, bool] | None = None
        """By program, whether it was harmless on every set. None before the first set."""
        self.failed: dict[str, str] = {}
        """By name, why a program could not be run."""

    def meet(self, one: KnownSet, outputs: Sequence[Subject]) -> None:
        """Drop the programs that are caught on a set.

        Args:
            one: The set, while its generator is at this set.
            outputs: The outputs of the set.
        """
        first = self.alive is None
        if self.alive is None:
            chosen = programs_of(self._judge.steps(self._task, one))
            self.alive = {program: True for program in chosen if self._only is None or program.name in self._only}
        before, self.alive = self.alive, {}
        if not before:
            return
        own = self._outputs(one, outputs, Program("", "none"))
        assert not isinstance(own, str), own
        for program, harmless in before.items():
            if program.fault in FADED:
                dropped = _dropped(program, own, outputs)
                faulty = [np.where(gone, 0, left) for gone, left in zip(dropped, own, strict=True)]
                # A program that drops nothing on the task's own inputs gains nothing there.
                applies = not first or any(gone.any() for gone in dropped)
                if applies and all_pass(faulty, one, outputs):
                    known = one.distribution == "own" and _knows_dropped(own, dropped, outputs)
                    self.alive[program] = harmless and not known
                continue
            faulty = self._outputs(one, outputs, program)
            if isinstance(faulty, str):
                self.failed[program.name] = faulty
            elif all_pass(faulty, one, outputs):
                self.alive[program] = harmless and self._is_harmless(program, one, outputs, own, faulty)

    def _outputs(self, one: KnownSet, outputs: Sequence[Subject], program: Program) -> list[Values] | str:
        """Return the outputs of a program as the judge would read them; a text if it could not be run."""
        found = self._judge.faulty(self._task, one, program.fault, program.step)
        if isinstance(found, str):
            return found
        return [left_by_worker(values, out.expected) for values, out in zip(found, outputs, strict=True)]

    def _is_harmless(
        self, program: Program, one: KnownSet, outputs: Sequence[Subject], own: list[Values], faulty: list[Values]
    ) -> bool:
        if all(np.array_equal(a, b, equal_nan=True) for a, b in zip(own, faulty, strict=True)):
            if program.step is None or all(out.expected.floating for out in outputs):
                return True
            # An integer that stays the same does not show how close it was to changing.
            return not self._judge.step_changes(self._task, one, program.fault, program.step)
        alone = self._judge.faulty(self._task, one, program.fault, program.step, wide=True)
        if isinstance(alone, str):  # the fault's own effect is unknown
            return False
        if all(is_one_rounding(values, out) for values, out in zip(alone, outputs, strict=True)):
            return True
        step = self._judge.faulty(self._task, one, "own", program.step, wide=True)
        if isinstance(step, str):
            return False
        return all(
            bool((errors_of(a, out) <= _OWN_ERRORS * errors_of(b, out)).all())
            if out.expected.floating
            else bool((a == out.correct).all())
            for a, b, out in zip(alone, step, outputs, strict=True)
        )


def all_pass(faulty: Sequence[Values], one: KnownSet, outputs: Sequence[Subject]) -> bool:
    """Return whether the judge would accept all outputs."""
    return all(passes(left, answer, out) for left, answer, out in zip(faulty, one.answers, outputs, strict=True))


def passes_in_sequence(judge: AuditJudge, task: Task, one: KnownSet, outputs: Sequence[Subject]) -> bool:
    """Return whether the judge accepts the reference on a set if its sums add one term after another."""
    found = judge.faulty(task, one, SEQUENTIAL)
    if isinstance(found, str):
        return False
    lefts = [left_by_worker(values, out.expected) for values, out in zip(found, outputs, strict=True)]
    return all_pass(lefts, one, outputs)


def is_one_rounding(values: Values, out: Subject) -> bool:
    """Return whether each float64 output is off by at most one unit in the last place of its neighbours."""
    if not out.expected.floating:
        return bool((values == out.correct).all())
    errors, largest = beside_neighbours(values, out)
    return bool((errors <= EPSILON[out.expected.dtype] * largest).all())


def errors_of(values: Values, out: Subject) -> npt.NDArray[np.float64]:
    """Return the errors of float64 outputs, shape (2,).

    They are the largest absolute error, and the root mean square of errors relative to the largest neighbouring
    magnitude. The second one shows the loss of faded elements.
    """
    errors, largest = beside_neighbours(values, out)
    with np.errstate(all="ignore"):
        mean_square = float(np.square(errors / np.maximum(largest, _TINY)).sum()) / max(errors.size, 1)
    return np.array([float(errors.max(initial=0.0)), mean_square**0.5])


def _dropped(program: Program, own: Sequence[Values], outputs: Sequence[Subject]) -> list[Values]:
    """Return which elements of each output a program of `FADED` sets to zero."""
    return [
        FADED[program.fault](left.reshape(out.expected.shape)).reshape(-1)
        if out.expected.floating and left.size and out.expected.shape
        else np.zeros(left.shape, dtype=bool)
        for left, out in zip(own, outputs, strict=True)
    ]


def _knows_dropped(own: Sequence[Values], dropped: Sequence[Values], outputs: Sequence[Subject]) -> bool:
    """Return whether the reference knows the dropped elements."""
    count = known = 0
    for left, gone, out in zip(own, dropped, outputs, strict=True):
        correct = out.correct[gone]
        count += int((correct != 0).sum())
        with np.errstate(all="ignore"):
            known += int((np.abs(left[gone] - correct) < _KNOWN * np.abs(correct)).sum())
    return known > _MIN_KNOWN * count
