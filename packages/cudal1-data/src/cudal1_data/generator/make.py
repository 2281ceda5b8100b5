"""Generation of a task from a family, a seed and a number."""

from __future__ import annotations

import math

from cudal1_data.generator import grid, structure
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.families import FAMILIES, FORWARD_ONLY
from cudal1_data.generator.program import Dtype, Program
from cudal1_data.task import SizeFamily, Task

_ATTEMPTS = 200
"""Maximum number of draws of a whole task; none of 12,400 tasks needed as many."""
_FAR_OUT = frozenset({"softmax", "softmin", "cumprod"})
"""Operators whose results may be hundreds of times the usual one."""
_EXTREMES = frozenset({"amax[columns]", "amin[columns]", "amax[rows]", "amin[rows]", "cummax[rows]", "cummin[rows]"})
"""Extremes of lines a hundred times as long as the sample's."""
_MIN_OF_INPUTS = 0.2
"""Minimum change of an output by all inputs together, over its root mean square; below, its weights decide."""
_BOUNDED = frozenset(
    {"tanh", "sigmoid", "atan", "erf", "softsign", "exp", "clamp", "sin", "cos", "rsqrt", "log1p", "logsigmoid"}
)
"""Operators whose results are bounded."""
_DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")
"""Dtypes of inputs, weights, arithmetic and outputs; each for a third of the tasks."""


def make_task(family: str, seed: int, number: int, *, backward: bool = False) -> Task:
    """Make one task; the same arguments give the same text everywhere.

    Args:
        family: A key of `FAMILIES`.
        seed: Any integer from 0.
        number: Number of the task of that seed, from 0.
        backward: Whether the task computes its inputs' gradients.

    Raises:
        ValueError: The family has no gradients.
    """
    if backward and family in FORWARD_ONLY:
        raise ValueError(f"the family {family} has no tasks with gradients; leave `backward` out")
    dtype = Draw(family, seed, number, "dtype").one(_DTYPES)
    for attempt in range(_ATTEMPTS):
        draw = Draw(family, seed, number, *(["backward"] if backward else []), attempt)
        program = Program(draw.child("samples"), backward=backward, dtype=dtype)
        try:
            FAMILIES[family](program, draw)
            _check(program)
        except UnsuitableError:
            continue
        return _task(program, family, task_name(family, seed, number, backward=backward))
    raise AssertionError(f"{family}: {_ATTEMPTS} attempts gave no task for seed {seed}, number {number}")


def task_name(family: str, seed: int, number: int, *, backward: bool) -> str:
    """Return the end of a task's id.

    >>> task_name("softmax", 7, 12, backward=True)
    'softmax-7-12-backward'
    """
    return f"{family}-{seed}-{number}" + ("-backward" if backward else "")


def _check(program: Program) -> None:
    if program.unused():
        raise UnsuitableError(f"nothing depends on {program.unused()}")
    if not all(grid.informative(value.grid) for value in program.outputs):
        raise UnsuitableError("an output is not informative")
    for value in program.outputs:
        changes = [grid.change(value.grid, name) for name in program.inputs if name in value.grid.redrawn]
        if math.hypot(*changes) < _MIN_OF_INPUTS * grid.size(value.grid.values):
            raise UnsuitableError("an output depends mostly on weights")
    for node in structure.nodes(*program.roots):
        if node.operator in ("sin", "cos") and _reaches(node.operands[0], _FAR_OUT):
            raise UnsuitableError("a rotation by a large value amplifies its rounding error")
        if node.operator in _BOUNDED and _reaches(node.operands[0], _EXTREMES):
            raise UnsuitableError("extremes of many values end up at the bound")
    if program.backward and len(program.outputs) > 1:
        raise UnsuitableError("gradients of several outputs")


def _reaches(node: structure.Node, wanted: frozenset[str]) -> bool:
    """Return whether a value grows with the result of a wanted operator, far beyond what the samples show."""
    if node.heavy:
        return f"{node.operator}[{node.detail}]" in wanted or node.operator in wanted
    if node.operator in _BOUNDED:
        return False
    grows_with = node.operands[:1] if node.operator == "div" else node.operands
    return any(_reaches(one, wanted) for one in grows_with)


def _task(program: Program, family: str, name: str) -> Task:
    roots = program.roots
    score = structure.difficulty(*roots) + (3 if program.backward else 0)
    operators = len(structure.nodes(*roots))
    text = structure.text_of(*roots)
    tags = (
        f"family:{family}",
        f"structure:{text}",
        f"heavy:{structure.heavy_of(*roots)}",
        f"dtype:{program.dtype}",
        f"layout:{'+'.join(sorted(program.layouts)) or 'contiguous'}",
        f"operators:{operators}",
        f"difficulty:{score}",
        *(["backward"] if program.backward else []),
    )
    return Task(
        id=f"generated/{name}",
        source=program.source(),
        name=_human(family, program),
        level=structure.level_of(score),
        origin="generated",
        split=structure.split_of(*roots),
        category=family,
        tags=tags,
        sizes={
            "cpu": SizeFamily(default=program.size_on("cpu")),
            "cuda": SizeFamily(default=program.size_on("cuda")),
        },
    )


def _human(family: str, program: Program) -> str:
    """Return a name of family and operators, in order of application."""
    names = [node.operator for node in reversed(structure.nodes(*program.roots))]
    kept = list(dict.fromkeys(names))
    shown = ", ".join(kept[:6]) + (", ..." if len(kept) > 6 else "")
    title = f"{family}, {program.title}" if program.title else family
    return f"{'Gradients of ' if program.backward else ''}{title}: {shown}".replace("_", " ")
