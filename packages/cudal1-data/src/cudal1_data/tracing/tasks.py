"""What is known of a task's graph."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from cudal1_data.task import Memory

Behaviour = tuple[tuple[float, ...], ...]
"""Numbers that tell what a program computes, once for each size and each kind of inputs."""


class TaskGraph(BaseModel):
    """What tracing one reference found."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Task id."""
    fingerprint: str | None = None
    """Equal for tasks with the same operator graph; None where the reference cannot be traced."""
    behaviour: Behaviour = ()
    """What it does to small inputs, as `behaviour.py` tells it; empty where that is not known."""
    operators: tuple[str, ...] = ()
    """Operators in order, after folding."""
    random: bool = False
    """Whether an output depends on random numbers that the call draws (active dropout)."""
    memory: Memory | None = None
    """What inputs, state and outputs take; None where the reference cannot be traced."""
    error: str | None = None
    """Why it cannot be traced."""

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if (self.fingerprint is None) == (self.error is None):
            raise ValueError("expected either a fingerprint or the reason why there is none")
        return self
