"""Mutants of programs: a correct program, followed by lines that change its `forward` in place.

A subclass under the same name would not do: in a program that calls `super(ModelNew, self)` it calls itself for ever.
The corpus makes labelled failures of this, the testing kit incorrect answers and attacks.
"""

from __future__ import annotations

_BEHIND = """

{note}import torch as _torch

_right = ModelNew.forward


def _each(change, value):
    if isinstance(value, _torch.Tensor):
        return change(value)
    return type(value)([_each(change, one) for one in value])


{code}


ModelNew.forward = _forward
"""


def mutated(program: str, code: str, note: str = "") -> str:
    """Return a program whose `forward` is another.

    Args:
        program: Text that defines a class `ModelNew` with a method `forward`.
        code: Defines `_forward(self, *inputs)` from `_right`, which is the program's own, `_torch`, and
            `_each(change, outputs)`, which changes every tensor among the outputs.
        note: A comment in front of the lines.
    """
    return program.rstrip() + _BEHIND.format(note=f"# {note}\n" if note else "", code=code.strip())
