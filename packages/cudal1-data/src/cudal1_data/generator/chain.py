"""Chains of pointwise operators, each tested on the sample values before it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from cudal1_data.generator import grid
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.grid import Grid
from cudal1_data.generator.program import Program
from cudal1_data.generator.values import Value, pointwise
from cudal1_data.generator.vocabulary import BINARY, MASKED, SCALARS, UNARY, Operator

_ATTEMPTS = 12
"""Maximum number of draws of one operator; then the attempt at a task ends."""
_MEMORY_NS = 0.7
"""Time of new memory for one element of a result."""
_MAX_NESTED = 3
"""Maximum number of operators in one line."""
_LONGEST = 64
"""Maximum number of characters of an expression inside another."""
_BENDING = ("tanh", "sigmoid", "silu", "gelu", "softplus", "sin", "atan")
"""Operators whose gradient depends on their operand: one ends a backward task if a gradient would miss an input."""
_LOGADDEXP_BACK_NS = 10.0
"""Additional time of its gradient."""


def chain(program: Program, draw: Draw, value: Value, steps: int, operands: Sequence[Value] = ()) -> Value:
    """Apply pointwise operators to a value.

    Args:
        program: The task.
        draw: Choices.
        value: The first value.
        steps: Number of operators with one operand.
        operands: Further operands in order; a mask selects.

    Raises:
        UnsuitableError: No operator suits the values.
    """
    arrivals = sorted(draw.integer(0, steps) for _ in operands)
    waiting = list(zip(arrivals, operands, strict=True))
    last = ""
    for number in range(steps + 1):
        while waiting and waiting[0][0] == number:
            value, last = _joined(program, draw, value, waiting.pop(0)[1]), ""
        if number < steps:
            value, last = _stepped(program, draw, value, last)
    return value


def joined(program: Program, draw: Draw, value: Value, other: Value) -> Value:
    """Combine a value with a second operand.

    Raises:
        UnsuitableError: No operator suits the values.
    """
    return _joined(program, draw, value, other)


def apply_named(program: Program, draw: Draw, name: str, *values: Value) -> Value:
    """Apply a pointwise operator by name.

    Raises:
        UnsuitableError: It does not suit the values.
    """
    operator = next(one for one in (*UNARY, *SCALARS, *BINARY, *MASKED) if one.name == name)
    return applied(program, draw, operator, *values)


def applied(program: Program, draw: Draw, operator: Operator, *values: Value) -> Value:
    """Apply a pointwise operator.

    Raises:
        UnsuitableError: It does not suit the values.
    """
    return short(program, _checked(program, operator, _constant(operator, draw), *values))


def finished(program: Program, draw: Draw, value: Value) -> Value:
    """Return the value as an output: in a backward task, gradients must depend on every input.

    Raises:
        UnsuitableError: The output is not informative.
    """
    if program.backward and not set(value.leaves) <= value.curved:
        for name in draw.some(_BENDING, len(_BENDING)):
            operator = next(one for one in UNARY if one.name == name)
            bent = pointwise(operator, value)
            if bent is not None and grid.informative(bent.grid):
                return bent
        raise UnsuitableError("no operator makes its gradients depend on all inputs")
    if not grid.informative(value.grid):
        raise UnsuitableError("the output depends too little on its inputs")
    return value


def short(program: Program, value: Value) -> Value:
    """Assign a value to a variable if its text is long."""
    return program.keep(value) if value.nested >= _MAX_NESTED or len(value.text) > _LONGEST else value


def _stepped(program: Program, draw: Draw, value: Value, last: str) -> tuple[Value, str]:
    table = [one for one in UNARY if one.smooth or not program.backward]
    for _ in range(_ATTEMPTS):
        operator = draw.one(SCALARS if draw.chance(0.15) else table)
        if operator.name == last:
            continue
        try:
            return short(program, _checked(program, operator, _constant(operator, draw), value)), operator.name
        except UnsuitableError:
            continue
    raise UnsuitableError("no operator suits the values")


def _joined(program: Program, draw: Draw, value: Value, other: Value) -> Value:
    table = MASKED if other.node.operator == "mask" else BINARY
    table = [one for one in table if one.smooth or not program.backward]
    for _ in range(_ATTEMPTS):
        operator, operand = draw.one(table), other
        try:
            if table[0].name != "where" and draw.chance(0.25):
                operand, _ = _stepped(program, draw, operand, "")
            swap = draw.chance(0.3) and operator.name in ("sub", "gate", "phase") and operand.dims == value.dims
            pair = (operand, value) if swap else (value, operand)
            if operator.text.count("{0}") > 1:
                pair = (program.keep(pair[0]), pair[1])
            return short(program, _checked(program, operator, _constant(operator, draw), *pair))
        except UnsuitableError:
            continue
    raise UnsuitableError("no operator suits the values")


def _constant(operator: Operator, draw: Draw) -> float | None:
    return draw.one(operator.constants) if operator.constants else None


def _checked(program: Program, operator: Operator, constant: float | None, *values: Value) -> Value:
    result = pointwise(operator, *values, constant=constant)
    if result is None or not grid.informative(result.grid) or any(_alike(result.grid, one.grid) for one in values):
        raise UnsuitableError(f"{operator.name} does not suit the values")
    if operator.linear and len(values) == 2 and _cancels(result.grid, values):
        raise UnsuitableError(f"{operator.name} cancels")
    program.cost_ns += operator.cost_ns + _MEMORY_NS
    if program.backward and operator.name == "logaddexp":
        program.cost_ns += _LOGADDEXP_BACK_NS
    return result


_MIN_CHANGED = 6
"""Minimum number of the 64 samples that an operator must change: a clamp of 1 % of the values does next to nothing."""


def _alike(after: Grid, before: Grid) -> bool:
    """Return whether an operator did next to nothing, or only changed all signs."""
    largest = max(map(abs, before.values))
    return any(
        sum(abs(a - sign * b) > 1e-3 * largest for a, b in zip(after.values, before.values, strict=True)) < _MIN_CHANGED
        for sign in (1.0, -1.0)
    )


def _cancels(after: Grid, operands: Sequence[Value]) -> bool:
    largest = max(max(map(abs, one.grid.values)) for one in operands)
    return max(map(abs, after.values)) < 0.1 * largest
