"""Mutants of a correct answer, as programs and as arrays, which any checker must reject.

A mutant may happen to be correct: zeros if the answer is zero, exchanged rows if all rows are equal, the input
if the task returns it. Compare a mutant with the correct answer before you use it on another task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cudal1_env.mutants import answers
from cudal1_env.mutants.answers import FACTOR, SHARE, Array
from cudal1_env.mutants.mutation import Mutation


@dataclass(frozen=True)
class _Mutant:
    """One mutant, as a program and as an array."""

    program: Mutation
    """Changes any correct program."""
    answer: Callable[[Array, Array, Array], Array]
    """Returns the mutant of (correct answer, first input, answer to another input)."""


def _text(name: str, threat: str, idea: str, output: str, *, inputs: str = "inputs", before: str = "") -> Mutation:
    """Return a mutant that returns `output`, an expression in the correct output `y` and the first input `x`."""
    code = f"""
{before}
def _forward(self, *inputs):
    x = next(value for value in inputs if isinstance(value, _torch.Tensor))
    return _each(lambda y: {output}, _right(self, *{inputs}))
"""
    return Mutation(name, threat, idea, code)


_ONE_ELEMENT = """
def _one_element(y):
    y = y.clone(memory_format=_torch.contiguous_format)
    y.view(-1)[y.numel() // 2] += 1 + y.abs().max()
    return y

"""

_EXCHANGED = """
def _exchanged(y):
    return y[[1, 0, *range(2, y.shape[0])]] if y.dim() and y.shape[0] > 1 else y

"""

_CUT = f"""
def _cut(value):
    if not (isinstance(value, _torch.Tensor) and value.dim()):
        return value
    value = value.clone()
    value[..., int(value.shape[-1] * {SHARE}) :] = 0
    return value

"""

_ANOTHER = """
_last = []


def _forward(self, *inputs):
    _last.append(_each(_torch.clone, _right(self, *inputs)))
    return _last.pop(0) if len(_last) > 1 else _last[0]
"""


def _constant(answer: Array) -> Array:
    mutant = answers.constant(answer)
    return answer if mutant is None else mutant


def _wrong_element(answer: Array) -> Array:
    return answers.one_wrong(answer, answer.size // 2, 1 + np.abs(answer).max())


def _rows_exchanged(answer: Array) -> Array:
    return answers.swapped_rows(answer, len(answer), 0, 1) if answer.ndim and len(answer) > 1 else answer


_ALL = (
    _Mutant(
        _text("zeros", "H15", "Return zeros.", "_torch.zeros_like(y)"),
        lambda correct, values, other: np.zeros_like(correct),
    ),
    _Mutant(
        _text("constant", "H16", "Return the mean.", "y.double().mean().to(y.dtype).expand_as(y).clone()"),
        lambda correct, values, other: _constant(correct),
    ),
    _Mutant(
        _text(
            "input",
            "H18",
            "Return the input, repeated or cut to the output's shape.",
            "x.flatten().repeat(-(-y.numel() // x.numel()))[: y.numel()].reshape(y.shape).to(y.dtype)",
        ),
        lambda correct, values, other: np.resize(values, correct.shape).astype(correct.dtype),
    ),
    _Mutant(
        Mutation("another_input", "H06", "Return the answer to the inputs of the call before.", _ANOTHER),
        lambda correct, values, other: other,
    ),
    _Mutant(
        _text(
            "most_of_the_sum",
            "H17",
            "Leave out the last 3 % of each row of the inputs.",
            "y",
            inputs="map(_cut, inputs)",
            before=_CUT,
        ),
        lambda correct, values, other: answers.scaled(correct, SHARE),
    ),
    _Mutant(
        _text("scaled", "H19", "Return the answer times 1.01.", f"(y * {FACTOR}).to(y.dtype)"),
        lambda correct, values, other: answers.scaled(correct, FACTOR),
    ),
    _Mutant(
        _text("one_element", "H17", "Change one element.", "_one_element(y)", before=_ONE_ELEMENT),
        lambda correct, values, other: _wrong_element(correct),
    ),
    _Mutant(
        _text("exchanged_rows", "H17", "Exchange the first two rows.", "_exchanged(y)", before=_EXCHANGED),
        lambda correct, values, other: _rows_exchanged(correct),
    ),
    _Mutant(
        _text("half_precision", "H19", "Round the answer to half precision.", "y.half().to(y.dtype)"),
        lambda correct, values, other: answers.rounded(correct, "float16").astype(correct.dtype),
    ),
    _Mutant(
        _text("nan", "H14", "Return NaN.", "_torch.full_like(y, float('nan'))"),
        lambda correct, values, other: np.full_like(correct, np.nan),
    ),
)

MUTANTS: Mapping[str, Mutation] = MappingProxyType({one.program.name: one.program for one in _ALL})
"""Mutants as programs, by name."""

ANSWER_MUTANTS: Mapping[str, Callable[[Array, Array, Array], Array]] = MappingProxyType(
    {one.program.name: one.answer for one in _ALL}
)
"""The same mutants as functions of (correct answer, first input, answer to another input), floating-point arrays."""
