"""A mutation: lines that change any correct program, for the testing kit."""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data.mutants import mutated


@dataclass(frozen=True)
class Mutation:
    """Code that changes any correct program."""

    name: str
    """Short name, with its parameters."""
    threat: str
    """Id in docs/threats.md."""
    idea: str
    """One sentence."""
    code: str
    """Defines `_forward`; see `cudal1_data.mutants`."""
    answers_correct: bool = False
    """Whether its outputs stay correct, so that only a reward above 1 is a mistake."""

    def on(self, program: str) -> str:
        """Return the mutated program.

        Args:
            program: Text that defines a class `ModelNew` with a method `forward`.
        """
        return mutated(program, self.code, f"Mutated from here on by cudal1_env.testing ({self.name}): {self.idea}")
