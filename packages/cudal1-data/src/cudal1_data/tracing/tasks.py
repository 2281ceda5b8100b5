"""The result of tracing a task."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from cudal1_data.task import Memory

Behaviour = tuple[tuple[float, ...], ...]
"""Numbers that characterize a program's function, one tuple for each size and each kind of inputs."""


class TaskGraph(BaseModel):
    """The result of tracing one reference."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Task id."""
    fingerprint: str | None = None
    """Equal for tasks with the same operator graph; None if the reference cannot be traced."""
    behaviour: Behaviour = ()
    """Its behaviour on small inputs, from `behaviour.py`; empty if unknown."""
    operators: tuple[str, ...] = ()
    """Operators in order, after folding."""
    random: bool = False
    """Whether an output depends on random numbers that the call draws (active dropout)."""
    memory: Memory | None = None
    """Size of inputs, state and outputs; None if the reference cannot be traced."""
    error: str | None = None
    """Reason why it cannot be traced."""

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if (self.fingerprint is None) == (self.error is None):
            raise ValueError("expected either a fingerprint or the reason why there is none")
        return self
