"""Mutants of programs: a correct program, followed by lines that change its `forward` in place.

A subclass of the same name would not work: a program that calls `super(ModelNew, self)` would recurse forever. The
corpus makes labelled failures this way, the testing kit incorrect answers and attacks.
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
    """Return a program with its `forward` replaced.

    Args:
        program: Text that defines a class `ModelNew` with a method `forward`.
        code: Definition of `_forward(self, *inputs)`. It may use `_right` (the original `forward`), `_torch`, and
            `_each(change, outputs)`, which changes every output tensor.
        note: A comment before the added lines.
    """
    return program.rstrip() + _BEHIND.format(note=f"# {note}\n" if note else "", code=code.strip())
