"""A right program, and a few lines behind it that spoil it.

The lines change the program's `forward` in place. A subclass under the same name would not do: in a program that
calls `super(ModelNew, self)` it calls itself for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

_BEHIND = '''

# From here on spoilt by cudal1_env.testing ({name}): {idea}
import torch as _torch

_right = ModelNew.forward


def _each(change, value):
    """Change every tensor among the outputs."""
    if isinstance(value, _torch.Tensor):
        return change(value)
    return type(value)([_each(change, one) for one in value])


{code}


ModelNew.forward = _forward
'''


@dataclass(frozen=True)
class Spoiler:
    """One way to spoil any right program."""

    name: str
    """Short name, with its parameters."""
    threat: str
    """Id in docs/threats.md."""
    idea: str
    """One sentence."""
    code: str
    """Defines `_forward(self, *inputs)` from `_right`, `_each` and `_torch`."""
    answers_right: bool = False
    """Whether its outputs stay right, so that only a reward above 1 would be wrong."""

    def on(self, program: str) -> str:
        """Return the spoilt program.

        Args:
            program: Text that defines a class `ModelNew` with a method `forward`.
        """
        return program.rstrip() + _BEHIND.format(name=self.name, idea=self.idea, code=self.code.strip())
