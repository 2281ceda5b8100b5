"""One way to spoil any right program, as the testing kit describes it."""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data.mutants import mutated


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
    """Defines `_forward`; see `cudal1_data.mutants`."""
    answers_right: bool = False
    """Whether its outputs stay right, so that only a reward above 1 would be wrong."""

    def on(self, program: str) -> str:
        """Return the spoilt program.

        Args:
            program: Text that defines a class `ModelNew` with a method `forward`.
        """
        return mutated(program, self.code, f"From here on spoilt by cudal1_env.testing ({self.name}): {self.idea}")
